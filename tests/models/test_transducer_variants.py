"""Token-and-duration and pruned transducer losses, against slow references in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from tests.models.test_transducer import tiny_transducer
from tests.models.tiny import tiny_batch
from tympan.errors import UserError
from tympan.models.transducer_lattice import Arcs, Lattice, arc_occupancies, lattice_loss, sum_by_diagonals
from tympan.models.transducer_loss import transducer_loss
from tympan.models.transducer_pruned import SimpleJoint, likely_band
from tympan.models.transducer_recursion import best_paths

VOCAB, SIZE = 7, 5
FRAMES, TEXTS = (6, 2, 9, 4), ([3, 3, 5], [4, 2, 6, 3], [], [6])
DURATIONS = (0, 1, 2, 4)


class DurationJoint(nn.Module):
    def __init__(self, durations: int) -> None:
        super().__init__()
        self.out = nn.Linear(SIZE, VOCAB + durations)

    def forward(self, frames: Tensor, predictions: Tensor) -> Tensor:
        return self.out(torch.tanh(frames + predictions))


def inputs(joint: nn.Module) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    frames = torch.randn(4, 9, SIZE, dtype=torch.float64, requires_grad=True)
    predictions = (2 * torch.randn(4, 5, SIZE, dtype=torch.float64)).requires_grad_()
    text = nn.utils.rnn.pad_sequence([torch.tensor(t, dtype=torch.long) for t in TEXTS], True, -1)
    return frames, predictions, torch.tensor(FRAMES), text, torch.tensor([len(t) for t in TEXTS])


def slow_tdt(logits: Tensor, text: list[int], durations: tuple[int, ...], sigma: float) -> Tensor:
    """logits (T, U + 1, V + D). All paths from (0, 0); the last arc is a blank that leads exactly to the end."""
    tokens = logits[..., :VOCAB].log_softmax(-1) - sigma
    lasting = logits[..., VOCAB:].log_softmax(-1)
    frames = logits.size(0)
    ways: dict[tuple[int, int], list[Tensor]] = {(0, 0): [logits.new_zeros(())]}
    for t in range(frames):
        for u in range(len(text) + 1):
            if (t, u) not in ways:
                continue
            alpha = torch.stack(ways[t, u]).logsumexp(0)
            for place, duration in enumerate(durations):
                if duration > 0 and (t + duration < frames or (t + duration == frames and u == len(text))):
                    ways.setdefault((t + duration, u), []).append(alpha + tokens[t, u, 0] + lasting[t, u, place])
                if u < len(text) and t + duration < frames:
                    score = alpha + tokens[t, u, text[u]] + lasting[t, u, place]
                    ways.setdefault((t + duration, u + 1), []).append(score)
    end = ways.get((frames, len(text)))
    return -torch.stack(end).logsumexp(0) if end else logits.sum() * 0.0


@pytest.mark.parametrize("durations", [DURATIONS, (1, 2)])
def test_tdt_losses_and_gradients_are_those_of_the_slow_reference(durations: tuple[int, ...]) -> None:
    torch.manual_seed(4)
    joint = DurationJoint(len(durations)).double()
    frames, predictions, lengths, text, text_lengths = inputs(joint)
    found = transducer_loss(
        joint, frames, predictions, lengths, text, text_lengths, blank_id=0, durations=durations, sigma=0.05
    )
    rows = zip(FRAMES, TEXTS, strict=True)
    slow = [
        slow_tdt(joint(frames[row, :t].unsqueeze(1), predictions[row, : len(u) + 1].unsqueeze(0)), u, durations, 0.05)
        for row, (t, u) in enumerate(rows)
    ]
    # Without duration 0, four tokens do not fit into two frames
    assert (float(found[1].detach()) == 0.0) == (0 not in durations)
    torch.testing.assert_close(found, torch.stack(slow), rtol=1e-12, atol=1e-12)
    wanted = [frames, predictions, joint.out.weight, joint.out.bias]
    grads = [torch.autograd.grad(losses.sum(), wanted) for losses in (found, torch.stack(slow))]
    for mine, expected in zip(*grads, strict=True):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("arcs", [Arcs(), Arcs(blanks=(1, 2, 4)), Arcs(blanks=(1, 3), tokens=(0, 1, 3))])
@pytest.mark.parametrize("is_band", [False, True])
def test_both_recursions_agree(arcs: Arcs, is_band: bool) -> None:
    torch.manual_seed(1)
    lengths, tokens = torch.tensor([9, 1, 5, 0]), torch.tensor([6, 2, 0, 3])
    lattice = Lattice.of(lengths, tokens)
    if is_band:
        first = torch.tensor([[0, 0, 1, 2, 2, 3, 4, 4, 4], [0] * 9, [0] * 9, [1] * 9])
        lattice = Lattice.of(lengths, tokens, first=first, width=torch.tensor([3, 3, 1, 3]))
    scores = torch.randn(len(lattice.frame), len(arcs.blanks) + len(arcs.tokens), dtype=torch.float64)
    scores[:, len(arcs.blanks) :] = scores[:, len(arcs.blanks) :].masked_fill(
        lattice.is_last.unsqueeze(1)
        | (lattice.frame.unsqueeze(1) + torch.tensor(arcs.tokens) >= lengths[lattice.utterance].unsqueeze(1)),
        float("-inf"),
    )
    compiled, diagonals = arc_occupancies(scores, lattice, arcs=arcs), sum_by_diagonals(scores, lattice, arcs)
    for mine, other in zip(compiled, diagonals, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)
    assert compiled[0][:3].isfinite().all()
    assert compiled[0][3] == float("-inf")


def test_best_path_is_the_most_likely_of_all_paths() -> None:
    torch.manual_seed(2)
    lattice = Lattice.of(torch.tensor([4, 3]), torch.tensor([2, 0]))
    scores = torch.randn(len(lattice.frame), 2, dtype=torch.float64).masked_fill(
        torch.stack([torch.zeros_like(lattice.is_last), lattice.is_last], 1), float("-inf")
    )
    total, taken = best_paths(scores, lattice, Arcs())

    def paths(t: int, u: int, score: float) -> list[float]:
        if t == 4:
            return [score] if u == 2 else []
        node = t * 3 + u
        more = paths(t + 1, u, score + float(scores[node, 0]))
        return more + (paths(t, u + 1, score + float(scores[node, 1])) if u < 2 else [])

    assert float(total[0]) == pytest.approx(max(paths(0, 0, 0.0)))
    on_path = taken[:12] >= 0
    assert float(scores[:12][on_path].gather(1, taken[:12][on_path].unsqueeze(1)).sum()) == pytest.approx(
        float(total[0])
    )
    assert float(total[1]) == pytest.approx(float(scores[12:, 0].sum()))


def simple_scores(*, sharp: float) -> tuple[Tensor, Lattice, Tensor]:
    torch.manual_seed(5)
    frames, tokens = torch.tensor([12, 3, 7, 1]), torch.tensor([9, 6, 0, 5])
    text = torch.randint(1, 11, (4, 9))
    joint = SimpleJoint(encoder_size=5, decoder_size=4, vocab_size=11).double()
    out, predictions = sharp * torch.randn(4, 12, 5).double(), sharp * torch.randn(4, 10, 4).double()
    lattice = Lattice.of(frames, tokens)
    scores = joint(out, predictions, text, lattice=lattice, blank_id=0)
    logits = joint.lin_enc(out).unsqueeze(2) + joint.lin_dec(predictions).unsqueeze(1)
    return scores, lattice, logits.log_softmax(-1)


def test_simple_joint_is_the_softmax_of_the_sum() -> None:
    scores, lattice, expected = simple_scores(sharp=3.0)
    blank = expected[lattice.utterance, lattice.frame, lattice.token, 0]
    torch.testing.assert_close(scores[:, 0], blank, rtol=1e-10, atol=1e-10)
    assert scores[lattice.is_last, 1].eq(float("-inf")).all()


@pytest.mark.parametrize("prune_range", [2, 3, 5, 50])
def test_the_band_is_connected_and_holds_most_of_the_probability(prune_range: int) -> None:
    scores, lattice, _ = simple_scores(sharp=1.0)
    band = likely_band(scores, lattice, prune_range=prune_range)
    for row, (frames, tokens) in enumerate(zip(lattice.frames.tolist(), lattice.tokens.tolist(), strict=True)):
        first, width = band.first[row, :frames].tolist(), int(band.width[row])
        assert first[0] == 0
        assert first[-1] == tokens + 1 - width
        steps = [after - before for before, after in itertools.pairwise(first)]
        assert all(0 <= step < width for step in steps)
        assert width == min(max(prune_range, tokens // frames + 2), tokens + 1)
    nodes = {key: place for place, key in enumerate(_keys(lattice))}
    inside = torch.tensor([nodes[key] for key in _keys(band)])
    whole, banded = lattice_loss(scores, lattice), lattice_loss(scores[inside], band)
    assert banded.isfinite().all()
    assert (banded >= whole - 1e-9).all()
    if prune_range == 50:
        torch.testing.assert_close(banded, whole)


def _keys(lattice: Lattice) -> list[tuple[int, ...]]:
    return [tuple(row) for row in torch.stack([lattice.utterance, lattice.frame, lattice.token], 1).tolist()]


def test_pruned_with_the_whole_range_is_the_full_loss() -> None:
    full = tiny_transducer(model="transducer", model_conf={"ctc_weight": 0.0})
    pruned = tiny_transducer(
        model="transducer", model_conf={"ctc_weight": 0.0, "rnnt_type": "pruned", "prune_range": 100}
    )
    pruned.load_state_dict(full.state_dict(), strict=False)
    losses = [model.eval()(**tiny_batch()) for model in (full, pruned)]
    totals = [float(loss.stats["loss_transducer"].total) for loss in losses]
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)
    simple = float(losses[1].stats["loss_simple"].total / losses[1].stats["loss_simple"].count)
    mean = totals[1] / float(losses[1].stats["loss_transducer"].count)
    assert float(losses[1].value.detach()) == pytest.approx(mean + 0.5 * simple, rel=1e-5)


@pytest.mark.parametrize(
    "given",
    [
        {"model_conf": {"ctc_weight": 0.0, "rnnt_type": "pruned", "prune_range": 3}},
        {"model_conf": {"ctc_weight": 0.0}, "joint_net_conf": {"joint_space_size": 10, "tdt_durations": [0, 1, 2, 4]}},
    ],
    ids=["pruned", "tdt"],
)
def test_a_model_learns_a_batch(given: dict) -> None:
    model = tiny_transducer(model="transducer", **given)
    batch = tiny_batch()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(240):
        optimizer.zero_grad()
        model(**batch).value.backward()
        optimizer.step()
    assert all(item.grad is not None and item.grad.isfinite().all() for item in model.parameters())
    assert float(model.eval()(**batch).stats["cer_transducer"].total) == 0


def test_an_attention_decoder_is_an_auxiliary_loss() -> None:
    conf = {"linear_units": 12, "num_blocks": 1, "attention_heads": 2}
    model = tiny_transducer(
        model="transducer",
        model_conf={"ctc_weight": 0.0, "attention_weight": 0.4, "attention_decoder_conf": conf, "lsm_weight": 0.1},
    )
    loss = model(**tiny_batch())
    loss.value.backward()
    assert all(item.grad is not None and item.grad.ne(0).any() for item in model.att_decoder.parameters())
    stats = {name: float(stat.total / stat.count) for name, stat in loss.stats.items()}
    assert float(loss.value.detach()) == pytest.approx(stats["loss_transducer"] + 0.4 * stats["loss_att"])
    with pytest.raises(UserError, match=r"there is no attention_decoder 'trap:Decoder'\. Known: transformer"):
        tiny_transducer(model="transducer", model_conf={"attention_weight": 0.4, "attention_decoder": "trap:Decoder"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"joint_net_conf": {"tdt_durations": [0]}}, "durations must increase"),
        ({"joint_net_conf": {"tdt_durations": [2, 1]}}, "durations must increase"),
        (
            {"joint_net_conf": {"tdt_durations": [0, 1]}, "model_conf": {"rnnt_type": "pruned"}, "model": "transducer"},
            "pruned can't be used with tdt_durations",
        ),
    ],
)
def test_options_that_do_not_go_together(given: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_transducer(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"model_conf": {"ctc_weight": 0.0}},
        {"model_conf": {"ctc_weight": 0.0, "rnnt_type": "pruned", "prune_range": 3}},
        {"model_conf": {"ctc_weight": 0.0}, "joint_net_conf": {"joint_space_size": 10, "tdt_durations": [0, 1, 2]}},
    ],
    ids=["full", "pruned", "tdt"],
)
def test_a_step_in_bfloat16_has_the_loss_of_float32(given: dict) -> None:
    """The values differ by the rounding of bfloat16 (8 bits) in the layers; the recursion itself is in float32."""
    model, batch = tiny_transducer(model="transducer", **given), tiny_batch()
    gradients, losses = [], []
    for is_half in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            loss = model(**batch)
        assert all(term.total.dtype == torch.float32 for term in loss.terms)
        loss.value.backward()
        losses.append(float(loss.stats["loss_transducer"].total))
        gradients.append(torch.cat([item.grad.flatten() for item in model.parameters()]))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)
    assert float(torch.cosine_similarity(*gradients, dim=0)) > 0.99
