"""ESPnet1's recipe files are translated to Tympan's options with the same meaning."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tympan.bin.main import cli
from tympan.config import parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.config.espnet1 import translation_of
from tympan.config.lm import LmTrainConfig
from tympan.config.yaml_text import parse_yaml
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.models.mask_ctc import MaskCtcModel
from tympan.training.schedulers import build_scheduler

KERNEL15 = """\
elayers: 12
eunits: 2048
dlayers: 6
dunits: 2048
adim: 256
aheads: 4
mtlalpha: 0.3
lsm-weight: 0.1
batch-size: 32
maxlen-in: 512
maxlen-out: 150
sortagrad: 0
opt: noam
accum-grad: 2
grad-clip: 5
patience: 0
epochs: 50
dropout-rate: 0.1
backend: pytorch
model-module: "espnet.nets.pytorch_backend.e2e_asr_conformer:E2E"
transformer-input-layer: conv2d
transformer-lr: 1.0
transformer-warmup-steps: 25000
transformer-attn-dropout-rate: 0.0
transformer-length-normalized-loss: false
transformer-init: pytorch
transformer-encoder-pos-enc-layer-type: rel_pos
transformer-encoder-selfattn-layer-type: rel_selfattn
transformer-encoder-activation-type: swish
rel-pos-type: latest
macaron-style: true
use-cnn-module: true
cnn-module-kernel: 15
"""
RNN = """\
etype: vggblstm
elayers: 3
eunits: 1024
eprojs: 1024
subsample: "1_2_2_1_1"
dlayers: 2
dunits: 1024
atype: location
adim: 1024
aconv-chans: 10
aconv-filts: 100
mtlalpha: 0.5
batch-size: 30
maxlen-in: 800
maxlen-out: 150
opt: adadelta
epochs: 10
patience: 0
sampling-probability: 0.0
"""
LM = "layer: 2\nunit: 650\nopt: sgd\nbatchsize: 64\nepoch: 20\npatience: 3\nmaxlen: 100\n"
DECODE = "batchsize: 0\nbeam-size: 10\npenalty: 0.0\nctc-weight: 0.5\nlm-weight: 0.7\nngram-weight: 0.3\n"
SPECAUG = """\
process:
  - type: "time_warp"
    max_time_warp: 5
    inplace: true
    mode: "PIL"
  - type: "freq_mask"
    F: 30
    n_mask: 2
    inplace: true
    replace_with_zero: false
  - type: "time_mask"
    T: 40
    n_mask: 2
    inplace: true
    replace_with_zero: false
