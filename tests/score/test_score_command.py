"""`tympan score` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tympan.bin.main import cli


def test_table_and_files(golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = golden / "sclite" / "set1"
    command = ["score", str(folder / "ref.trn"), str(folder / "hyp.trn"), "--output_dir", str(tmp_path / "score")]
    assert cli(command) == 0
    printed = capsys.readouterr().out
    assert "Sum/Avg" in printed
    assert "token error rate 46.06 %" in printed
    saved = json.loads((tmp_path / "score" / "score.json").read_text())
    assert (saved["words"], saved["errors"]) == (254, 117)
    assert "|hyp.trn|52|254|68.1|17.7|14.2|14.2|46.1|88.5|" in (tmp_path / "score" / "RESULTS.md").read_text()
    again = ["score", str(tmp_path / "score" / "ref.trn"), str(tmp_path / "score" / "hyp.trn")]
    assert cli(again) == 0
    assert "token error rate 46.06 %" in capsys.readouterr().out


def test_characters_of_kaldi_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("a 今天 天气\nb HELLO\n", encoding="utf-8")
    (tmp_path / "hyp").write_text("b hallo\na 今天天汽\n", encoding="utf-8")
    files = [str(tmp_path / "text"), str(tmp_path / "hyp"), "--unit", "char"]
    assert cli(["score", *files]) == 0
    assert "3 errors in 10" in capsys.readouterr().out
    assert cli(["score", *files, "--remove_space", "true", "--compare", str(tmp_path / "text")]) == 0
    printed = capsys.readouterr().out
    assert "2 errors in 9" in printed
    assert "0.00 %, -22.22 points" in printed


def test_mistakes_are_reported_with_hints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("a x\n")
    assert cli(["score", str(tmp_path / "text"), str(tmp_path / "nothing")]) == 2
    assert "nothing: no such file" in capsys.readouterr().err
    assert cli(["score", str(tmp_path / "text"), str(tmp_path / "text"), "--unit", "chars"]) == 2
    assert "char" in capsys.readouterr().err


def test_results_page_rounds_as_the_table_does(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(f"s-a {' '.join(['x'] * 173 + ['y'] * 227)}\n")  # 43.25 % of 400
    (tmp_path / "hyp").write_text(f"s-a {' '.join(['z'] * 173 + ['y'] * 227)}\n")
    assert cli(["score", str(tmp_path / "text"), str(tmp_path / "hyp"), "--output_dir", str(tmp_path / "score")]) == 0
    assert " 43.3 " in (tmp_path / "score" / "result.txt").read_text()
    assert "|43.3|" in (tmp_path / "score" / "RESULTS.md").read_text()


def test_what_is_read_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {"ref.trn": "a b\t(s-1)\nc\t(s-2)\n", "heard.trn": "a\t(s-1)\n", "other.trn": "a b\t(s-1)\nc\t(s-2)\n"}
    for name, text in texts.items():
        Path(name).write_text(text)
    command = ["score", "ref.trn", "heard.trn", "--sclite_compat", "true", "--output_dir", str(tmp_path)]
    assert cli(command) == 2
    message = f"{tmp_path}/ref.trn: this input file would be overwritten; choose another --output_dir"
    assert message in capsys.readouterr().err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == texts
    assert cli(["score", "other.trn", "heard.trn", "--output_dir", "out"]) == 0
    assert cli(["score", "other.trn", "heard.trn", "--compare", "out/hyp.trn", "--output_dir", "out"]) == 2
    assert "out/hyp.trn: this input file would be overwritten" in capsys.readouterr().err
    assert cli(["report", "ref.trn", "heard.trn", "--output", "heard.trn"]) == 2
    assert "choose another --output" in capsys.readouterr().err


def test_results_are_named_by_the_decode_and_its_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "exp/decode_test", "exp/decode_test/1best_recog"):
        Path(folder).mkdir(parents=True)
        Path(folder, "text").write_text("a x y\nb z\n")
    for hyp, name in {"exp/decode_test/text": "decode_test", "data/../data/text": "data"}.items():
        assert cli(["score", "data/text", hyp, "--output_dir", "out"]) == 0
        page = Path("out/RESULTS.md").read_text()
        assert page.startswith("## WER\n\n|dataset|")
        assert f"\n|{name}|2|3|" in page
        assert json.loads(Path("out/score.json").read_text())["name"] == name
    hyp = "exp/decode_test/1best_recog/text"
    assert cli(["score", "data/text", hyp, "--unit", "char", "--output_dir", "out"]) == 0
    assert Path("out/RESULTS.md").read_text().startswith("## CER\n")
    assert "\n|decode_test/1best_recog|" in Path("out/RESULTS.md").read_text()


def test_the_comparison_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"ref": "x y", "a": "x z", "b": "x y"}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "text").write_text("".join(f"u{n} {text}\n" for n in range(20)))
    ref, first, second = (str(tmp_path / name / "text") for name in texts)
    assert cli(["score", ref, first, "--compare", second, "--output_dir", str(tmp_path / "out")]) == 0
    told = "-50.00 points (-50.00 to -50.00), p = 0.0001"
    assert f"{second}: error rate 0.00 %, {told}" in capsys.readouterr().out
    page = (tmp_path / "out" / "RESULTS.md").read_text()
    assert "\n|a|20|40|50.0|50.0|" in page
    assert "\n|b|20|40|100.0|0.0|" in page
    assert page.endswith(f"\nb against a: {told}.\n")
    compared = json.loads((tmp_path / "out" / "score.json").read_text())["compare"]
    assert (compared["name"], compared["error_rate"], compared["difference"]) == ("b", 0.0, -50.0)
    assert compared["p_value"] == pytest.approx(1e-4, abs=1e-5)
    assert compared["interval"] == {"low": -50.0, "high": -50.0, "level": 0.95}


def test_a_text_is_the_same_in_the_trn_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["s-1 ;; x", "s-2 a / b }", "s-3 me@home (no) @x", "s-4", "s-5 ;", "s-6 x"]
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    (tmp_path / "hyp").write_text("\n".join([*lines[:-1], "s-6 y"]) + "\n")
    out = tmp_path / "out"
    assert cli(["score", str(tmp_path / "text"), str(tmp_path / "hyp"), "--output_dir", str(out)]) == 0
    assert caplog.text == ""
    assert cli(["score", str(out / "ref.trn"), str(out / "hyp.trn")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("1 errors in 11;") == 2


def test_text_that_a_trn_file_cannot_represent_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "text").write_text("s-1 a { b\ns-2 x\ns-3 c @ d\n")
    (tmp_path / "hyp").write_text("s-1 a b\ns-2 {x}\ns-3 c d\n")
    command = ["score", str(tmp_path / "text"), str(tmp_path / "hyp"), "--output_dir", str(tmp_path / "out")]
    assert cli(command) == 0
    assert "ref.trn: 2 utterances change when this file is read back" in caplog.text
    assert "by sclite or by Tympan: s-1, s-3." in caplog.text
    assert "hyp.trn: 1 utterances change when this file is read back" in caplog.text


def test_one_utterance_has_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ref").write_text("s-1 a b\n")
    (tmp_path / "hyp").write_text("s-1 a x\n")
    files = [str(tmp_path / "ref"), str(tmp_path / "hyp"), "--compare", str(tmp_path / "ref")]
    assert cli(["score", *files, "--output_dir", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "word error rate 50.00 %: 1 errors in 2" in printed
    assert "0.00 %, -50.00 points, p = 1.0000" in printed
    assert "|50.0|100.0||\n" in (tmp_path / "out" / "RESULTS.md").read_text()
    saved = json.loads((tmp_path / "out" / "score.json").read_text())
    assert (saved["interval"], saved["compare"]["interval"]) == (None, None)
