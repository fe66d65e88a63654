"""Read a page of `tympan report`: its data, and what a real browser shows."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def page_data(page: Path) -> dict:
    match = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.S)
    assert match
    return json.loads(match[1])


def browse(page: Path, *flags: str) -> str:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    quiet += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    profile = f"--user-data-dir={page.parent / 'profile'}"
    done = subprocess.run(
        [CHROMIUM, *quiet, profile, *flags, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def probed(page: Path, script: str, *flags: str) -> Any:
    """The values that a script in the page appends to `seen`."""
    ending = 'document.body.append(make("p", { id: "seen", textContent: JSON.stringify(seen) }));</script></body>'
    text = page.read_text(encoding="utf-8").replace("</body>", f"<script>const seen = [];{script}{ending}")
    probe = page.with_name("probe.html")
    probe.write_text(text, encoding="utf-8")
    found = re.search(r'<p id="seen">(.*?)</p>', browse(probe, "--dump-dom", *flags))
    assert found
    return json.loads(html.unescape(found[1]))