"""


def translated(text: str) -> dict[str, Any]:
    translation = translation_of(parse_yaml(text, "old.yaml"))
    assert translation is not None
    value: dict[str, Any] = translation.document.value
    return value


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_aishell_conformer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--config", write(tmp_path / "train.yaml", KERNEL15), "--config", write(tmp_path / "s.yaml", SPECAUG)]
    config = parse_training(AsrTrainConfig, argv, prog="t")
    encoder, decoder = config.encoder_conf, config.decoder_conf
    assert (config.encoder, encoder["num_blocks"], encoder["linear_units"], encoder["output_size"]) == (
        "conformer",
        12,
        2048,
        256,
    )
    assert (encoder["attention_heads"], encoder["cnn_module_kernel"], encoder["rel_pos_type"]) == (4, 15, "latest")
    assert encoder["macaron_style"]
    assert encoder["use_cnn_module"]
    assert encoder["selfattention_layer_type"] == "rel_selfattn"
    assert (encoder["dropout_rate"], encoder["positional_dropout_rate"], encoder["attention_dropout_rate"]) == (
        0.1,
        0.1,
        0.0,
    )
    assert (config.decoder, decoder["num_blocks"], decoder["linear_units"], decoder["attention_heads"]) == (
        "transformer",
        6,
        2048,
        4,
    )
    assert (config.model_conf["ctc_weight"], config.model_conf["lsm_weight"]) == (0.3, 0.1)
    assert config.model_conf["length_normalized_loss"] is False
    assert (config.input_size, config.frontend, config.normalize, config.token_type) == (83, None, None, "char")
    assert (config.batch_type, config.batch_size, config.fold_length) == ("folded", 32, [512, 150])
    assert config.batch_size_per_device
    assert (config.max_epoch, config.patience, config.accum_grad, config.grad_clip, config.init) == (
        50,
        None,
        2,
        5.0,
        "pytorch",
    )
    assert config.specaug_conf["freq_mask_width_range"] == [0, 30]
    assert config.specaug_conf["time_mask_width_range"] == [0, 40]
    assert config.specaug_conf["time_warp_window"] == 5
    assert config.specaug_conf["replace_with_zero"] is False
    notes = capsys.readouterr().err
    for line, key in enumerate(KERNEL15.splitlines(), start=1):
        name = key.partition(":")[0]
        told_elsewhere = name in ("maxlen-in", "maxlen-out", "transformer-lr", "transformer-warmup-steps")
        assert told_elsewhere or f"train.yaml:{line}: {name}" in notes


def test_noam_is_the_same_rate_at_every_step() -> None:
    torch = pytest.importorskip("torch")
    from tympan.config.choices import OPTIMIZERS, SCHEDULERS

    found = translated(KERNEL15.replace("transformer-lr: 1.0", "transformer-lr: 5.0"))
    optimizer = OPTIMIZERS.build(found["optim"], found["optim_conf"], [torch.nn.Parameter(torch.zeros(1))])
    scheduler = SCHEDULERS.build(found["scheduler"], {**found["scheduler_conf"], "warmup_steps": 7}, optimizer)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.98)
    assert optimizer.param_groups[0]["eps"] == 1e-9
    for step in range(1, 30):
        expected = 5.0 * 256**-0.5 * min(step**-0.5, step * 7**-1.5)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_notes_come_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from tympan.config.parse import read_layer
    from tympan.config.read import RULES

    argv = ["--config", write(tmp_path / "lm.yaml", LM)]
    parse_training(LmTrainConfig, argv, prog="t")
    assert capsys.readouterr().err.count("layer: 2 became") == 1
    read_layer(tmp_path / "lm.yaml", RULES)
    for variable, value in (("RANK", "1"), ("TYMPAN_LAUNCH_NOTES", str(tmp_path))):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            parse_training(LmTrainConfig, argv, prog="t")
    assert capsys.readouterr().err == "", "neither by reading it again nor by the other processes of a run"


def test_language_model(tmp_path: Path) -> None:
    config = parse_training(LmTrainConfig, ["--config", write(tmp_path / "lm.yaml", LM)], prog="t")
    assert (config.lm, config.lm_conf["nlayers"], config.lm_conf["unit"], config.lm_conf["rnn_type"]) == (
        "seq_rnn",
        2,
        650,
        "lstm",
    )
    assert config.lm_conf["dropout_rate"] == 0.5
    assert (config.optim, config.optim_conf["lr"], config.grad_clip) == ("sgd", 1.0, 5.0)
    assert (config.batch_size, config.batch_type, config.fold_length) == (64, "folded", [100])
    assert (config.max_epoch, config.patience, config.batch_size_per_device) == (20, 3, True)


def test_decoding() -> None:
    expected = {"beam_size": 10, "ctc_weight": 0.5, "lm_weight": 0.7, "ngram_weight": 0.3, "penalty": 0.0}
    assert translated(DECODE) == {**expected, "ngram_scorer": "part"}


def test_defaults_that_espnet1_does_not_write_are_kept() -> None:
    found = translated("elayers: 2\nbatch-bins: 100\nmodel-module: x.e2e_asr_transformer:E2E\ndropout-rate: 0.2\n")
    assert found["model_conf"]["length_normalized_loss"] is True
    assert found["encoder_conf"]["output_size"] == 320
    assert found["encoder_conf"]["attention_dropout_rate"] == 0.2
    assert (found["batch_type"], found["batch_bins"]) == ("numel", 100)
    assert "batch_size_per_device" not in found
    assert found["patience"] == 3


def test_the_aishell_rnn(capsys: pytest.CaptureFixture[str]) -> None:
    found = translated(RNN)
    assert (found["encoder"], found["decoder"], found["init"]) == ("vgg_rnn", "rnn", "chainer")
    assert found["encoder_conf"] == {
        "rnn_type": "lstm", "bidirectional": True, "use_projection": False,
        "num_layers": 3, "hidden_size": 1024, "output_size": 1024, "dropout": 0.0,
    }  # fmt: skip
    decoder = found["decoder_conf"]
    assert (decoder["num_layers"], decoder["hidden_size"], decoder["rnn_type"]) == (2, 1024, "lstm")
    assert decoder["att_conf"] == {"atype": "location", "adim": 1024, "aconv_chans": 10, "aconv_filts": 100}
    assert (found["model_conf"]["ctc_weight"], found["optim"], found["batch_size"]) == (0.5, "adadelta", 30)
    assert (found["fold_length"], found["max_epoch"], found["patience"]) == ([800, 150], 10, None)


@pytest.mark.parametrize(
    ("etype", "encoder", "conf"),
    [
        ("blstmp", "rnn", {"bidirectional": True, "use_projection": True, "subsample": [2, 2, 1]}),
        ("gru", "rnn", {"bidirectional": False, "use_projection": False, "subsample": [1, 1, 1]}),
        ("vgggrup", "vgg_rnn", {"bidirectional": False, "use_projection": True}),
    ],
)
def test_encoders_of_the_rnn(etype: str, encoder: str, conf: dict[str, Any]) -> None:
    found = translated(RNN.replace("etype: vggblstm", f"etype: {etype}"))
    assert found["encoder"] == encoder
    assert {key: found["encoder_conf"].get(key) for key in ("bidirectional", "use_projection", "subsample")} == {
        "subsample": None,
        **conf,
    }
    assert found["encoder_conf"]["rnn_type"] == ("gru" if "gru" in etype else "lstm")


def test_the_translated_rnn_learns(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tympan.models.build import build_asr_model

    small = RNN.replace("1024", "8").replace("elayers: 3", "elayers: 1")
    tokens = ["<blank>", "<unk>", "a", "b", "<sos/eos>"]
    config = parse_training(AsrTrainConfig, ["--config", write(tmp_path / "rnn.yaml", small)], prog="t")
    model = build_asr_model(replace(config, token_list=tokens))
    lengths = torch.tensor([40, 32])
    loss = model(
        speech=torch.randn(2, 40, 83), speech_lengths=lengths,
        text=torch.tensor([[2, 3], [3, -1]]), text_lengths=torch.tensor([2, 1]),
    )  # fmt: skip
    loss.value.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_command_line_still_wins(tmp_path: Path) -> None:
    argv = ["--config", write(tmp_path / "a.yaml", KERNEL15), "--encoder_conf", "num_blocks=2", "--batch_size", "4"]
    config = parse_training(AsrTrainConfig, argv, prog="t")
    assert (config.encoder_conf["num_blocks"], config.encoder_conf["linear_units"], config.batch_size) == (2, 2048, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("elayrs: 3\nadim: 4\nmodel-module: x.e2e_asr_conformer:E2E\n", "old.yaml:1: 'elayrs' is not an ESPnet1 key"),
        ("elayrs: 3\nadim: 4\nmodel-module: x.e2e_asr_conformer:E2E\n", "Did you mean 'elayers'?"),
        (
            KERNEL15.replace("sortagrad: 0", "sortagrad: -1"),
            "old.yaml:12: sortagrad: -1 has no translation; only the value 0 has",
        ),
        (KERNEL15.replace("opt: noam", "opt: sgd"), "opt: noam, adam and adadelta are translated, not 'sgd'"),
        (
            KERNEL15 + "transformer-decoder-selfattn-layer-type: light-dynamicconv2d\nwshare: 4\n",
            "light-dynamicconv2d is not supported; the convolutions are lightconv, lightconv2d,",
        ),
        (
            KERNEL15 + "transformer-decoder-selfattn-layer-type: lightconv\nldconv-decoder-kernel-length: 3_5\n",
            "ldconv-decoder-kernel-length: 3_5 has 2 kernels for 6 layers",
        ),
        ("beam-size: 10\nsearch-type: alds\nu-max: 3\n", "search-type: must be one of default, tsd, alsd, nsc, maes"),
        (LM + "schedulers: lr=step\n", "schedulers: lr=cosine and lr=noam are translated, not 'lr=step'"),
        ("elayers: 3\netype: vggblst\n", "old.yaml:2: etype: vggblst is not an encoder of ESPnet1"),
        ("elayers: 3\nsubsample: 2,1\n", "old.yaml:2: subsample: 2,1 must be numbers joined by '_'"),
        (RNN.replace("eprojs: 1024", "eproj: 1024"), "'eproj' is not an ESPnet1 key that Tympan can translate"),
        (SPECAUG.replace("time_warp", "delta"), "the processing step 'delta' has no translation"),
    ],
)
def test_what_has_no_translation_is_a_mistake(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        translated(text)
    assert message in str(caught.value)


def test_a_model_without_translation_is_one_sentence() -> None:
    text = "elayers: 3\nmodel-module: espnet.nets.pytorch_backend.e2e_asr_mulenc:E2E\nsome-key: 3\nother-key: 4\n"
    with pytest.raises(UserError) as caught:
        translated(text)
    assert str(caught.value) == (
        "old.yaml:2: only ESPnet1's Conformer, Transformer, RNN and transducer are translated, not the multi-encoder "
        "model"
    )


TRANSFORMER_LM = """\
model-module: transformer
att-unit: 8
embed-unit: 2
head: 2
layer: 1
pos-enc: none
unit: 10
batchsize: 2
maxlen: 40
opt: adam
schedulers: lr=cosine
dropout-rate: 0.0
epoch: 2
gradclip: 1.0
lr: 1e-4
lr-cosine-total: 300
lr-cosine-warmup: 20
patience: 0
sortagrad: 0
"""


def test_a_transformer_language_model_is_no_recogniser(tmp_path: Path) -> None:
    config = parse_training(LmTrainConfig, ["--config", write(tmp_path / "lm.yaml", TRANSFORMER_LM)], prog="t")
    assert config.lm == "transformer"
    assert (config.lm_conf["att_unit"], config.lm_conf["layer"], config.lm_conf["pos_enc"]) == (8, 1, None)
    assert (config.optim, config.optim_conf["lr"], config.max_epoch) == ("adam", 1e-4, 2)


def test_rates_of_a_cosine_are_those_of_espnet1(tmp_path: Path) -> None:
    """0.5 (cos(pi (step - warmup) / total) + 1), from the end of the warm-up on."""
    config = parse_training(LmTrainConfig, ["--config", write(tmp_path / "lm.yaml", TRANSFORMER_LM)], prog="t")
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=config.optim_conf["lr"])
    scheduler = build_scheduler(str(config.scheduler), config.scheduler_conf, optimizer)
    for step in range(300):
        if step >= 20:
            expected = 1e-4 * 0.5 * (math.cos(math.pi * (step - 20) / 300) + 1)
            assert optimizer.param_groups[0]["lr"] == pytest.approx(expected, rel=1e-6), step
        optimizer.step()
        scheduler.step()


def test_no_preprocessing_is_no_specaug() -> None:
    assert translated("process:\n  - type: identity\n") == {"specaug": None}


def test_stochastic_depth_of_a_transformer(tmp_path: Path) -> None:
    """A Conformer without convolution and macaron computes what a Transformer does."""
    sizes = "batch-size: 4\nelayers: 2\neunits: 32\ndlayers: 1\ndunits: 32\nadim: 16\naheads: 2\n"
    text = sizes + 'model-module: "espnet.nets.pytorch_backend.e2e_asr_transformer:E2E"\n'
    argv = ["--token_list", "[<blank>, <unk>, a, <sos/eos>]"]
    plain = parse_training(AsrTrainConfig, ["--config", write(tmp_path / "a", text), *argv], prog="t")
    with_depth = write(tmp_path / "b", text + "stochastic-depth-rate: 0.3\n")
    deep = parse_training(AsrTrainConfig, ["--config", with_depth, *argv], prog="t")
    assert (plain.encoder, deep.encoder) == ("transformer", "conformer")
    assert deep.encoder_conf["stochastic_depth_rate"] == 0.3
    encoders = [build_asr_model(config).encoder.eval() for config in (plain, deep)]
    state = {
        name.replace("norm1", "norm_mha").replace("norm2", "norm_ff"): item
        for name, item in encoders[0].state_dict().items()
    }
    encoders[1].load_state_dict(state)
    features, lengths = torch.randn(2, 40, 83), torch.tensor([40, 31])
    outputs = [encoder(features, lengths) for encoder in encoders]
    torch.testing.assert_close(outputs[0].out, outputs[1].out)


TRANSFORMER = "elayers: 2\neunits: 32\ndlayers: 2\ndunits: 32\nadim: 16\naheads: 2\nbatch-size: 4\n"
TRANSFORMER += 'model-module: "espnet.nets.pytorch_backend.e2e_asr_transformer:E2E"\n'


def test_convolutions_instead_of_self_attention(tmp_path: Path) -> None:
    text = TRANSFORMER + "transformer-encoder-selfattn-layer-type: lightconv\nwshare: 2\nldconv-usebias: true\n"
    text += "transformer-decoder-selfattn-layer-type: dynamicconv2d\nldconv-decoder-kernel-length: 3-5\n"
    argv = ["--config", write(tmp_path / "a", text), "--token_list", "[<blank>, <unk>, a, <sos/eos>]"]
    config = parse_training(AsrTrainConfig, argv, prog="t")
    assert (config.encoder, config.decoder) == ("lightweight_conv", "dynamic_conv2d")
    # ESPnet1's default has twelve kernels; a smaller encoder takes the first.
    assert config.encoder_conf["conv_kernel_length"] == [21, 23]
    assert config.decoder_conf["conv_kernel_length"] == [3, 5]
    model = build_asr_model(config)
    assert model.encoder.encoders[1].self_attn.bias.shape == (16,)
    assert model.decoder.decoders[1].self_attn.linear_weight.weight.shape == (2 * 5, 16)


def test_mask_ctc(tmp_path: Path) -> None:
    text = TRANSFORMER.replace("e2e_asr_transformer", "e2e_asr_maskctc")
    argv = ["--token_list", "[<blank>, <unk>, a, <sos/eos>]"]
    config = parse_training(AsrTrainConfig, ["--config", write(tmp_path / "a", text), *argv], prog="t")
    assert (config.model, config.encoder, config.decoder) == ("maskctc", "transformer", "mlm")
    assert isinstance(build_asr_model(config), MaskCtcModel)
    text += "maskctc-use-conformer-encoder: true\nmacaron-style: true\nuse-cnn-module: true\ncnn-module-kernel: 7\n"
    config = parse_training(AsrTrainConfig, ["--config", write(tmp_path / "b", text), *argv], prog="t")
    assert (config.encoder, config.encoder_conf["cnn_module_kernel"]) == ("conformer", 7)


def test_no_decoder_layers_with_ctc_only(tmp_path: Path) -> None:
    text = TRANSFORMER.replace("dlayers: 2", "dlayers: 0") + "mtlalpha: 1.0\n"
    argv = ["--config", write(tmp_path / "a", text), "--token_list", "[<blank>, <unk>, a, <sos/eos>]"]
    assert build_asr_model(parse_training(AsrTrainConfig, argv, prog="t")).decoder is None


def test_espnet2_files_are_left_alone() -> None:
    assert translation_of(parse_yaml("encoder: conformer\nbatch_size: 3\n", "x")) is None


def test_convert_config_writes_a_file_that_means_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "old.yaml", KERNEL15), tmp_path / "new.yaml"
    assert cli(["convert_config", old, str(new)]) == 0
    assert "elayers: 12 became encoder_conf.num_blocks: 12" in capsys.readouterr().err
    assert cli(["convert_config", old]) == 0
    assert capsys.readouterr().out == new.read_text(encoding="utf-8")
    first = parse_training(AsrTrainConfig, ["--config", old], prog="t")
    assert parse_training(AsrTrainConfig, ["--config", str(new)], prog="t") == first


def test_convert_config_refuses_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["convert_config", write(tmp_path / "a.yaml", "encoder: conformer\n")]) == 2
    assert "not an ESPnet1 configuration" in capsys.readouterr().err


def test_what_espnet1s_language_models_imply() -> None:
    """The defaults of ESPnet1's lm_train.py and of its two models, where ours differ."""
    found = translated("model-module: transformer\nlayer: 2\nunit: 8\nbatchsize: 4\nmaxlen: 40\n")
    assert (found["lm_conf"]["pos_enc"], found["lm_conf"]["attention_dropout_rate"]) == ("sinusoidal", 0.0)
    assert "init" not in found
    found = translated("layer: 2\nunit: 8\nbatchsize: 4\nopt: sgd\n")
    assert (found["init"], found["model_conf"]) == ("uniform", {"length_normalized_loss": False})
    with pytest.raises(UserError, match="tie-weights: true has no translation"):
        translated("model-module: transformer\nlayer: 2\nunit: 8\ntie-weights: true\n")


def test_what_espnet1s_decoding_and_specaug_imply() -> None:
    found = translated("beam-size: 10\n")
    assert found == {
        "beam_size": 10, "ctc_weight": 0.0, "lm_weight": 0.1, "ngram_scorer": "part", "ngram_weight": 0.1
    }  # fmt: skip
    transducer = translated("beam-size: 10\nsearch-type: default\n")
    assert {key for key in transducer if "weight" in key} == {"lm_weight"}
    conf = translated("process: [{type: time_mask}, {type: freq_mask}]\n")["specaug_conf"]
    assert (conf["time_mask_width_range"], conf["freq_mask_width_range"]) == ([0, 40], [0, 30])
    assert conf["replace_with_zero"] is True


def test_subsampling_of_the_input_is_an_error() -> None:
    with pytest.raises(UserError, match="subsample: 2_2_1 drops frames of the input, which has no translation"):
        translated("etype: blstmp\nelayers: 2\nsubsample: 2_2_1\nbatch-size: 3\n")
    assert translated("etype: vggblstm\nelayers: 2\nsubsample: 2_2_1\nbatch-size: 3\n")["encoder"] == "vgg_rnn"
