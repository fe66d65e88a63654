"""The closed form equals brute force over all alignments, and a plain recursion frame by frame."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tympan.decode.ctc_prefix import CtcPrefixScorer
from tympan.decode.search import Encoded

BLANK, EOS = 0, 5


def encoded_from(log_probs: list[torch.Tensor]) -> Encoded:
    padded = torch.nn.utils.rnn.pad_sequence(log_probs, batch_first=True, padding_value=float("nan"))
    lengths = torch.tensor([len(x) for x in log_probs])
    return Encoded(memory=padded, lengths=lengths, log_probs=padded)


def random_log_probs(frames: int, *, vocab: int = 6, scale: float = 2.0, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(frames, vocab, generator=generator, dtype=torch.float64) * scale).log_softmax(1)


def collapse(path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(token for token, _ in itertools.groupby(path) if token != BLANK)


def brute_force(log_probs: torch.Tensor, prefix: tuple[int, ...], *, is_whole: bool) -> float:
    total = 0.0
    for path in itertools.product(range(log_probs.size(1)), repeat=len(log_probs)):
        text = collapse(path)
        if text == prefix if is_whole else text[: len(prefix)] == prefix:
            total += float(log_probs[range(len(path)), path].sum().exp())
    return float(np.log(total)) if total else -np.inf


def recursion(log_probs: torch.Tensor, prefix: list[int]) -> tuple[float, float]:
    """(log P(begins with prefix), log P(is prefix)), one frame after another."""
    x = log_probs.numpy()
    frames = len(x)
    token_ends, blank_ends, begins = np.full(frames, -np.inf), np.cumsum(x[:, BLANK]), 0.0
    for position, token in enumerate(prefix):
        new_token, new_blank = np.full(frames, -np.inf), np.full(frames, -np.inf)
        begins = -np.inf
        for t in range(frames):
            either = np.logaddexp(token_ends[t - 1], blank_ends[t - 1]) if t else (0.0 if position == 0 else -np.inf)
            if t and position and prefix[position - 1] == token:
                either = blank_ends[t - 1]
            before = new_token[t - 1] if t else -np.inf
            new_token[t] = np.logaddexp(before, either) + x[t, token]
            new_blank[t] = (np.logaddexp(before, new_blank[t - 1]) if t else -np.inf) + x[t, BLANK]
            begins = np.logaddexp(begins, either + x[t, token])
        token_ends, blank_ends = new_token, new_blank
    return begins, float(np.logaddexp(token_ends[-1], blank_ends[-1]))


def walk(scorer: CtcPrefixScorer, encoded: Encoded, prefixes: torch.Tensor, candidates: torch.Tensor | None):
    """Follow prefixes (U, B, length) and return the total score of each candidate after them."""
    state = scorer.start(encoded, prefixes.size(1))
    tokens, total = torch.full(prefixes.shape[:2], EOS), torch.zeros(prefixes.shape[:2], dtype=torch.float64)
    for position in range(prefixes.size(2)):
        chosen = prefixes[:, :, position]
        scores, state = scorer.step(tokens, state, candidates=chosen.unsqueeze(2))
        total, tokens = total + scores.squeeze(2), chosen
    scores, state = scorer.step(tokens, state, candidates=candidates)
    return total.unsqueeze(2) + scores, state


@pytest.mark.parametrize("prefix", [(), (1,), (1, 1), (2, 1), (3, 3, 1)])
def test_equals_the_sum_over_all_alignments(prefix: tuple[int, ...]) -> None:
    log_probs = random_log_probs(5)
    prefixes = torch.tensor(prefix, dtype=torch.long).view(1, 1, -1)
    got, _ = walk(CtcPrefixScorer(blank_id=BLANK, eos=EOS), encoded_from([log_probs]), prefixes, None)
    want = [-np.inf] + [brute_force(log_probs, (*prefix, token), is_whole=False) for token in range(1, EOS)]
    want.append(brute_force(log_probs, prefix, is_whole=True))
    np.testing.assert_allclose(got[0, 0].numpy(), want, atol=1e-9)


def test_padding_beams_and_candidates_change_nothing() -> None:
    utterances = [random_log_probs(frames, vocab=12, scale=4.0, seed=frames) for frames in (90, 23, 57)]
    generator = torch.Generator().manual_seed(1)
    prefixes = torch.randint(1, 4, (3, 4, 6), generator=generator)  # few tokens: repeats happen
    prefixes[prefixes == EOS] = 6
    candidates = torch.tensor([1, 2, 3, 7, EOS, 11]).expand(3, 4, -1)
    scorer = CtcPrefixScorer(blank_id=BLANK, eos=EOS)
    got, _ = walk(scorer, encoded_from(utterances), prefixes, candidates)
    everything, _ = walk(scorer, encoded_from(utterances), prefixes, None)
    torch.testing.assert_close(everything.gather(2, candidates), got, rtol=0, atol=1e-9)
    for u, b in itertools.product(range(3), range(4)):
        prefix = prefixes[u, b].tolist()
        want = [recursion(utterances[u], [*prefix, c])[0] for c in candidates[u, b].tolist()]
        want[4] = recursion(utterances[u], prefix)[1]
        np.testing.assert_allclose(got[u, b].numpy(), want, atol=1e-9)


def test_a_long_confident_utterance_in_float32_keeps_its_digits() -> None:
    log_probs = random_log_probs(3000, scale=12.0)
    prefixes = torch.tensor([1, 2, 2, 3]).view(1, 1, -1)
    scorer = CtcPrefixScorer(blank_id=BLANK, eos=EOS)
    got, _ = walk(scorer, encoded_from([log_probs.float()]), prefixes, None)
    want = [recursion(log_probs.float().double(), [1, 2, 2, 3, token])[0] for token in range(1, EOS)]
    np.testing.assert_allclose(got[0, 0, 1:EOS].numpy(), want, atol=1e-6)


def test_state_follows_parents_and_leaves_with_its_utterance() -> None:
    utterances = [random_log_probs(frames, seed=frames) for frames in (20, 31)]
    scorer = CtcPrefixScorer(blank_id=BLANK, eos=EOS)
    prefixes = torch.tensor([[[1, 2], [3, 3]], [[2, 2], [4, 1]]])
    _, state = walk(scorer, encoded_from(utterances), prefixes, None)
    state = state.reorder(torch.tensor([[1, 1], [1, 0]])).keep(torch.tensor([1]))
    scores, _ = scorer.step(torch.tensor([[3, 1]]), state, candidates=None)
    for beam, prefix in enumerate([[4, 1, 3], [2, 2, 1]]):
        base = recursion(utterances[1], prefix)[0]
        want = [recursion(utterances[1], [*prefix, token])[0] - base for token in range(1, EOS)]
        np.testing.assert_allclose(scores[0, beam, 1:EOS].numpy(), want, atol=1e-9)


def test_a_prefix_longer_than_the_utterance_is_impossible_not_a_number() -> None:
    log_probs = random_log_probs(2)
    prefixes = torch.tensor([1, 2, 3]).view(1, 1, -1)
    scorer = CtcPrefixScorer(blank_id=BLANK, eos=EOS)
    for candidates in (None, torch.tensor([[[1, 3, EOS]]])):
        scores, _ = walk(scorer, encoded_from([log_probs]), prefixes, candidates)
        assert torch.isneginf(scores).all()
