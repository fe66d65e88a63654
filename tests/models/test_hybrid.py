"""The hybrid model: sums of losses over pieces, precision, checkpointing, and wrong options."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.models.tiny import TOKENS, rows_of, tiny_batch, tiny_model
from tympan.errors import UserError
from tympan.models.attention import Text, add_sos_eos
from tympan.models.hybrid import HybridModel
from tympan.models.loss import Loss
from tympan.models.speech_model import HasDecoder, PlotsAttention, SpeechModel

NO_NORM = {"use_cnn_module": False}


def gradients(model: HybridModel) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def backward_over(model: HybridModel, losses: list[Loss]) -> dict[str, Tensor]:
    """As with several ranks: counts are summed, and each piece adds its part of the loss."""
    model.zero_grad()
    counts = torch.stack([torch.stack([term.count for term in loss.terms]) for loss in losses]).sum(0)
    for loss in losses:
        loss.value_over(counts).backward()
    return {name: grad.clone() for name, grad in gradients(model).items()}


@pytest.mark.parametrize("length_normalized_loss", [False, True])
def test_pieces_add_up_to_the_whole(length_normalized_loss: bool) -> None:
    conf = {"ctc_weight": 0.3, "lsm_weight": 0.1, "length_normalized_loss": length_normalized_loss}
    model = tiny_model(encoder_conf=NO_NORM, model_conf=conf)
    batch = tiny_batch()
    whole = model(**batch)
    expected = backward_over(model, [whole])
    pieces = [model(**rows_of(batch, rows)) for rows in (slice(0, 1), slice(1, 4))]
    found = backward_over(model, pieces)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, atol=1e-5, rtol=1e-4)
    for name, stat in whole.stats.items():
        total = sum(piece.stats[name].total for piece in pieces)
        count = sum(piece.stats[name].count for piece in pieces)
        if not length_normalized_loss or name != "loss":
            assert (total / count).item() == pytest.approx((stat.total / stat.count).item(), rel=1e-4)


def test_checkpointing_changes_memory_alone() -> None:
    results = []
    for is_on in (False, True):
        model = tiny_model(encoder_conf={"dropout_rate": 0.2}, decoder_conf={"dropout_rate": 0.2})
        model.set_grad_checkpointing(is_on)
        torch.manual_seed(5)
        loss = model(**tiny_batch())
        loss.value.backward()
        results.append((loss.value.detach(), gradients(model), dict(model.named_buffers())))
    (loss, grads, buffers), (other_loss, other_grads, other_buffers) = results
    torch.testing.assert_close(loss, other_loss)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, other_grads[name])
    for name, buffer in buffers.items():
        torch.testing.assert_close(buffer, other_buffers[name])


def test_intermediate_ctc_shares_the_weight() -> None:
    model = tiny_model(
        encoder_conf={"interctc_layer_idx": [1], "interctc_use_conditioning": True},
        model_conf={"ctc_weight": 0.4, "interctc_weight": 0.25},
    ).eval()
    loss = model(**tiny_batch())
    assert [term.weight for term in loss.terms] == [pytest.approx(w) for w in (0.3, 0.1, 0.6)]
    mean = {name: (stat.total / stat.count).item() for name, stat in loss.stats.items()}
    expected = 0.3 * mean["loss_ctc"] + 0.1 * mean["loss_interctc_layer1"] + 0.6 * mean["loss_att"]
    assert mean["loss"] == pytest.approx(expected, rel=1e-5)
    assert {"cer_ctc", "cer_interctc_layer1", "cer", "wer", "acc"} <= set(mean)


def test_error_rates_are_left_to_validation() -> None:
    model = tiny_model()
    assert not {"cer", "wer", "cer_ctc"} & set(model(**tiny_batch()).stats)
    model.eval()
    assert {"cer", "wer", "cer_ctc"} <= set(model(**tiny_batch()).stats)
    quiet = tiny_model(model_conf={"report_cer": False}).eval()
    assert {"wer", "cer_ctc"} == {"cer", "wer", "cer_ctc"} & set(quiet(**tiny_batch()).stats)
    silent = tiny_model(model_conf={"report_cer": False, "report_wer": False}).eval()
    assert not {"cer", "wer", "cer_ctc"} & set(silent(**tiny_batch()).stats)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_and_half_models_have_finite_losses_close_to_float32(dtype: torch.dtype) -> None:
    model = tiny_model().eval()
    exact = model(**tiny_batch()).value.item()
    # Without oneDNN: its bfloat16 kernels crash on virtual machines that report AMX but do not allow it.
    with torch.backends.mkldnn.flags(enabled=False):
        with torch.autocast("cpu", dtype=dtype):
            under_autocast = model(**tiny_batch()).value
        assert under_autocast.item() == pytest.approx(exact, rel=0.05)
        assert under_autocast.dtype == torch.float32
        assert model.to(dtype)(**tiny_batch()).value.item() == pytest.approx(exact, rel=0.05)


def test_double_precision() -> None:
    model = tiny_model().eval()
    exact = model(**tiny_batch()).value.item()
    assert model.double()(**tiny_batch()).value.item() == pytest.approx(exact, rel=1e-4)


def test_attention_weights_of_every_layer() -> None:
    model = tiny_model()
    weights = model.attention_weights(**tiny_batch())
    names = [f"encoder.encoders.{i}.self_attn" for i in (0, 1)]
    names += [f"decoder.decoders.{i}.{part}" for i in (0, 1) for part in ("self_attn", "src_attn")]
    assert sorted(weights) == sorted(names)
    assert weights["decoder.decoders.0.src_attn"].shape == (4, 2, 6, 14)
    assert model.training
    assert all(module.weights is None for module in model.modules() if hasattr(module, "keep_weights"))


def test_language_token_goes_first() -> None:
    text = Text.cut(torch.tensor([[2, 3], [4, 9]]), torch.tensor([2, 1])).after([5])
    ys_in, ys_out, lengths = add_sos_eos(text, sos=10, eos=10)
    assert ys_in.tolist() == [[10, 5, 2, 3], [10, 5, 4, 10]]
    assert ys_out.tolist() == [[5, 2, 3, 10], [5, 4, 10, -1]]
    assert lengths.tolist() == [4, 3]


def test_padding_of_text_may_be_anything() -> None:
    model = tiny_model().eval()
    batch = tiny_batch()
    other = {**batch, "text": torch.where(batch["text"] == -1, 7, batch["text"])}
    assert model(**batch).value.item() == model(**other).value.item()


def test_ctc_that_can_not_fit_counts_0() -> None:
    model = tiny_model(decoder=None, model_conf={"ctc_weight": 1.0})
    batch = tiny_batch(lengths=(60, 10))
    assert model.output_lengths(batch["speech_lengths"]).tolist() == [14, 1]
    loss = model(**batch)
    alone = model(**{name: tensor[:1] for name, tensor in batch.items()})
    assert math.isfinite(loss.value.item())
    assert loss.terms[0].count.item() == 2
    assert alone.terms[0].count.item() == 1


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"decoder": None}, "a decoder is needed"),
        ({"model_conf": {"ctc_weight": 1.5}}, "between 0 and 1"),
        ({"model_conf": {"ctc_weight": 0.0, "interctc_weight": 0.5}}, "model_conf interctc_weight needs CTC"),
        ({"model_conf": {"ctc_weight": 0.0}, "encoder_conf": {"ctc_trim": True}}, r"\(or ctc_trim\) needs CTC"),
        ({"model_conf": {"sym_blank": "<b>"}}, "does not contain the blank '<b>'"),
        ({"encoder_conf": {"attention_heads": 3}}, "must be a multiple of attention_heads"),
        ({"encoder_conf": {"cnn_module_kernel": 4}}, "must be odd, found 4"),
        ({"encoder_conf": {"interctc_layer_idx": [2]}}, "between 1 and 1"),
        ({"encoder_conf": {"pos_enc_layer_type": "abs_pos"}}, "needs pos_enc_layer_type rel_pos"),
        ({"normalize": "global_mvn"}, "stats_file"),
    ],
)
def test_mistakes_are_named(conf: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_model(**conf)


def test_auxiliary_ctc_gives_a_layer_its_own_text() -> None:
    """The loss is ESPnet2's: (1 - w) CTC(text) + w CTC(layer, language), times ctc_weight, and the rest."""
    conf = {"ctc_weight": 1.0, "interctc_weight": 0.25}
    given = {"encoder_conf": {"interctc_layer_idx": [1]}, "decoder": None, "decoder_only": {}}
    plain = tiny_model(**given, model_conf=conf).eval()
    model = tiny_model(**given, model_conf={**conf, "aux_ctc": {"1": "language"}}, aux_ctc_tasks=["language"]).eval()
    batch = tiny_batch()
    language = {"language": torch.tensor([[2], [3], [3], [4]]), "language_lengths": torch.ones(4, dtype=torch.long)}
    stats = model(**batch, **language).stats
    spoken = {**batch, "text": language["language"], "text_lengths": language["language_lengths"]}
    expected = {
        "loss_ctc": plain(**batch).stats["loss_ctc"],
        "loss_interctc_layer1": plain(**spoken).stats["loss_interctc_layer1"],
    }
    for name, stat in expected.items():
        torch.testing.assert_close(stats[name].total, stat.total)
    total = 0.75 * expected["loss_ctc"].total + 0.25 * expected["loss_interctc_layer1"].total
    torch.testing.assert_close(model(**batch, **language).value, total / 4)


