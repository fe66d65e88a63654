"""Speech translation: names, losses and n-best lists equal ESPnet2's (golden_st.json, from benchmarks/peer_st.py)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import st_cases
from tests.models.golden_espnet2 import DEFAULTS, pad
from tympan.data.batch import Batch
from tympan.decode.beam_search import BeamSearch, LengthLimits, Weighted
from tympan.decode.ctc_prefix import CtcPrefixScorer
from tympan.decode.scorer import AttentionScorer, LengthBonus, LmScorer
from tympan.decode.search import Encoded, Ended
from tympan.errors import UserError
from tympan.models.bleu import character_bleu
from tympan.models.lm.build import build_lm
from tympan.models.loss import Loss, Stat
from tympan.models.st import StModel
from tympan.models.st_build import build_st_model
from tympan.models.weights import fill_weights, load_weights

ST_DEFAULTS: dict[str, Any] = {
    **DEFAULTS,
    "src_token_list": None,
    "st_joint_net_conf": None,
    "postencoder": None,
    "decoder": "rnn",
    **{
        key: value
        for name in ("extra_asr_decoder", "extra_mt_decoder", "md_encoder", "hier_encoder", "extra_mt_encoder")
        for key, value in {name: None, f"{name}_conf": {}}.items()
    },
}
EOS = len(st_cases.TOKENS) - 1
SEARCHES = [(case, search) for case, searches in st_cases.CASE_SEARCHES.items() for search in searches]


def config_of(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**ST_DEFAULTS, **given})


def model_of(case: str, **changed: Any) -> StModel:
    settings = {**st_cases.settings_of(case), **changed}
    model = build_st_model(config_of(**settings))
    st_cases.fill(model)
    return model.eval()


@cache
def golden() -> dict[str, Any]:
    values: dict[str, Any] = json.loads((Path(__file__).parent / "golden_st.json").read_text(encoding="utf-8"))
    return values


def batch_of(rows: list[dict[str, Any]], *, text_padding: int = -1) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    tensors["speech"], tensors["speech_lengths"] = pad([st_cases.audio(row["audio"]) for row in rows])
    for name in ("text", "src_text"):
        texts = [torch.tensor(row[name]) for row in rows]
        tensors[name], tensors[f"{name}_lengths"] = pad(texts, value=text_padding)
    return tensors


def mean(stat: Stat) -> float:
    return (stat.total / stat.count).item()


def expected_of(stats: dict[str, float]) -> dict[str, float]:
    """ESPnet2 reports 0 for losses that a model does not have, and its BLEU of CTC is not in percent."""
    percent = {"bleu_ctc": 100.0}
    is_absent = {name for name, value in stats.items() if name.startswith("loss") and value == 0.0}
    return {name: value * percent.get(name, 1.0) for name, value in stats.items() if name not in is_absent}


@pytest.mark.parametrize("case", st_cases.CASES)
def test_parameters_equal_espnet2s(case: str) -> None:
    shapes = {name: list(tensor.shape) for name, tensor in model_of(case).state_dict().items()}
    assert shapes == {st_cases.newest_name(name): shape for name, shape in golden()[case]["shapes"].items()}


@pytest.mark.parametrize("case", ["hier", "mt_and_asr"])
def test_a_weights_file_of_espnet2_fits(case: str, tmp_path: Path) -> None:
    names = golden()[case]["shapes"]
    torch.save({name: torch.full(shape, 0.5) for name, shape in names.items()}, tmp_path / "model.pth")
    model = model_of(case)
    fill_weights(model, load_weights(tmp_path / "model.pth"), "model.pth", "config.yaml")
    assert all(parameter.eq(0.5).all() for parameter in model.parameters())


@pytest.mark.parametrize("case", st_cases.CASES)
@torch.no_grad()
def test_losses_of_one_utterance_equal_espnet2s(case: str) -> None:
    model = model_of(case)
    for row in golden()[case]["losses"]:
        loss = model(**batch_of([row]))
        found = {name: mean(stat) for name, stat in loss.stats.items()}
        assert found == pytest.approx(expected_of(row["stats"]), rel=1e-4, abs=1e-6)
        assert loss.value.item() == pytest.approx(row["stats"]["loss"], rel=1e-4)


@pytest.mark.parametrize("case", st_cases.CASES)
@pytest.mark.parametrize("text_padding", [-1, 3])
@torch.no_grad()
def test_losses_of_a_padded_batch_are_means_of_espnet2s(case: str, text_padding: int) -> None:
    model = model_of(case)
    rows = golden()[case]["losses"]
    stats = model(**batch_of(rows, text_padding=text_padding)).stats
    names = ["loss_st_att", "loss_st_ctc"] if model.length_normalized_loss else [n for n in stats if n[:4] == "loss"]
    for name in set(names) & set(stats):
        tokens = [len(row["text"]) + 1 if model.length_normalized_loss else 1 for row in rows]
        total = sum(row["stats"][name] * count for row, count in zip(rows, tokens, strict=True))
        assert mean(stats[name]) == pytest.approx(total / sum(tokens), rel=1e-4)
    for name in {"bleu", "bleu_ctc"} & set(stats):
        values = [expected_of(row["stats"])[name] for row in rows]
        assert mean(stats[name]) == pytest.approx(sum(values) / len(rows), rel=1e-4, abs=1e-6)


def scores_of(model: StModel, search: dict[str, Any]) -> tuple[dict[str, Weighted], dict[str, Weighted]]:
    """The scorers of ESPnet2's st_inference: `st_ctc` has the weight ctc_weight, the decoder 1 - ctc_weight."""
    ctc_weight = search.get("ctc_weight", 0.0)
    full: dict[str, Weighted] = {}
    if model.decoder is not None and ctc_weight < 1.0:
        full["decoder"] = Weighted(AttentionScorer(model.decoder), 1.0 - ctc_weight)  # type: ignore[arg-type]
    if "lm_weight" in search:
        conf = {"token_list": st_cases.TOKENS, "init": None, "model": "lm", "model_conf": {}, **st_cases.LM}
        lm = build_lm(SimpleNamespace(**conf))  # type: ignore[arg-type]
        st_cases.fill(lm)
        full["lm"] = Weighted(LmScorer(lm.eval().lm), search["lm_weight"])  # type: ignore[arg-type]
    if "penalty" in search:
        full["length_bonus"] = Weighted(LengthBonus(model.vocab_size), search["penalty"])
    scorer = CtcPrefixScorer(blank_id=model.blank_id, eos=model.eos)
    return full, {"ctc": Weighted(scorer, ctc_weight)} if ctc_weight > 0 else {}


