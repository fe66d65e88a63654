"""The golden values in the repository: small, complete, and used where the larger set is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
PARITY = [
    "tests/models/test_parity.py",
    "tests/models/test_lm.py",
    "tests/decode/test_golden_search.py",
    "tests/decode/test_ngram_scorer.py",
    "tests/text/test_ngram_estimation.py",
    "tests/features/test_fbank.py",
    "tests/features/test_pitch.py",
    "tests/features/test_cmvn.py",
    "tests/score/test_sclite.py",
]
RUN = (  # original tool, and tests that must not be skipped
    ("Kaldi's fbank", "test_fbank_and_mfcc_equal_kaldi[synth200ms]"),
    ("Kaldi's pitch", "test_pitch_equals_kaldi[pitch_raw-True-synth200ms]"),
    ("Kaldi's frame counts", "test_frame_counts_and_values_at_the_edges[fbank-True]"),
    ("Kaldi's CMVN", "test_utterance_statistics_equal_kaldi[synth200ms]"),
    ("lmplz", "test_agrees_with_lmplz[tiny/4gram"),
    ("lmplz", "test_agrees_with_lmplz_on_random_text"),
    ("KenLM's scores", "test_golden_totals[tiny]"),
    ("ESPnet2's models", "test_alone_equals_espnet2[conformer]"),
    ("ESPnet2's losses", "test_losses_equal_espnet2[vgg_rnn]"),
    ("ESPnet2's search", "test_batched_search_gives_espnet2s_nbest[e_branchformer]"),
    ("ESPnet2's n-gram scorer", "test_an_ngram_gives_espnet2s_nbest[part]"),
    ("ESPnet2's language models", "test_espnet2_weights_give_its_next_token_distributions[transformer]"),
)


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 4_000_000


def test_it_has_no_recordings() -> None:
    known = {"silence", "synth200ms", "glide", "sweep"}
    sounds = {path.stem for path in GOLDEN.rglob("*.wav") if path.parent.name != "edge_wav"}
    assert sounds == known
    assert {path.stem for path in (GOLDEN / "kaldi").glob("*.npz")} <= {*known, "edge"}


@pytest.mark.slow
def test_parity_is_tested_without_the_larger_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TYMPAN_SHARED", str(tmp_path / "missing"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-vv", "-p", "no:xdist", "-p", "no:cacheprovider", *PARITY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = [line for line in done.stdout.splitlines() if "PASSED" in line]
    missing = [tool for tool, name in RUN if not any(name in line for line in passed)]
    assert missing == []
    assert sum("test_sclite.py" in line for line in passed) > 5
    assert "golden values from recordings or large texts are not in the repository" in done.stdout
