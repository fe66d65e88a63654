"""tokenize_text, spm_train, make_dict and plan_batches as a user runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.bin import make_dict, plan_batches, spm_train, tokenize_text
from tympan.bin.main import run

TEXT = "u1 今天 天气\nu2 天气 好 <noise>\n"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    (tmp_path / "nls").write_text("<noise>\n")
    return tmp_path / "text"


def test_tokens_of_each_line(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--input", str(text), "--field", "2-", "--non_linguistic_symbols", str(text.parent / "nls")]
    assert run(tokenize_text.main, options) == 0
    assert capsys.readouterr().out == "今 天 <space> 天 气\n天 气 <space> 好 <space> <noise>\n"
    short = ["-i", str(text), "-f", "2-", "-t", "word", "--cleaner", "remove_spaces"]
    assert run(tokenize_text.main, short) == 0
    assert capsys.readouterr().out == "今天天气\n天气好<noise>\n"


def test_token_list_as_espnet2s_recipe_makes_it(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = text.parent / "tokens.txt"
    symbols = [f"--add_symbol={symbol}" for symbol in ("<blank>:0", "<unk>:1", "<sos/eos>:-1")]
    options = ["--input", str(text), "--output", str(output), "--field=2-", "--write_vocabulary=true", *symbols]
    assert run(tokenize_text.main, [*options, "--cleaner=remove_spaces", "--cutoff=1"]) == 0
    # < > and the letters of "noise" are single characters here, each of them once, except for the spaces of the list.
    assert output.read_text().split() == ["<blank>", "<unk>", "天", "气", "<sos/eos>"]
    assert "OOV rate 64.29%: 9 of 14 tokens, 9 distinct" in capsys.readouterr().err


def test_the_lines_of_espnet2s_recipe(text: Path) -> None:
    """asr.sh passes `none` for missing values, and symbols that are never split with their position."""
    output = text.parent / "tokens.txt"
    (text.parent / "text").write_text("u1 ab<sc>a\n")
    line = f"--token_type char --input {text} --output {output} --non_linguistic_symbols none --field 2- --cleaner none"
    line += " --g2p none --log_level info --write_vocabulary true --add_symbol <blank>:0 --add_symbol <unk>:1"
    line += " --add_symbol <sos/eos>:-1 --add_nonsplit_symbol <sc>:2"
    assert run(tokenize_text.main, line.split()) == 0
    assert output.read_text().split() == ["<blank>", "<unk>", "<sc>", "a", "b", "<sos/eos>"]


def test_oov_against_a_list(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text.parent / "tokens").write_text("<blank>\n<unk>\n今天\n天气\n<noise>\n<sos/eos>\n")
    options = ["--input", str(text), "--field=2-", "--token_type=word", f"--token_list={text.parent}/tokens"]
    assert run(tokenize_text.main, options) == 0
    assert capsys.readouterr().err == "OOV rate 20.00%: 1 of 5 tokens, 1 distinct: 好 (1)\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--input", "none"], "none: no such text file"),
        (["--input", "{text}", "--field", "0-"], "--field: expected columns counted from 1"),
        (["--input", "{text}", "--token_type", "bpe"], "needs --bpemodel"),
        (["--input", "{text}", "--cleaner", "lowercaes"], "Did you mean 'lowercase'?"),
    ],
)
def test_mistakes_are_one_message(
    text: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tokenize_text.main, [option.format(text=text) for option in options]) == 2
    assert message in capsys.readouterr().err


def test_dictionary_of_espnet1(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = text.parent
    (folder / "dev").write_text("u3 天地\n", encoding="utf-8")
    options = [str(text), f"--output={folder}/units.txt", f"--token_list={folder}/tokens.txt", f"--check={folder}/dev"]
    assert run(make_dict.main, [*options, f"--non_linguistic_symbols={folder}/nls", "--cleaner=remove_spaces"]) == 0
    assert (folder / "units.txt").read_text() == "<unk> 1\n<noise> 2\n今 3\n天 4\n好 5\n气 6\n"
    listed = (folder / "tokens.txt").read_text().split()
    assert listed == ["<blank>", "<unk>", "<noise>", "今", "天", "好", "气", "<sos/eos>"]
    assert f"{folder}/dev: OOV rate 50.00%: 1 of 2 tokens" in capsys.readouterr().out


def test_pieces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("".join(f"u{n} the drum of the ear hears\n" for n in range(20)))
    prefix = tmp_path / "bpe" / "m"
    options = [f"--input={tmp_path}/text", "--field=2-", f"--model_prefix={prefix}", "--vocab_size=22"]
    assert run(spm_train.main, [*options, "--model_type=bpe"]) == 0
    tokens = (tmp_path / "bpe" / "m.tokens.txt").read_text().split()
    assert (tokens[:2], tokens[-1], len(tokens)) == (["<blank>", "<unk>"], "<sos/eos>", 22)
    capsys.readouterr()
    used = [f"--input={tmp_path}/text", "--field=2-", "--token_type=bpe", f"--bpemodel={prefix}.model"]
    assert run(tokenize_text.main, [*used, f"--token_list={prefix}.tokens.txt"]) == 0
    captured = capsys.readouterr()
    assert "OOV rate 0.00%" in captured.err
    assert "".join(captured.out.splitlines()[0].split()) == "▁the▁drum▁of▁the▁ear▁hears"


def test_a_plan_from_shape_files_and_from_recordings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lengths = [16000, 32000, 48000, 8000]
    for number, frames in enumerate(lengths):
        soundfile.write(tmp_path / f"{number}.wav", np.zeros(frames), 16000)
    (tmp_path / "wav.scp").write_text("".join(f"u{number} {number}.wav\n" for number in range(4)))
    (tmp_path / "speech_shape").write_text("".join(f"u{n} {frames}\n" for n, frames in enumerate(lengths)))
    batches = ["--batch_type=length", "--batch_bins=60000", "--show=2"]
    assert run(plan_batches.main, [f"--shape_file={tmp_path}/speech_shape", "--fs=16000", *batches]) == 0
    from_shapes = capsys.readouterr().out
    data = f"--data_path_and_name_and_type={tmp_path}/wav.scp,speech,sound"
    assert run(plan_batches.main, [data, *batches]) == 0
    assert capsys.readouterr().out == from_shapes
    assert from_shapes.startswith("2 batches of 4 utterances\nutterances per batch: 1 to 3, 2.0 on average\n")
    assert "3.0 to 3.5 s, 3.2 s on average per batch" in from_shapes
    assert "48,000 (0.0%)  3.0 s" in from_shapes
    assert run(plan_batches.main, []) == 2
    assert "--shape_file" in capsys.readouterr().err