@pytest.mark.parametrize(("case", "name"), SEARCHES)
@torch.inference_mode()
def test_nbest_of_a_padded_batch_equals_espnet2s(case: str, name: str) -> None:
    model, settings = model_of(case), st_cases.SEARCHES[name]
    full, partial = scores_of(model, settings)
    search = BeamSearch(
        full,
        partial,
        beam_size=st_cases.BEAM_SIZE,
        sos=model.sos,
        eos=model.eos,
        vocab_size=model.vocab_size,
        has_pre_beam="decoder" in full,
    )
    speech, lengths = pad([st_cases.audio(index) for index in range(len(st_cases.SAMPLES))])
    encoded = model.encode(speech, lengths)
    assert encoded.lengths.tolist() == model.output_lengths(lengths).tolist()
    log_probs = None if not model.has_ctc else model.ctc_log_posteriors(encoded.out)
    limits = LengthLimits(settings.get("maxlenratio", 0.0), settings.get("minlenratio", 0.0))
    found = search(Encoded(encoded.out, encoded.lengths, log_probs), limits)
    for hypotheses, expected in zip(found, golden()[case]["nbest"][name], strict=True):
        assert_nbest(hypotheses, expected)


def assert_nbest(found: list[Ended], expected: list[dict[str, Any]]) -> None:
    """Neighbours with nearly equal scores may be swapped.

    In ESPnet2, a hypothesis that ends by itself in the last step has eos twice.
    """
    by_tokens = {(*hypothesis.token_ids, *[EOS] * (1 + hypothesis.is_ended_twice)): hypothesis for hypothesis in found}
    for place, want in enumerate(expected):
        assert found[place].score == pytest.approx(want["score"], abs=1e-3)
        hypothesis = by_tokens[tuple(want["yseq"][1:])]
        assert hypothesis.score == pytest.approx(want["score"], abs=1e-3)
        for name, score in hypothesis.scores.items():
            assert score == pytest.approx(want["scores"][name], abs=1e-3)


def gradients_over(model: StModel, losses: list[Loss]) -> dict[str, Tensor]:
    """As with several ranks: counts are summed, and each piece adds its part of the loss."""
    model.zero_grad()
    counts = torch.stack([torch.stack([term.count for term in loss.terms]) for loss in losses]).sum(0)
    for loss in losses:
        loss.value_over(counts).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.requires_grad}


@pytest.mark.parametrize("case", ["asr_ctc", "hier", "mt_and_asr"])
def test_pieces_add_up_to_the_whole(case: str) -> None:
    """In evaluation mode, where batch normalization does not depend on the batch."""
    model = model_of(case)
    rows = golden()[case]["losses"]
    expected = gradients_over(model, [model(**batch_of(rows))])
    pieces = [model(**batch_of(rows[:1])), model(**batch_of(rows[1:]))]
    for name, gradient in gradients_over(model, pieces).items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("case", st_cases.CASES)
