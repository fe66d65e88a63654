"""`import tympan` is fast and lazy, and the examples of docs/python.md run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "python.md"


def python(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_importing_is_quick_and_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys, time\nbegan = time.perf_counter()\nimport tympan\ntook = time.perf_counter() - began\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
        "assert {'load', 'train', 'evaluate', 'DataDir'} <= set(dir(tympan))\nprint(took)"
    )
    times = [float(python(code, tmp_path).stdout) for _ in range(3)]
    assert min(times) < 0.2


def test_a_name_that_is_not_offered() -> None:
    import tympan

    with pytest.raises(AttributeError, match="no attribute 'transcribe'"):
        _ = tympan.transcribe  # type: ignore[attr-defined]


def test_the_examples_of_the_page(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "integration"))
    from train_corpus import make_corpus

    make_corpus(tmp_path, utterances=40)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 6
    done = python("\n".join(blocks), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[0].endswith(" True")
    assert lines[1] == "max_epochs: unknown option 'max_epochs'. Did you mean 'max_epoch'?"
    assert any(re.fullmatch(r"\d+\.\d % of \d+ characters", line) for line in lines)
    assert (tmp_path / "decoded" / "text").read_text(encoding="utf-8").startswith("valid000")
    assert (tmp_path / "two" / "wav.scp").is_file()
    assert "train.log" in os.listdir(tmp_path / "exp")


def test_evaluate_counts_what_cannot_be_decoded(golden: Path, tmp_path: Path) -> None:
    """ESPnet2's model of real AN4 recordings, one of which is missing."""
    import shutil

    import tympan

    trained = golden / "espnet2" / "an4_trained"
    model = tmp_path / "model"
    (model / "lm").mkdir(parents=True)
    for kind, folder in (("asr", model), ("lm", model / "lm")):
        shutil.copy(trained / f"{kind}_config.yaml", folder / "config.yaml")
        shutil.copy(trained / f"{kind}_model.pth", folder / "model.pth")
    data = tmp_path / "data"
    shutil.copytree(trained / "wav", data / "wav")
    for name in ("wav.scp", "text"):
        shutil.copy(trained / name, data / name)
    whole = tympan.evaluate(model, data, beam_size=5)
    assert whole.total.error_rate == 0.0
    (data / "wav" / "cen8-fcaw-b.wav").unlink()
    words = len((data / "text").read_text(encoding="utf-8").split("cen8-fcaw-b ")[1].splitlines()[0].split())
    damaged = tympan.evaluate(tympan.load(model, beam_size=5), data)
    assert damaged.missing == ("cen8-fcaw-b",)
    assert damaged.total.deletions == words
