"""Make the pictures of README.md and docs/ from a run of `tympan demo`: python docs/_site/pictures.py [DEMO]

DEMO is the directory of the demo (default: demo); the demo is run, or continued, if it is not finished. Every picture
shows files or output of that run, drawn by a headless Chromium. docs/images/run.json records the error rate of the run,
which a test compares with the text of README.md.
"""

from __future__ import annotations

import datetime
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tympan

IMAGES = Path(__file__).resolve().parents[1] / "images"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
MISTAKES = "tympan asr_train --encoder conformr --decoder transformer --batch_bin 1000000"
"""A command with two mistakes, to show how they are reported."""
WIDTH = 1200

STYLE = """
body { margin: 0; font: 15px/1.5 "DejaVu Sans", sans-serif; background: #fff; color: #1d2433 }
.terminal { background: #1b1f27; color: #d7dae0; padding: 22px 28px; font: 15px/1.55 "DejaVu Sans Mono", monospace }
.terminal p { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere }
.terminal .command { color: #fff; font-weight: bold; margin-top: 14px }
.terminal .command:first-child { margin-top: 0 }
.terminal .command::before { content: "$ "; color: #5fbf8f }
.row { display: flex; gap: 8px; padding: 12px }
.row img { width: calc((100% - 16px) / 3) }
figure { margin: 12px 20px } figcaption { color: #5a6375; margin-bottom: 4px }
figure img { width: 100%; height: 210px; image-rendering: pixelated; border: 1px solid #d5d9e0 }
"""


def main(arguments: Sequence[str]) -> int:
    demo = Path(arguments[0] if arguments else "demo").resolve()
    browser = find_chromium()
    lines = run_demo(demo)
    experiment = only(demo, "exp/*_demo")
    decoded = only(experiment, "decode_test_*")
    IMAGES.mkdir(exist_ok=True)
    shoot(browser, (decoded / "report.html").as_uri(), "report", height=860)
    draw(browser, "terminal", terminal(demo, experiment, lines), height=455)
    draw(browser, "training", curves(experiment), height=270)
    draw(browser, "attention", attention(experiment), height=270)
    (IMAGES / "run.json").write_text(json.dumps(record(decoded), indent=2) + "\n", encoding="utf-8")
    return 0


def find_chromium() -> str:
    for name in CHROMIUM:
        if found := shutil.which(name):
            return found
    raise SystemExit(
        f"make pictures needs Chromium, and found none of {', '.join(CHROMIUM)} (apt-get install chromium)"
    )


def run_demo(demo: Path) -> list[str]:
    """The closing lines of the demo."""
    output = run(["tympan", "demo", "--dir", demo.name], demo.parent)
    lines = output.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("dev: CER"))
    return ["...", *(line for line in lines[first:] if line.startswith(("dev:", "test:", "  report", "model:")))]


def run(command: list[str], directory: Path, *, may_fail: bool = False) -> str:
    """What a command prints; `tympan` is that of the running Python."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0 and not may_fail:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr}")
    return done.stdout or done.stderr


def terminal(demo: Path, experiment: Path, closing: list[str]) -> str:
    """The end of the demo, a transcription, and two mistakes."""
    model = only(experiment, "packed_*").relative_to(demo.parent)
    wavs = [line.split()[1] for line in (demo / "data" / "test" / "wav.scp").read_text().splitlines()[:2]]
    # Run on copies in an empty directory, so that the lines are short.
    with tempfile.TemporaryDirectory() as folder:
        for name, wav in zip(("a.wav", "b.wav"), wavs, strict=True):
            shutil.copy(wav, Path(folder, name))
        shutil.copytree(demo.parent / model, Path(folder, "my_model"))
        transcribe = "tympan transcribe my_model a.wav b.wav"
        shown = [
            ("tympan demo", "\n".join(closing)),
            (f"cp -r {model} my_model", ""),
            (transcribe, run(shlex.split(transcribe), Path(folder))),
            (MISTAKES, run(shlex.split(MISTAKES), Path(folder), may_fail=True)),
        ]
    return terminal_page(shown, hide=f"{demo.parent}/")


def terminal_page(shown: Sequence[tuple[str, str]], *, hide: str) -> str:
    """Commands with their output; `hide` is removed from paths."""
    parts = []
    for command, output in shown:
        parts.append(f'<p class="command">{html.escape(command)}</p>')
        if output.strip():
            parts.append(f"<p>{html.escape(output.replace(hide, '').rstrip())}</p>")
    return f'<div class="terminal">{"".join(parts)}</div>'


def curves(experiment: Path) -> str:
    names = ("loss", "acc", "cer_ctc")
    images = "".join(f'<img src="{(experiment / "images" / f"{name}.png").as_uri()}">' for name in names)
    return f'<div class="row">{images}</div>'


def attention(experiment: Path) -> str:
    """Self-attention of the last encoder block after the last epoch; its heads are side by side."""
    found = experiment.glob("att_ws/*/encoder.*.self_attn.*ep.png")
    newest = max(found, key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)])
    caption = (
        f"att_ws/{newest.parent.name}/{newest.name}: the heads side by side, each with keys along x and queries along y"
    )
    return f'<figure><figcaption>{html.escape(caption)}</figcaption><img src="{newest.as_uri()}"></figure>'


def draw(browser: str, name: str, body: str, *, height: int) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as page:
        page.write(f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style>{body}')
        page.flush()
        shoot(browser, Path(page.name).as_uri(), name, height=height)


def shoot(browser: str, address: str, name: str, *, height: int) -> None:
    """A screenshot, reduced to 256 colors."""
    from PIL import Image

    target = IMAGES / f"{name}.png"
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "page.png")
        sizes = [f"--window-size={WIDTH},{height}", f"--screenshot={raw}", f"--user-data-dir={folder}/profile"]
        done = subprocess.run(
            [browser, *FLAGS, *sizes, address], capture_output=True, text=True, timeout=120, check=False
        )
        if not raw.exists():
            raise SystemExit(f"{browser} made no picture of {address}:\n{done.stderr}")
        with Image.open(raw) as image:
            image.convert("RGB").quantize(256).save(target, optimize=True)
    print(f"{target}: {target.stat().st_size // 1000} kB")


def record(decoded: Path) -> dict[str, object]:
    """Where the pictures come from."""
    row = (decoded / "score_cer" / "RESULTS.md").read_text(encoding="utf-8").splitlines()[-1]
    cells = [cell.strip() for cell in row.strip("| \n").split("|")]
    return {
        "command": "tympan demo",
        "version": tympan.__version__,
        "date": datetime.date.today().isoformat(),
        "test_cer": float(cells[7]),
    }


def only(directory: Path, pattern: str) -> Path:
    found = list(directory.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{directory}/{pattern}: expected one, found {len(found)}; remove the directory and try again")
    return found[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
