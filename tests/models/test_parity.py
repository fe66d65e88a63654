"""Features, encoder, CTC, decoder and losses of every golden model equal ESPnet2's, one by one and in a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.golden_espnet2 import MODELS, Golden, load_golden, pad

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, golden: Path) -> Golden:
    return load_golden(golden, request.param)


@torch.no_grad()
def test_alone_equals_espnet2(case: Golden) -> None:
    for index, speech in enumerate(case.speech):
        batch, lengths = pad([speech])
        feats = case.model.collect_feats(batch, lengths)
        assert feats["feats_lengths"].tolist() == [len(case.tensors[f"feats_{index}"])]
        torch.testing.assert_close(feats["feats"][0], case.tensors[f"feats_{index}"], atol=1e-4, rtol=0)
        encoded = case.model.encode(batch, lengths)
        assert case.model.output_lengths(lengths).tolist() == encoded.lengths.tolist() == [encoded.out.size(1)]
        torch.testing.assert_close(encoded.out[0], case.tensors[f"encoder_out_{index}"], atol=1e-4, rtol=0)
        log_probs = case.model.ctc.log_softmax(encoded.out)[0]
        torch.testing.assert_close(log_probs, case.tensors[f"ctc_log_probs_{index}"], atol=1e-4, rtol=0)
        if case.model.decoder is not None:
            ys_in, ys_lengths = pad([case.tensors[f"ys_in_{index}"]])
            logits = case.model.decoder(encoded.out, encoded.lengths, ys_in, ys_lengths)
            expected = case.tensors[f"decoder_log_probs_{index}"]
            torch.testing.assert_close(logits[0].log_softmax(-1), expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_losses_equal_espnet2(case: Golden) -> None:
    for index, expected in enumerate(case.losses):
        batch = (*pad([case.speech[index]]), *pad([case.text(index)], value=-1))
        loss = case.model(*batch)
        found = {name: (stat.total / stat.count).item() for name, stat in loss.stats.items()}
        assert found == {name: pytest.approx(value, rel=1e-4) for name, value in expected.items() if value is not None}
        assert loss.value.item() == pytest.approx(expected["loss"], rel=1e-4)


@torch.no_grad()
def test_padding_changes_nothing(case: Golden) -> None:
    speech = [case.speech[1], case.speech[0], case.speech[1][:9000]]
    batch, lengths = pad(speech)
    noisy = torch.where(torch.arange(batch.size(1)) < lengths.unsqueeze(1), batch, 1.0)
    together = case.model.encode(noisy, lengths)
    ys_in, ys_lengths = pad([case.text(i) for i in (1, 0, 0)])
    decoded = None
    if case.model.decoder is not None:
        decoded = case.model.decoder(together.out, together.lengths, ys_in, ys_lengths)
    for row, one in enumerate(speech):
        alone = case.model.encode(*pad([one]))
        frames, tokens = int(together.lengths[row]), int(ys_lengths[row])
        assert frames == alone.out.size(1)
        torch.testing.assert_close(together.out[row, :frames], alone.out[0], atol=1e-5, rtol=1e-5)
        if decoded is not None:
            logits = case.model.decoder(
                alone.out, alone.lengths, ys_in[row : row + 1, :tokens], ys_lengths[row : row + 1]
            )
            torch.testing.assert_close(decoded[row, :tokens], logits[0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_steps_equal_the_whole_sequence(case: Golden) -> None:
    if case.model.decoder is None:
        pytest.skip("no decoder")
    encoded = case.model.encode(*pad([case.speech[1], case.speech[0]]))
    # Three hypotheses per utterance: (2, 3, 5) tokens, reordered between steps.
    tokens = torch.randint(1, 40, (2, 3, 5), generator=torch.Generator().manual_seed(0))
    state = case.model.decoder.start(encoded.out, encoded.lengths, 3)
    scores = []
    for position in range(5):
        log_probs, state = case.model.decoder.step(tokens[:, :, position], state)
        scores.append(log_probs)
        if position == 2:
            parents = torch.tensor([[2, 0, 0], [1, 1, 2]])
            state = state.reorder(parents)
            tokens, scores = _follow(tokens, parents), [_follow(score, parents) for score in scores]
    state.keep(torch.tensor([1]))
    for beam in range(3):
        logits = case.model.decoder(encoded.out, encoded.lengths, tokens[:, beam], torch.tensor([5, 5]))
        stepwise = torch.stack([score[:, beam] for score in scores], dim=1)
        torch.testing.assert_close(stepwise, logits.log_softmax(-1), atol=1e-5, rtol=1e-5)


def _follow(rows: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
    return rows.gather(1, parents.unsqueeze(-1).expand(-1, -1, rows.size(-1)))
