"""Options of the classes beyond the golden models: an utterance gives the same output by itself and in a batch, steps
give the same output as whole sequences, every parameter gets a gradient, and a printed configuration can be built.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models.tiny import TOKENS, rows_of, tiny_batch, tiny_model
from tympan.errors import UserError

SMALL = {"output_size": 16, "attention_heads": 2, "num_blocks": 2}
CONFORMER: list[dict[str, Any]] = [
    {"input_layer": "conv2d1"},
    {"input_layer": "conv2d2"},
    {"input_layer": "conv2d6"},
    {"input_layer": "conv2d8"},
    {"input_layer": "conv1d2"},
    {"input_layer": "linear"},
    {"rel_pos_type": "legacy"},
    {"rel_pos_type": "legacy", "max_pos_emb_len": 10},
    {"pos_enc_layer_type": "abs_pos", "selfattention_layer_type": "selfattn", "qk_norm": True},
    {"pos_enc_layer_type": "scaled_abs_pos", "selfattention_layer_type": "selfattn"},
    {"macaron_style": True, "concat_after": True, "zero_triu": True},
    {"normalize_before": False, "activation_type": "relu"},
    {"positionwise_layer_type": "conv1d"},
    {"positionwise_layer_type": "conv1d-linear", "macaron_style": True},
    {"use_cnn_module": False, "interctc_layer_idx": [1], "interctc_use_conditioning": True},
]
TRANSFORMER: list[dict[str, Any]] = [
    {"concat_after": True, "normalize_before": False},
    {"positionwise_layer_type": "conv1d", "positionwise_conv_kernel_size": 3},
    {"input_layer": "linear", "qk_norm": True, "interctc_layer_idx": [1]},
    {"input_layer": None},
]
E_BRANCHFORMER: list[dict[str, Any]] = [
    {"use_linear_after_conv": True, "gate_activation": "swish", "merge_conv_kernel": 7},
    {"use_ffn": True, "macaron_ffn": True, "linear_units": 24, "interctc_layer_idx": [1]},
    {"attention_layer_type": "fast_selfattn", "pos_enc_layer_type": "abs_pos"},
    {"rel_pos_type": "legacy", "qk_norm": True},
]
BRANCHFORMER: list[dict[str, Any]] = [
    {"merge_method": "learned_ave"},
    {"merge_method": "fixed_ave", "cgmlp_weight": [0.3, 1.0]},
    {"use_attn": False},
    {"use_cgmlp": False},
    {"attention_layer_type": "fast_selfattn", "pos_enc_layer_type": "scaled_abs_pos"},
]
RNN: list[dict[str, Any]] = [
    {"rnn_type": "gru", "subsample": [1, 3]},
    {"bidirectional": False, "subsample": None},
    {"use_projection": False},
]
VGG_RNN: list[dict[str, Any]] = [
    {},
    {"in_channel": 2, "use_projection": False},
    {"rnn_type": "gru", "bidirectional": False},
]
RNN_SIZES = {"output_size": 16, "hidden_size": 12, "num_layers": 2}
ENCODERS = [
    *[("conformer", {"linear_units": 24, "rel_pos_type": "latest", **SMALL, **conf}) for conf in CONFORMER],
    *[("transformer", {"linear_units": 24, **SMALL, **conf}) for conf in TRANSFORMER],
    *[("e_branchformer", {"cgmlp_linear_units": 24, **SMALL, **conf}) for conf in E_BRANCHFORMER],
    *[("branchformer", {"cgmlp_linear_units": 24, **SMALL, **conf}) for conf in BRANCHFORMER],
    *[("rnn", {**RNN_SIZES, **conf}) for conf in RNN],
    *[("vgg_rnn", {**RNN_SIZES, **conf}) for conf in VGG_RNN],
]
ATTENTIONS = [
    "noatt", "dot", "add", "location", "location2d", "location_recurrent", "coverage", "coverage_location",
    "multi_head_dot", "multi_head_add", "multi_head_loc", "multi_head_multi_res_loc",
]  # fmt: skip


def build(encoder: str, conf: dict[str, Any], **given: Any) -> Any:
    """Without tiny_model's Conformer defaults."""
    from tests.models.golden_espnet2 import config_of
    from tympan.models.build import build_asr_model

    torch.manual_seed(0)
    decoder = {"decoder": "transformer", "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 1}}
    return build_asr_model(
        config_of(
            token_list=TOKENS, encoder=encoder, encoder_conf=conf, input_size=20, normalize=None, **{**decoder, **given}
        )
    )


@pytest.mark.parametrize(("encoder", "conf"), ENCODERS, ids=str)
def test_encoder_options(encoder: str, conf: dict[str, Any]) -> None:
    model = build(encoder, conf, model_conf={"interctc_weight": 0.3 if "interctc_layer_idx" in conf else 0.0})
    batch = tiny_batch()
    model(**batch).value.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    model.eval()
    with torch.no_grad():
        together = model.encode(batch["speech"], batch["speech_lengths"])
        assert together.lengths.tolist() == model.output_lengths(batch["speech_lengths"]).tolist()
        for row, frames in enumerate(batch["speech_lengths"].tolist()):
            one = rows_of(batch, slice(row, row + 1))
            alone = model.encode(one["speech"][:, :frames], one["speech_lengths"])
            length = int(together.lengths[row])
            assert length == int(alone.lengths[0]) > 0
            torch.testing.assert_close(together.out[row, :length], alone.out[0, :length], atol=1e-5, rtol=1e-4)
            for (number, several), (own_number, own) in zip(together.intermediate, alone.intermediate, strict=True):
                assert number == own_number
                torch.testing.assert_close(several[row, :length], own[0, :length], atol=1e-5, rtol=1e-4)


DECODERS: list[tuple[str, dict[str, Any]]] = [
    ("transformer", {"attention_heads": 2, "linear_units": 24, "num_blocks": 2, **conf})
    for conf in ({}, {"normalize_before": False}, {"concat_after": True}, {"qk_norm": True})
]
DECODERS += [
    (
        "rnn",
        {
            "hidden_size": 14,
            "att_conf": {"atype": kind, "adim": 8, "aheads": 2, "aconv_chans": 3, "aconv_filts": 4, "awin": 3},
        },
    )
    for kind in ATTENTIONS
]
DECODERS += [
    ("rnn", {"hidden_size": 14, "num_layers": 2, "rnn_type": "gru", "context_residual": True, "att_conf": {"adim": 8}}),
    ("rnn", {"hidden_size": 14, "dropout": 0.2, "sampling_probability": 0.5, "att_conf": {"adim": 8}}),
]


@pytest.mark.parametrize(("decoder", "conf"), DECODERS, ids=str)
def test_decoder_options(decoder: str, conf: dict[str, Any]) -> None:
    model = tiny_model().train()
    from tympan.config.choices import DECODERS as registry

    torch.manual_seed(1)
    model.decoder = registry.build(decoder, conf, vocab_size=len(TOKENS), encoder_output_size=16)
    model(**tiny_batch()).value.backward()
    for name, parameter in model.decoder.named_parameters():
        assert parameter.grad is not None, name
    model.eval()
    generator = torch.Generator().manual_seed(2)
    memory, lengths = torch.randn(2, 30, 16, generator=generator), torch.tensor([30, 21])
    tokens = torch.randint(0, len(TOKENS), (2, 3, 6), generator=generator)
    with torch.no_grad():
        state = model.decoder.start(memory, lengths, 3)
        steps = []
        for position in range(6):
            scores, state = model.decoder.step(tokens[:, :, position], state)
            steps.append(scores)
            state = state.reorder(torch.arange(3).expand(2, 3))
        kept = state.keep(torch.tensor([1]))
        assert model.decoder.step(tokens[1:, :, 0], kept)[0].shape == (1, 3, len(TOKENS))
        for row, frames in enumerate(lengths.tolist()):
            for beam in range(3):
                alone = model.decoder(
                    memory[row : row + 1, :frames],
                    lengths[row : row + 1],
                    tokens[row, beam].unsqueeze(0),
                    torch.tensor([6]),
                )
                stepwise = torch.stack([scores[row, beam] for scores in steps])
                torch.testing.assert_close(stepwise, alone[0].log_softmax(-1), atol=1e-5, rtol=1e-4)


def test_layer_drop_and_stochastic_depth_skip_only_in_training() -> None:
    model = build(
        "conformer", {**SMALL, "stochastic_depth_rate": [0.0, 0.9], "layer_drop_rate": 0.5, "dropout_rate": 0.0}
    )
    batch = tiny_batch()
    torch.manual_seed(0)
    outputs = [model.encode(batch["speech"], batch["speech_lengths"]).out for _ in range(8)]
    assert len({round(out[0, 0, 0].item(), 4) for out in outputs}) > 1
    model.eval()
    first, second = (model.encode(batch["speech"], batch["speech_lengths"]).out for _ in range(2))
    assert torch.equal(first, second)


def test_linear_preencoder() -> None:
    model = build("conformer", SMALL, preencoder="linear", preencoder_conf={"output_size": 12})
    model(**tiny_batch()).value.backward()
    assert model.preencoder.linear_out.weight.grad is not None


def test_a_branchformer_without_input_layer_has_no_relative_positions() -> None:
    size = {"output_size": 20, "attention_heads": 2, "num_blocks": 1, "input_layer": None}
    with pytest.raises(UserError, match="input_layer null adds no positions, which attention_layer_type rel_selfattn"):
        build("branchformer", size)
    batch = tiny_batch()
    for conf in ({"use_attn": False}, {"attention_layer_type": "selfattn", "pos_enc_layer_type": "abs_pos"}):
        assert build("branchformer", {**size, **conf})(**batch).value.isfinite()


def test_input_size_of_a_preencoder_may_be_written() -> None:
    """ESPnet2 requires it in preencoder_conf; here the builder passes it."""
    conf = {"input_size": 20, "output_size": 12}
    written = build("conformer", SMALL, preencoder="linear", preencoder_conf=conf)
    known = build("conformer", SMALL, preencoder="linear", preencoder_conf={"output_size": 12})
    assert written.preencoder.linear_out.weight.shape == known.preencoder.linear_out.weight.shape == (12, 20)
    with pytest.raises(UserError, match="input_size: is 1024, but the input of this part has size 20"):
        build("conformer", SMALL, preencoder="linear", preencoder_conf={**conf, "input_size": 1024})


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"att_conf": {"atype": "dots"}}, "is unknown; choose from"),
        ({"att_conf": {"dim": 3}}, "has no key"),
        ({"num_encs": 2}, "must be 1"),
    ],
)
def test_mistakes_of_the_rnn_decoder_are_named(conf: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build("conformer", SMALL, decoder="rnn", decoder_conf=conf)


@pytest.mark.slow
def test_compiled_model_gives_the_same_loss() -> None:
    model = build(
        "conformer",
        {**SMALL, "dropout_rate": 0.0, "positional_dropout_rate": 0.0},
        decoder=None,
        model_conf={"ctc_weight": 1.0},
    )
    batch = tiny_batch()
    expected = model(**batch).value
    found = torch.compile(model, backend="aot_eager")(**batch).value
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
