"""`tympan lm_calc_perplexity` as a user types it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml

from tympan.bin.lm_calc_perplexity import main
from tympan.errors import UserError


def arguments(golden: Path, tmp_path: Path, lines: list[str]) -> list[str]:
    folder = golden / "espnet2_lm" / "seq_rnn_lstm"
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [
        *("--output_dir", str(tmp_path / "out")),
        *("--data_path_and_name_and_type", f"{text},text,text"),
        *("--train_config", str(folder / "config.yaml")),
        *("--model_file", str(folder / "model.pth")),
    ]


@pytest.mark.parametrize("batch_size", ["1", "2", "32"])
def test_perplexity_of_espnet2s_model(golden: Path, tmp_path: Path, batch_size: str) -> None:
    folder = golden / "espnet2_lm" / "seq_rnn_lstm"
    tokens = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))["token_list"]
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    lines = [f"utt{i} {''.join(tokens[t] for t in sequence)}" for i, sequence in enumerate(expected["sequences"])]
    assert main([*arguments(golden, tmp_path, lines), "--batch_size", batch_size, "--log_base", "10"]) == 0
    out = tmp_path / "out"
    assert float((out / "ppl").read_text()) == pytest.approx(math.exp(expected["loss"]), rel=1e-4)
    assert (out / "utt2ntokens").read_text().split("\n")[:3] == ["utt0 13", "utt1 8", "utt2 2"]
    assert [line.split()[0] for line in (out / "utt2ppl").read_text().splitlines()] == ["utt0", "utt1", "utt2"]
    assert (out / "base").read_text() == "10.0\n"


def test_tokens_outside_the_vocabulary_are_counted(
    golden: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(arguments(golden, tmp_path, ["utt0 一Z丁Q", "utt1 一"])) == 0
    assert "2 of 7 tokens are not in the vocabulary" in caplog.text


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--batch_size", "0"], "--batch_size: must be at least 1"),
        (["--log_base", "1"], "--log_base: must be positive and not 1"),
        (["--model_file", "nowhere.pth"], "nowhere.pth: no such weights file"),
    ],
)
def test_mistakes_are_named(golden: Path, tmp_path: Path, extra: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        main([*arguments(golden, tmp_path, ["utt0 一"]), *extra])


def test_weights_of_another_model(golden: Path, tmp_path: Path) -> None:
    other = golden / "espnet2_lm" / "transformer" / "model.pth"
    with pytest.raises(UserError, match="these weights do not match the model in"):
        main([*arguments(golden, tmp_path, ["utt0 一"]), "--model_file", str(other)])


def test_the_models_cleaner_is_applied(golden: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((golden / "espnet2_lm" / "seq_rnn_lstm" / "config.yaml").read_text(encoding="utf-8"))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config | {"cleaner": "remove_spaces"}, allow_unicode=True))
    perplexities = []
    for line, extra in (("utt0 一丁", []), ("utt0 一 丁", ["--train_config", str(tmp_path / "config.yaml")])):
        assert main([*arguments(golden, tmp_path, [line]), *extra]) == 0
        perplexities.append((tmp_path / "out" / "ppl").read_text())
    assert perplexities[0] == perplexities[1]
