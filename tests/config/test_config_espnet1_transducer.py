"""ESPnet1's transducers and label smoothing: translated files build models, and what differs is in a note."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tympan.config import parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.config.espnet1 import translation_of
from tympan.config.yaml_text import parse_yaml
from tympan.decode.settings import check_decode_config
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.models.transducer import TransducerModel

CONFORMER = """\
batch-size: 16
criterion: loss
early-stop-criterion: "validation/main/loss"
opt: noam
noam-lr: 5.0
noam-adim: 12
optimizer-warmup-steps: 100
epochs: 3
patience: 0
etype: custom
custom-enc-positional-encoding-type: rel_pos
custom-enc-self-attn-type: rel_self_attn
custom-enc-pw-activation-type: swish
custom-enc-input-layer: vgg2l
enc-block-arch:
  - type: conformer
    d_hidden: 12
    d_ff: 20
    heads: 2
    macaron_style: True
    use_conv_mod: True
    conv_mod_kernel: 7
    dropout-rate: 0.3
    att-dropout-rate: 0.2
enc-block-repeat: 2
dtype: lstm
dlayer: 2
dec-embed-dim: 30
dunits: 10
dropout-rate-embed-decoder: 0.2
dropout-rate-decoder: 0.1
joint-dim: 14
aux-ctc: True
aux-ctc-weight: 0.4
aux-ctc-dropout-rate: 0.1
save-interval-iters: 0
model-module: "espnet.nets.pytorch_backend.e2e_asr_transducer:E2E"
"""
RNN = """\
batch-size: 32
opt: adadelta
epochs: 2
patience: 3
etype: vggblstm
elayers: 2
eunits: 8
eprojs: 6
dropout-rate: 0.2
dtype: gru
dec-embed-dim: 5
dunits: 5
joint-dim: 7
mtlalpha: 1.0
rnnt-mode: 'rnnt'
atype: location
adim: 256
model-module: "espnet.nets.pytorch_backend.e2e_asr_transducer:E2E"
"""
TOKENS = ["--token_list", "[<blank>, <unk>, a, <sos/eos>]"]


def parsed(folder: Path, text: str) -> AsrTrainConfig:
    (folder / "train.yaml").write_text(text)
    return parse_training(AsrTrainConfig, ["--config", str(folder / "train.yaml"), *TOKENS], prog="t")


def notes_of(text: str) -> str:
    translation = translation_of(parse_yaml(text, name="old.yaml"))
    assert translation is not None
    return "\n".join(translation.notes)


def test_conformer_transducer(tmp_path: Path) -> None:
    config = parsed(tmp_path, CONFORMER)
    assert (config.encoder, config.decoder, config.encoder_conf["input_layer"]) == ("conformer", "transducer", "conv2d")
    expected = {"output_size": 12, "linear_units": 20, "attention_heads": 2, "num_blocks": 2, "dropout_rate": 0.3}
    expected |= {"attention_dropout_rate": 0.2, "cnn_module_kernel": 7, "macaron_style": True, "use_cnn_module": True}
    expected |= {
        "activation_type": "swish",
        "pos_enc_layer_type": "rel_pos",
        "selfattention_layer_type": "rel_selfattn",
    }
    assert {key: config.encoder_conf[key] for key in expected} == expected
    assert config.decoder_conf["num_layers"] == 2
    assert config.decoder_conf["hidden_size"] == 10
    assert (config.decoder_conf["dropout"], config.decoder_conf["dropout_embed"]) == (0.1, 0.2)
    assert config.scheduler_conf["model_size"] == 12
    assert config.scheduler_conf["warmup_steps"] == 100
    assert config.optim_conf["lr"] == 5.0
    assert config.best_model_criterion == [("valid", "loss", "min")]
    model = build_asr_model(config)
    assert isinstance(model, TransducerModel)
    assert model.ctc_weight == 0.4
    assert model.joint_network.lin_enc.weight.shape == (14, 12)
    notes = notes_of(CONFORMER)
    assert "dec-embed-dim: 30 became 10, which differs" in notes
    assert "the input layer vgg2l became conv2d, which differs" in notes


def test_rnn_transducer(tmp_path: Path) -> None:
    config = parsed(tmp_path, RNN)
    assert (config.encoder, config.decoder, config.optim) == ("vgg_rnn", "transducer", "adadelta")
    model = build_asr_model(config)
    assert isinstance(model, TransducerModel)
    assert model.ctc_weight == 0.0
    assert not model.has_ctc
    differing = [line.split(": ", 1)[1][:5] for line in notes_of(RNN).splitlines() if "differs" in line]
    assert differing == ["opt: ", "etype"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RNN + "use-lm-loss: true\nuse-aux-transducer-loss: true\n",
         "use-lm-loss, use-aux-transducer-loss: these losses of ESPnet1's transducer are not supported"),
        (RNN.replace("dtype: gru", "dtype: custom"), "dtype: custom (a prediction network of blocks) is not supported"),
        (RNN.replace("'rnnt'", "rnnt-att"), "rnnt-mode: only rnnt is supported"),
        (RNN + "dec-init: rnnlm.model\n", "dec-init: weights of ESPnet1 can't be read"),
        (CONFORMER.replace("enc-block-repeat", "  - type: transformer\nenc-block-repeat"),
         "a list of equal conformer or transformer blocks is translated"),
        (CONFORMER.replace("    heads: 2\n", ""), "enc-block-arch: the block has no heads"),
        (CONFORMER.replace("heads: 2", "heads: 2\n    rate: 1"), "rate has no translation for a conformer block"),
        (CONFORMER.replace("joint-dim", "joint-dm"), "'joint-dm' is not an ESPnet1 key"),
        ("elayers: 2\nuse-frontend: true\nblayers: 3\n", "use-frontend (a beamformer that is trained with the"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        translation_of(parse_yaml(text, name="old.yaml"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "search", "conf"),
    [
        ("search-type: default\nscore-norm: True\n", "transducer_default", {"score_norm": True}),
        ("score-norm-transducer: False\n", "transducer_default", {"score_norm": False}),
        ("search-type: alsd\n", "transducer_alsd", {"score_norm": True, "u_max": 400}),
        ("search-type: tsd\nmax-sym-exp: 4\n", "transducer_tsd", {"score_norm": True, "max_sym_exp": 4}),
        ("search-type: nsc\nnstep: 3\n", "transducer_nsc", {"score_norm": True, "nstep": 3, "prefix_alpha": 2}),
        ("search-type: maes\nnstep: 3\nprefix-alpha: 1\nexpansion-gamma: 0.3\nexpansion-beta: 0\n", "transducer_maes",
         {"score_norm": True, "nstep": 3, "prefix_alpha": 1, "expansion_gamma": 0.3, "expansion_beta": 0}),
    ],
)  # fmt: skip
def test_search_of_a_transducer(tmp_path: Path, text: str, search: str, conf: dict[str, Any]) -> None:
    (tmp_path / "decode.yaml").write_text("batch: 0\nbeam-size: 5\n" + text)
    options = check_decode_config(tmp_path / "decode.yaml")
    assert (options.search, options.search_conf, options.beam_size) == (search, conf, 5)


def test_smoothing_by_frequency_becomes_uniform(tmp_path: Path) -> None:
    text = "batch-size: 2\nelayers: 1\neunits: 4\neprojs: 4\ndunits: 4\nadim: 4\nlsm-type: unigram\nlsm-weight: 0.05\n"
    assert parsed(tmp_path, text).model_conf["lsm_weight"] == 0.05
    assert "lsm-type: unigram became model_conf.lsm_weight: 0.05, which differs" in notes_of(text)
    assert parsed(tmp_path, text.replace("lsm-type: unigram\n", "")).model_conf["lsm_weight"] == 0.0


def test_dropout_of_an_embedding_is_that_of_the_layers() -> None:
    text = "layer: 2\nunit: 8\nbatchsize: 4\nepoch: 1\ntie-weights: true\nemb-dropout-rate: 0.3\n"
    assert "emb-dropout-rate: 0.3 was dropped: the embedding has the dropout of the layers" in notes_of(text)
