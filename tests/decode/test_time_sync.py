"""Time-synchronous search beside ESPnet2's own class (benchmarks/peer_parts.py), and with a real decoder and LM."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.models import part_cases as cases
from tests.models.test_peer_parts import GOLDEN, padded
from tests.models.tiny import tiny_model
from tympan.decode.search import Encoded, run_search
from tympan.decode.settings import parse_inference
from tympan.decode.time_sync import TimeSyncSearch, _DecoderScorer


class Formula:
    """A stand-in for a decoder or language model."""

    def __init__(self, salt: float) -> None:
        self.salt = salt

    def __call__(self, encoded: Encoded, rows: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        prefixes = [tuple(row[:length]) for row, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
        return torch.stack([cases.prefix_log_probs(prefix, self.salt) for prefix in prefixes])


def encoding() -> Encoded:
    return Encoded(
        memory=padded([cases.memory(i) for i in range(3)], 7.0),
        lengths=torch.tensor(cases.LENGTHS),
        log_probs=padded([cases.posteriors(i).unsqueeze(0) for i in range(3)], 0.0),
    )


@pytest.mark.parametrize(("beam_size", "ctc_weight", "lm_weight", "penalty"), cases.TIME_SYNC)
def test_hypotheses_and_scores_are_espnet2s(
    beam_size: int, ctc_weight: float, lm_weight: float, penalty: float
) -> None:
    scorers = {"decoder": (Formula(0.2), 1 - ctc_weight), "lm": (Formula(0.9), lm_weight)}
    search = TimeSyncSearch(
        {name: item for name, item in scorers.items() if item[1] > 0},
        ctc_weight=ctc_weight,
        penalty=penalty,
        beam_size=beam_size,
        sos=cases.VOCABULARY - 1,
        blank_id=0,
    )
    for found, expected in zip(
        run_search(search, encoding()), GOLDEN[f"time_sync {beam_size} {ctc_weight}"], strict=True
    ):
        assert [list(item.token_ids) for item in found] == [ids for ids, _ in expected]
        assert [item.score for item in found] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_a_repeated_token_has_a_finite_score_in_a_beam_of_one() -> None:
    log_probs = torch.tensor([[0.1, 0.8, 0.1]]).log().repeat(3, 1).unsqueeze(0)
    encoded = Encoded(memory=torch.zeros(1, 3, 1), lengths=torch.tensor([3]), log_probs=log_probs)
    search = TimeSyncSearch({}, ctc_weight=1.0, penalty=0.0, beam_size=1, sos=2, blank_id=0)
    (((best,),),) = [run_search(search, encoded)]
    assert (best.token_ids, best.score) == ((1,), pytest.approx(3 * log_probs[0, 0, 1].item()))


@torch.no_grad()
def test_the_decoder_scores_a_prefix_as_step_by_step() -> None:
    decoder = tiny_model().eval().decoder
    assert decoder is not None
    encoded = Encoded(memory=torch.randn(2, 7, 16), lengths=torch.tensor([7, 5]))
    tokens, lengths = torch.tensor([[10, 2, 3], [10, 4, 0]]), torch.tensor([3, 2])
    found = _DecoderScorer(decoder)(encoded, torch.tensor([0, 1]), tokens, lengths)
    state = decoder.start(encoded.memory, encoded.lengths, 1)
    steps = []
    for step in range(3):
        scores, state = decoder.step(tokens[:, step : step + 1], state)
        steps.append(scores[:, 0])
    torch.testing.assert_close(found, torch.stack([steps[2][0], steps[1][1]]), atol=1e-5, rtol=1e-5)


def test_espnet2s_option_chooses_it() -> None:
    given = ["--output_dir", "x", "--data_path_and_name_and_type", "a,speech,sound"]
    assert parse_inference([*given, "--time_sync", "true"]).search == "time_sync"
    assert parse_inference([*given, "--time_sync", "true", "--search", "ctc_greedy"]).search == "ctc_greedy"
    assert parse_inference(given).search is None
