"""Decoding with fixed shapes, for devices that compile every shape: the same hypotheses, hardly any new shapes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tympan.decode.beam_search import BeamSearch, LengthLimits, Weighted
from tympan.decode.ctc_prefix import CtcPrefixScorer
from tympan.decode.encode import bucket_length
from tympan.decode.scorer import AttentionScorer, LengthBonus, LmScorer, PlacedScorer
from tympan.decode.search import Encoded, Ended
from tympan.models.lm.model import LanguageModel
from tympan.models.lm.transformer import TransformerLm
from tympan.nn import prefix_cache
from tympan.runtime.operators import OperatorTrace

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from small_asr import TOKENS, small_asr

VOCAB, EOS, FRAMES = len(TOKENS), len(TOKENS) - 1, 64


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return small_asr(num_blocks=1).eval()


def search(model: torch.nn.Module, *, fixed: bool, limits: LengthLimits, encoded: Encoded) -> list[list[Ended]]:
    torch.manual_seed(3)
    network = TransformerLm(vocab_size=VOCAB, embed_unit=8, att_unit=8, head=2, unit=16, layer=1, dropout_rate=0.0)
    lm = LanguageModel(network, vocab_size=VOCAB).eval()
    full = {
        "decoder": Weighted(PlacedScorer(AttentionScorer(model.decoder)), 0.6),
        "lm": Weighted(LmScorer(lm), 0.2),
        "length_bonus": Weighted(LengthBonus(VOCAB), 0.5),
    }
    partial = {"ctc": Weighted(CtcPrefixScorer(blank_id=0, eos=EOS), 0.4)}
    beam = BeamSearch(
        full, partial, beam_size=3, sos=EOS, eos=EOS, vocab_size=VOCAB, has_fixed_shapes=fixed
    )  # fmt: skip
    return beam(encoded, limits)


def batch(lengths: list[int], *, frames: int, seed: int = 0) -> Encoded:
    generator = torch.Generator().manual_seed(seed)
    memory = torch.randn(len(lengths), frames, 16, generator=generator)
    log_probs = (2 * torch.randn(len(lengths), frames, VOCAB, generator=generator)).log_softmax(2)
    inside = torch.arange(frames) < torch.tensor(lengths).unsqueeze(1)
    return Encoded(
        memory=memory * inside.unsqueeze(2),
        lengths=torch.tensor(lengths),
        log_probs=log_probs.masked_fill(~inside.unsqueeze(2), 0.0).transpose(1, 2).contiguous().transpose(1, 2),
    )


def cut(encoded: Encoded) -> Encoded:
    """Without the padding of the bucket."""
    return encoded.select(torch.arange(encoded.utterances))


@pytest.mark.parametrize("limits", [LengthLimits(), LengthLimits(maxlenratio=-30), LengthLimits(-90, -5)])
def test_the_hypotheses_are_those_of_the_usual_search(
    model: torch.nn.Module, limits: LengthLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_cache, "FIRST_CAPACITY", 12)  # so that the cache is tidied and doubled
    encoded = batch([47, 30, 61], frames=FRAMES)
    usual = search(model, fixed=False, limits=limits, encoded=cut(encoded))
    fixed = search(model, fixed=True, limits=limits, encoded=encoded)
    assert [[h.token_ids for h in hypotheses] for hypotheses in fixed] == [
        [h.token_ids for h in hypotheses] for hypotheses in usual
    ]
    for one, other in zip(fixed, usual, strict=True):
        assert _scores(one) == pytest.approx(_scores(other), rel=1e-4)


def test_further_utterances_of_a_bucket_bring_few_new_shapes(model: torch.nn.Module) -> None:
    seen: set[object] = set()
    new = []
    for number, length in enumerate((60, 41, 64, 52)):
        encoded = batch([length], frames=FRAMES, seed=number)
        with OperatorTrace() as trace:
            search(model, fixed=True, limits=LengthLimits(maxlenratio=-40), encoded=encoded)
        new.append(len(trace.signatures() - seen))
        seen |= trace.signatures()
    assert new[0] > 100
    assert max(new[1:]) <= 50, new


def test_buckets_add_at_most_a_quarter() -> None:
    lengths = torch.arange(1, 500_000, 37).tolist()
    padded = [bucket_length(length) for length in lengths]
    assert all(length <= bucket <= 1.25 * length + 1 for length, bucket in zip(lengths, padded, strict=True))
    assert len(set(padded)) <= 4 * 19
    assert [bucket_length(length) for length in (1, 3, 8, 9, 100)] == [1, 3, 8, 10, 112]


def _scores(hypotheses: list[Ended]) -> list[float]:
    return [hypothesis.score for hypothesis in hypotheses]
