"""The options of st_train are ESPnet2's."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tympan.config import parse_training
from tympan.config.read import load_training_config
from tympan.config.st import StTrainConfig
from tympan.errors import UserError

ESPNET2 = Path(__file__).with_name("espnet2_print_config_st.yaml")
"""What `st_train --print_config` of espnet==202511 prints."""


def printed(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        parse_training(StTrainConfig, [*argv, "--print_config"], prog="t")
    return capsys.readouterr().out


def test_same_keys_defaults_and_order_as_espnet2(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = yaml.safe_load(ESPNET2.read_text(encoding="utf-8"))
    ours = yaml.safe_load(printed([], capsys))
    assert [key for key in ours if key in theirs] == list(theirs)
    for key, value in theirs.items():
        if isinstance(value, dict):
            assert {name: ours[key].get(name, "missing") for name in value} == value, key
        else:
            assert ours[key] == value, key


def test_printed_config_prints_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--encoder", "conformer", "--extra_asr_decoder", "transformer", "--hier_encoder", "transformer"]
    first = printed(argv, capsys)
    (tmp_path / "config.yaml").write_text(first, encoding="utf-8")
    assert printed(["--config", str(tmp_path / "config.yaml")], capsys) == first


def test_a_config_that_espnet2_wrote_loads() -> None:
    config = load_training_config(StTrainConfig, ESPNET2)
    assert config.src_text.token_type == "bpe"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--decoder", "transformer_md"], "ESPnet2's decoder 'transformer_md' is not supported"),
        (["--md_encoder", "conformer"], "it is an option of the multi-decoder"),
        (["--model_conf", "asr_weight=0.3"], "asr_weight above 0 needs data named src_text"),
        (["--train_data_path_and_name_and_type", "t,src_text,text"], "is required because the data contains src_text"),
    ],
)
def test_mistakes(argv: list[str], message: str) -> None:
    data = ["--train_data_path_and_name_and_type", "w,speech,sound", "--token_type", "char", "--src_token_type", "char"]
    with pytest.raises(UserError, match=message):
        parse_training(StTrainConfig, [*data, *argv], prog="t")
