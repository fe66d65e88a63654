"""The pictures of the documentation: used, small, from one run, and in agreement with the text beside them."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from wheels import ROOT

IMAGES = ROOT / "docs" / "images"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "_site" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_picture_is_shown_and_small() -> None:
    shown = {name for page in PAGES for name in re.findall(r"images/(\w+\.png)", page.read_text(encoding="utf-8"))}
    there = {path.name: path.stat().st_size for path in IMAGES.glob("*.png")}
    assert shown == set(there)
    assert {name: size for name, size in there.items() if size >= 300_000} == {}


def test_the_text_gives_the_error_rate_of_the_pictures() -> None:
    run = json.loads((IMAGES / "run.json").read_text(encoding="utf-8"))
    stated = re.findall(r"character error rate of ([\d.]+) %", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert [float(value) for value in stated] == [run["test_cer"]]


def test_terminal_lines_are_escaped_and_have_no_machine_path(pictures: ModuleType) -> None:
    page = pictures.terminal_page([("tympan demo", "report /home/me/demo/<x>\n"), ("cp a b", "")], hide="/home/me/")
    assert '<p class="command">tympan demo</p><p>report demo/&lt;x&gt;</p>' in page
    assert page.endswith('<p class="command">cp a b</p></div>')


def test_the_error_rate_is_read_from_the_table(pictures: ModuleType, tmp_path: Path) -> None:
    table = tmp_path / "score_cer" / "RESULTS.md"
    table.parent.mkdir()
    head = "|dataset|Snt|Wrd|Corr|Sub|Del|Ins|Err|S.Err|95 % interval|\n|---|---|---|---|---|---|---|---|---|---|\n"
    table.write_text(head + "|decode_test|120|1061|99.4|0.3|0.2|0.1|0.6|3.3|0.1 - 1.2|\n", encoding="utf-8")
    assert pictures.record(tmp_path)["test_cer"] == 0.6


def test_without_a_browser_it_says_what_to_install(pictures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="apt-get install chromium"):
        pictures.find_chromium()
