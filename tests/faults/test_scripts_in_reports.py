"""Texts, ids and names that try to run a script in the report. Needs Chromium."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.score.report_page import CHROMIUM, browse, probed
from tympan.bin.report import main

RUN = "document.documentElement.setAttribute('data-ran','1')"
PAYLOADS = [
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<img/src=x/onerror={RUN}>",
    f"<svg/onload={RUN}>",
    f'"><svg/onload={RUN}>',
    f"'><svg/onload={RUN}>",
    f"<iframe/src=javascript:{RUN}>",
    f"<a/href=javascript:{RUN}>x</a>",
    f"<details/open/ontoggle={RUN}>",
    f"<!--><svg/onload={RUN}>-->",
    f"]]><svg/onload={RUN}>",
    f"${{{RUN}}}",
    f"{{{{constructor.constructor('{RUN}')()}}}}",
    f"</title><svg/onload={RUN}>",
    f"\u2028{RUN}//",
    f"\\u003csvg/onload={RUN}\\u003e",
    f"<style>@import'javascript:{RUN}';</style>",
    f"<math><mtext></mtext><mglyph><style><!--</style><img/src=x/onerror={RUN}>",
]
OPEN_ALL = """
for (const box of document.querySelectorAll("input, select")) {
  if (box.type == "checkbox") box.click();
  else if (box.type != "file") {
    box.value = box.options ? box.options[box.options.length - 1].value : "<svg/onload=RUN>";
    for (const kind of ["input", "change"]) box.dispatchEvent(new Event(kind, { bubbles: true }));
  }
}
for (const item of document.querySelectorAll("button, summary, th, td, .head")) item.click();
seen.push(document.documentElement.hasAttribute("data-ran"));
seen.push(document.querySelectorAll("#app script, table script, iframe, [onerror], [onload], [ontoggle]").length);
seen.push([...document.querySelectorAll("a[href], [src]")].filter(
  item => /^javascript:/i.test(item.getAttribute("href") || item.getAttribute("src"))).length);
""".replace("RUN", RUN.replace('"', "'"))

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_no_script_of_a_text_runs(tmp_path: Path) -> None:
    ids = [f"s{number}-{payload}".replace(" ", "") for number, payload in enumerate(PAYLOADS)]
    named = list(zip(ids, PAYLOADS, strict=True))
    ref = write(tmp_path / "text", [f"{name} a {payload} b" for name, payload in named])
    hyp = write(tmp_path / "hyp", [f"{name} {payload} c {payload}" for name, payload in named])
    write(tmp_path / "utt2spk", [f"{name} {payload}".replace("\u2028", "") for name, payload in named])
    sounds = tmp_path / "x<svg onload=document.title=1>.wav"
    soundfile.write(sounds, np.full(8000, 0.1), 8000)
    write(tmp_path / "wav.scp", [f"{name} {sounds}" for name in ids])
    page = tmp_path / "report.html"
    code = main(
        [ref, hyp, "--compare", ref, "--data_dir", str(tmp_path), "--output", str(page), "--title", PAYLOADS[1]]
    )
    assert code == 0
    assert 'data-ran="1"' not in browse(page, "--dump-dom").partition(">")[0]
    assert probed(page, OPEN_ALL, "--virtual-time-budget=3000") == [False, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_script_of_a_single_text_runs(tmp_path: Path, payload: str) -> None:
    """Alone, so that one payload can't hide another."""
    files = [write(tmp_path / name, [f"s-a {payload} {name}"]) for name in ("text", "hyp")]
    page = tmp_path / "report.html"
    assert main([*files, "--output", str(page), "--title", payload]) == 0
    assert probed(page, OPEN_ALL, "--virtual-time-budget=3000") == [False, 0, 0]


def test_the_probe_notices_a_script_that_runs(tmp_path: Path) -> None:
    """The test above can fail."""
    files = [write(tmp_path / name, [f"s-a x {name}"]) for name in ("text", "hyp")]
    page = tmp_path / "report.html"
    assert main([*files, "--output", str(page)]) == 0
    page.write_text(
        page.read_text(encoding="utf-8").replace("<body>", f"<body><script>{RUN}</script>", 1), encoding="utf-8"
    )
    assert probed(page, OPEN_ALL, "--virtual-time-budget=3000")[0] is True
