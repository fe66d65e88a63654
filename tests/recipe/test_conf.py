"""The settings in egs/ parse, ESPnet1's files equal their ESPnet2 versions, and the values match the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tympan.config import dump_config, parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.recipe.recipe import parse_options
from tympan.recipe.shipped import with_shipped_conf

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "egs" / "aishell" / "asr1" / "conf"
PACKAGED = ROOT / "src" / "tympan" / "recipe" / "conf"


def resolved(schema: type[Any], *files: Path) -> str:
    arguments = [word for file in files for word in ("--config", str(file))]
    return dump_config(parse_training(schema, arguments, prog="test"))


@pytest.mark.parametrize(
    ("schema", "espnet1", "espnet2"),
    [
        (AsrTrainConfig, "tuning/train_pytorch_conformer_kernel15.yaml", "train_asr_conformer_kernel15.yaml"),
        (AsrTrainConfig, "tuning/train_pytorch_conformer_kernel31.yaml", "train_asr_conformer_kernel31.yaml"),
        (AsrTrainConfig, "tuning/train_pytorch_transformer.yaml", "train_asr_transformer.yaml"),
        (AsrTrainConfig, "tuning/train_rnn.yaml", "train_asr_rnn.yaml"),
        (AsrTrainConfig, "specaug.yaml", "specaug.yaml"),
        (LmTrainConfig, "lm.yaml", "train_lm.yaml"),
    ],
)
def test_espnet1_and_espnet2_files_are_equal(schema: type[Any], espnet1: str, espnet2: str) -> None:
    # The SpecAugment file is the second of two.
    before = [CONF / "train.yaml"] if espnet1 == "specaug.yaml" else []
    assert resolved(schema, *before, CONF / espnet1) == resolved(schema, *before, CONF / "espnet2" / espnet2)


def test_conformer_is_the_published_one() -> None:
    config = yaml.safe_load(resolved(AsrTrainConfig, CONF / "train.yaml", CONF / "specaug.yaml"))
    encoder, decoder = config["encoder_conf"], config["decoder_conf"]
    assert (config["encoder"], encoder["num_blocks"], encoder["output_size"]) == ("conformer", 12, 256)
    assert (encoder["linear_units"], encoder["attention_heads"], encoder["cnn_module_kernel"]) == (2048, 4, 15)
    assert (encoder["rel_pos_type"], encoder["macaron_style"], encoder["input_layer"]) == ("latest", True, "conv2d")
    assert (decoder["num_blocks"], decoder["linear_units"]) == (6, 2048)
    assert (config["model_conf"]["ctc_weight"], config["model_conf"]["lsm_weight"]) == (0.3, 0.1)
    assert (config["batch_size"], config["accum_grad"], config["max_epoch"]) == (32, 2, 50)
    assert (config["scheduler"], config["scheduler_conf"]["model_size"]) == ("noamlr", 256)
    assert config["scheduler_conf"]["warmup_steps"] == 25000
    assert (config["input_size"], config["batch_size_per_device"]) == (83, True)
    spec = config["specaug_conf"]
    assert (spec["time_warp_window"], spec["freq_mask_width_range"], spec["time_mask_width_range"]) == (
        5,
        [0, 30],
        [0, 40],
    )


@pytest.mark.parametrize(
    "path",
    [
        *sorted(path for path in CONF.rglob("train*.yaml") if path.name != "train_lm.yaml"),
        *sorted((ROOT / "egs" / "an4" / "asr1" / "conf").glob("train*.yaml")),
        *sorted(PACKAGED.rglob("train.yaml")),
    ],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_recognizer_configurations_parse(path: Path) -> None:
    resolved(AsrTrainConfig, path)


@pytest.mark.parametrize(
    "path", [*CONF.rglob("lm.yaml"), *PACKAGED.rglob("lm.yaml")], ids=lambda path: str(path.relative_to(ROOT))
)
def test_language_models_parse(path: Path) -> None:
    resolved(LmTrainConfig, path)


@pytest.mark.parametrize("corpus", ["aishell", "an4"])
def test_a_directory_without_conf_uses_the_recipes_own(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = parse_options([corpus, "--train_config", "conf/mine.yaml"])
    options = with_shipped_conf(given)
    assert Path(options.decode_config).samefile(ROOT / "egs" / corpus / "asr1" / "conf" / "decode.yaml")
    assert Path(options.fbank_config).is_file()
    assert options.train_config == "conf/mine.yaml"
    (tmp_path / "conf").mkdir()
    assert with_shipped_conf(given) == given


def test_results_mark_published_numbers() -> None:
    text = (CONF.parent / "RESULTS.md").read_text(encoding="utf-8")
    assert "as ESPnet published them; not run here" in text
    for cell in ("| 4.6 | 5.1 |", "| 4.7 | 5.2 |", "| 5.2 | 5.8 |", "| 6.0 | 6.7 |", "| 6.0 | 6.6 |", "| 6.5 | 7.4 |"):
        assert cell in text