def test_a_token_list_without_a_blank_begins_with_it() -> None:
    """As in ESPnet2."""
    torch.manual_seed(0)
    model = tiny_model()
    other = tiny_model(token_list=["a", *TOKENS[1:]])
    assert other.blank_id == 0
    batch = tiny_batch()
    torch.testing.assert_close(model.eval()(**batch).value, other.eval()(**batch).value)


def test_it_offers_what_decoding_and_training_ask_for() -> None:
    model = tiny_model()
    assert isinstance(model, SpeechModel)
    assert isinstance(model, HasDecoder)
    assert isinstance(model, PlotsAttention)
    assert model.searches[0] == "joint"
    assert model.has_ctc
    assert model.step_decoder is model.decoder
    without = tiny_model(decoder=None, model_conf={"ctc_weight": 1.0})
    assert without.step_decoder is None
    assert not tiny_model(model_conf={"ctc_weight": 0.0}).has_ctc


def test_features_stay_in_float32() -> None:
    model = tiny_model(input_size=None, normalize="utterance_mvn")
    model.set_precision(torch.bfloat16)
    assert model.frontend is not None
    kinds = {
        tensor.dtype
        for tensor in [*model.frontend.parameters(), *model.frontend.buffers()]
        if tensor.is_floating_point()
    }
    assert kinds == {torch.float32}
    assert next(model.encoder.parameters()).dtype == torch.bfloat16
    model.set_precision(torch.float64)
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float64}
