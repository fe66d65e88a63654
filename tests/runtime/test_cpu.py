"""What the processor announces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tympan.runtime import cpu


@pytest.mark.parametrize(
    ("flags", "expected"), [("fpu avx512f avx512_bf16", True), ("fpu amx_bf16", True), ("fpu avx512f avx2", False)]
)
def test_bfloat16_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, expected: bool) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    assert cpu.has_fast_bfloat16.__wrapped__() is expected


def test_no_cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "nothing")
    assert cpu.has_fast_bfloat16.__wrapped__() is False
