"""Mask-CTC beside ESPnet2's own classes (benchmarks/peer_parts.py): decoder, loss, masks and search."""

from __future__ import annotations

import pytest
import torch

from tests.models import part_cases as cases
from tests.models.test_peer_parts import GOLDEN, assert_same, padded, shapes
from tests.models.tiny import TOKENS, tiny_batch, tiny_model
from tympan.config import choices
from tympan.decode.mask_ctc import MaskCtcSearch
from tympan.decode.search import Encoded, run_search
from tympan.errors import UserError
from tympan.models.decoder.mlm import MlmDecoder
from tympan.models.mask_ctc import MaskCtcModel, mask_uniform

DECODER = {"attention_heads": 2, "linear_units": 24, "num_blocks": 2, "dropout_rate": 0.0,
           "positional_dropout_rate": 0.0}  # fmt: skip


def build(name: str) -> MlmDecoder:
    decoder: MlmDecoder = choices.DECODERS.build(
        "mlm", cases.MLM[name], vocab_size=cases.VOCABULARY, encoder_output_size=8
    )
    return decoder.eval()


def mask_ctc_model(**given: object) -> MaskCtcModel:
    model = tiny_model(model="maskctc", decoder="mlm", decoder_only=DECODER, **given)
    assert isinstance(model, MaskCtcModel)
    return model


@pytest.mark.parametrize("name", cases.MLM)
@torch.no_grad()
def test_decoder_equals_espnet2(name: str) -> None:
    golden, decoder = GOLDEN[f"mlm {name}"], build(name)
    assert shapes(decoder) == golden["shapes"]
    cases.prefer_tokens(decoder)
    memory, tokens = [cases.memory(i) for i in range(3)], [cases.masked(i) for i in range(3)]
    lengths = torch.tensor([row.size(1) for row in tokens])
    logits = decoder(padded(memory, 7.0), torch.tensor(cases.LENGTHS), padded(tokens, 0), lengths)
    for index, expected in enumerate(golden["outputs"]):
        assert_same(logits[index, : lengths[index]], expected)


@pytest.mark.parametrize(("iterations", "threshold"), cases.MASK_CTC)
@pytest.mark.parametrize("name", cases.MLM)
def test_search_finds_what_espnet2_finds(name: str, iterations: int, threshold: float) -> None:
    expected = GOLDEN[f"mlm {name}"]["found"][f"{iterations} {threshold}"]
    decoder = build(name)
    cases.prefer_tokens(decoder)
    search = MaskCtcSearch(decoder, blank_id=0, iterations=iterations, threshold=threshold)
    encoded = Encoded(
        memory=padded([cases.memory(i) for i in range(3)], 7.0),
        lengths=torch.tensor(cases.LENGTHS),
        log_probs=padded([cases.posteriors(i).unsqueeze(0) for i in range(3)], 0.0),
    )
    assert [list(best.token_ids) for (best,) in run_search(search, encoded)] == expected
    for row, ids in enumerate(expected):
        (alone,) = run_search(search, encoded.select(torch.tensor([row])))
        assert list(alone[0].token_ids) == ids


def test_search_of_nothing() -> None:
    search = MaskCtcSearch(build("before"), blank_id=0, iterations=3, threshold=0.9)
    blanks = torch.full((2, 4, cases.VOCABULARY), -9.0)
    blanks[:, :, 0] = 0.0
    encoded = Encoded(memory=torch.randn(2, 4, 8), lengths=torch.tensor([4, 0]), log_probs=blanks)
    assert [best.token_ids for (best,) in run_search(search, encoded)] == [(), ()]


def test_masks_are_espnet2s_distribution() -> None:
    """The number is uniform from 1 to the length, the positions are drawn with replacement."""
    lengths = torch.full((40_000,), 3)
    found = mask_uniform(lengths, 5, torch.arange(40_000))
    assert not found[:, 3:].any()
    shares = torch.bincount(found.sum(1), minlength=4) / len(found)
    # One draw masks one token. Two draws mask one in 1/3, three in 1/9; three draws mask all in 2/9.
    expected = torch.tensor([0.0, (1 + 1 / 3 + 1 / 9) / 3, (2 / 3 + 6 / 9) / 3, (2 / 9) / 3])
    torch.testing.assert_close(shares, expected, atol=0.01, rtol=0)


def test_loss_is_that_of_masked_tokens() -> None:
    """The masks depend on the seeds in training and on the transcript otherwise, never on the other utterances."""
    model = mask_ctc_model(model_conf={"ctc_weight": 0.3, "lsm_weight": 0.1}).eval()
    batch = tiny_batch()
    stats = model(**batch).stats
    assert {"loss_ctc", "cer_ctc", "loss_mlm", "acc_mlm"} <= stats.keys()
    assert model(**batch).stats["loss_mlm"].total == stats["loss_mlm"].total
    seeds = torch.arange(4)
    model.train()
    losses = [model(**batch, augment_seed=seeds + offset).stats["loss_mlm"].total for offset in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    model.eval()
    together = model(**batch, augment_seed=seeds).stats["loss_mlm"].total
    rows = [{key: value[i : i + 1] for key, value in batch.items()} for i in range(4)]
    alone = sum(model(**row, augment_seed=seeds[i : i + 1]).stats["loss_mlm"].total for i, row in enumerate(rows))
    torch.testing.assert_close(alone, together, atol=1e-4, rtol=1e-4)
    model.train()
    model(**batch, augment_seed=seeds).value.backward()
    assert all(item.grad is not None for item in model.parameters())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model_conf": {"ctc_weight": 0.0}}, "ctc_weight must be above 0"),
        ({"token_list": [*TOKENS, "<mask>"]}, "contains '<mask>', which the model adds itself"),
    ],
)
def test_mistakes(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        mask_ctc_model(**given)