def test_a_stand_in_reaches_every_trained_parameter(case: str) -> None:
    """The dummy utterance that a rank without data runs, with weight 0."""
    model = model_of(case).train()
    tensors = batch_of(golden()[case]["losses"])
    full = model(**tensors)
    empty = Batch(ids=(), tensors={name: tensor[:0] for name, tensor in tensors.items()}, global_size=4)
    found = model(**empty.or_stand_in().tensors)
    assert (len(full.terms), set(full.stats)) == (len(found.terms), set(found.stats))
    assert not {"cer", "wer", "cer_ctc", "bleu", "bleu_ctc"} & set(full.stats)
    model.zero_grad()
    (found.value * 0.0).backward()
    for name, parameter in model.named_parameters():
        if name.startswith("extra_mt_decoder"):
            assert not parameter.requires_grad
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.eq(0).all(), name


def test_a_model_without_source_text_needs_no_source_tokens() -> None:
    model = model_of("attention_only", src_token_list=None)
    row = golden()["attention_only"]["losses"][0]
    batch = {name: tensor for name, tensor in batch_of([row]).items() if not name.startswith("src")}
    assert model(**batch).value.item() == pytest.approx(row["stats"]["loss"], rel=1e-4)
    with pytest.raises(UserError, match="the data must have 'src_text'"):
        model_of("asr_both")(**batch)


def test_attention_weights_of_both_decoders() -> None:
    model = model_of("asr_both").train()
    batch = batch_of(golden()["asr_both"]["losses"])
    weights = model.attention_weights(**batch)
    frames = int(model.output_lengths(batch["speech_lengths"]).max())
    assert weights["decoder.decoders.0.src_attn"].shape == (4, 2, 11, frames)
    assert weights["extra_asr_decoder.decoders.0.src_attn"].shape == (4, 2, 11, frames)
    assert model.training
    without = model.attention_weights(**{name: t for name, t in batch.items() if not name.startswith("src")})
    assert set(weights) - set(without) == {f"extra_asr_decoder.decoders.0.{part}_attn" for part in ("self", "src")}


@torch.no_grad()
def test_features_for_statistics() -> None:
    model = model_of("asr_both")
    batch = batch_of(golden()["asr_both"]["losses"])
    feats = model.collect_feats(**batch)
    assert feats["feats"].shape == (4, int(feats["feats_lengths"].max()), 16)
    raw = model_of("asr_both", model_conf={"extract_feats_in_collect_stats": False}).collect_feats(**batch)
    assert raw["feats"] is batch["speech"]


def test_bleu_of_characters() -> None:
    assert character_bleu("the cat", "the cat") == pytest.approx(1.0)
    assert character_bleu("abc", "abc") == 0.0  # no 4-gram
    # 6/6, 4/5, 3/4, 2/3 n-grams, and 8 characters instead of 6.
    assert character_bleu("abcdef", "abcdexgf") == pytest.approx((0.8 * 0.75 * 2 / 3) ** 0.25 * 2.718281828 ** (-1 / 3))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_conf": {"asr_weight": 1.0}}, "below 1"),
        ({"model_conf": {"asr_weight": 0.5, "mt_weight": 0.5}}, "below 1"),
        ({"model_conf": {"st_mtlalpha": -0.1}}, "st_mtlalpha: must be between 0 and 1"),
        ({"model_conf": {"asr_weight": 0.3}, "src_token_list": None}, "needs --src_token_list"),
        ({"model_conf": {"asr_weight": 0.3}, "extra_asr_decoder": None}, "--extra_asr_decoder is needed"),
        ({"model_conf": {"mt_weight": 0.3}}, "needs --extra_mt_encoder"),
        ({"model_conf": {"asr_wight": 0.3}}, "asr_weight"),
        ({"model_conf": {"ctc_sample_rate": 0.1}}, "ctc_sample_rate"),
        (
            {"model_conf": {"st_mtlalpha": 0.3, "tgt_sym_blank": "<b>"}},
            "token_list does not contain tgt_sym_blank '<b>'",
        ),
        ({"decoder": None}, "a decoder is needed"),
        ({"encoder_conf": {"interctc_layer_idx": [1]}}, "does not support intermediate CTC"),
        ({"extra_mt_encoder": "conformer", "model_conf": {"mt_weight": 0.2}}, "input_layer=embed"),
    ],
)
def test_mistakes_are_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model_of("asr_both", **changed)
