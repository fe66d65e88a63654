"""Searches of transducers against slow references in Python loops: skipping frames, and fusion with language models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.decode.test_ngram_scorer import ngrams, slow_score
from tests.models.test_transducer import multi_blank_model, slow_greedy, tiny_transducer
from tests.models.test_transducer_beams import beam_model, encoded_of, lm_of, search_of
from tympan.decode.ngram_scorer import NgramFullScorer
from tympan.decode.search import Encoded, run_search
from tympan.decode.transducer_fusion import InternalLm, LmText, NgramText, TextScorer
from tympan.decode.transducer_search import GreedyTransducer
from tympan.models.transducer import TransducerModel
from tympan.models.transducer_greedy import TransducerParts
from tympan.text.ngram.arpa_reader import read_arpa

LENGTHS = (23, 9, 1, 17)
Emission = tuple[int, int, int]


def slow_skipping(parts: TransducerParts, memory: Tensor, max_symbols: int) -> tuple[list[Emission], float, int]:
    """(token, frame, frame after it) of a token-and-duration transducer, the score, and the number of steps."""
    emissions: list[Emission] = []
    score, frame, here, steps = 0.0, 0, 0, 0
    while frame < len(memory):
        steps += 1
        text = [parts.blank_id, *(token for token, _, _ in emissions)]
        predicted = parts.joint.project_predictions(parts.prediction(torch.tensor([text]))[0, -1])
        logits = parts.joint(parts.joint.project_frames(memory[frame]), predicted)
        tokens, lasting = (
            logits[: parts.joint.vocab_size].log_softmax(0),
            logits[parts.joint.vocab_size :].log_softmax(0),
        )
        token, duration = int(tokens.argmax()), parts.joint.durations[int(lasting.argmax())]
        score += float(tokens.max() + lasting.max())
        if token == parts.blank_id:
            duration = max(duration, 1)
        else:
            here += 1
            if here >= max_symbols:
                duration = max(duration, 1)
            emissions.append((token, frame, frame + max(duration, 1)))
        if duration > 0:
            frame, here = frame + duration, 0
    return emissions, score, steps


def random_inputs(seed: int) -> Encoded:
    memory = torch.randn(len(LENGTHS), max(LENGTHS), 16, generator=torch.Generator().manual_seed(seed))
    return Encoded(memory=memory, lengths=torch.tensor(LENGTHS))


@torch.no_grad()
def disturb(model: TransducerModel, seed: int) -> TransducerModel:
    """Other weights, with a more likely blank."""
    generator = torch.Generator().manual_seed(seed)
    joint = model.joint_network
    for weight in (joint.lin_out.weight, joint.lin_enc.weight, joint.lin_dec.weight):
        weight.copy_(torch.randn(weight.shape, generator=generator))
    joint.lin_out.bias.zero_()
    joint.lin_out.bias[list(model.transducer_parts.durations)] = 2.0
    return model.eval()


@torch.no_grad()
def test_the_skipping_search_is_the_slow_one() -> None:
    model = tiny_transducer(joint_net_conf={"joint_space_size": 10, "tdt_durations": [0, 1, 2, 4]})
    texts, skipped = set(), 0
    for seed in range(12):
        parts, encoded = disturb(model, seed).transducer_parts, random_inputs(seed)
        for max_symbols in (1, 4):
            found = run_search(GreedyTransducer(parts, max_symbols=max_symbols), encoded)
            for row, length in enumerate(LENGTHS):
                emissions, score, steps = slow_skipping(parts, encoded.memory[row, :length], max_symbols)
                (best,) = found[row]
                assert list(best.token_ids) == [token for token, _, _ in emissions]
                assert [span[:2] for span in best.spans] == [emission[1:] for emission in emissions]
                assert best.score == pytest.approx(score, abs=1e-3)
                texts.add(best.token_ids)
                skipped += steps < length
    assert len(texts) > 30
    assert skipped > 10


@torch.no_grad()
def test_the_search_with_big_blanks_is_the_slow_one() -> None:
    model = multi_blank_model({"ctc_weight": 0.0, "transducer_multi_blank_durations": [2, 4]})
    texts = set()
    for seed in range(12):
        parts, encoded = disturb(model, seed).transducer_parts, random_inputs(seed)
        found = run_search(GreedyTransducer(parts, max_symbols=4), encoded)
        for row, length in enumerate(LENGTHS):
            tokens, score = slow_greedy(parts, encoded.memory[row, :length], 4)
            (best,) = found[row]
            assert list(best.token_ids) == tokens
            assert best.score == pytest.approx(score, abs=1e-3)
            texts.add(best.token_ids)
    assert len(texts) > 15


Score = Callable[[tuple[int, ...], int], float]
"""Weighted score of a token after a text."""


def slow_tsd(
    model: TransducerModel, memory: Tensor, score: Score, *, beam: int, expansions: int
) -> dict[tuple[int, ...], float]:
    """Time-synchronous decoding (Saon et al. 2020) of one utterance, hypothesis by hypothesis."""
    parts = model.transducer_parts
    beams = {(): 0.0}
    for frame in parts.joint.project_frames(memory):
        ended: dict[tuple[int, ...], float] = {}
        growing = dict(beams)
        for expansion in range(expansions):
            more: dict[tuple[int, ...], float] = {}
            for text, total in growing.items():
                predicted = parts.prediction(torch.tensor([[0, *text]]))[0, -1]
                log_probs = parts.log_probs(frame, parts.joint.project_predictions(predicted)).tolist()
                after = total + log_probs[0]
                ended[text] = after if text not in ended else math.log(math.exp(ended[text]) + math.exp(after))
                if expansion < expansions - 1:
                    for token in sorted(range(1, len(log_probs)), key=lambda k: -log_probs[k])[:beam]:
                        more[(*text, token)] = total + log_probs[token] + score(text, token)
            growing = dict(sorted(more.items(), key=lambda item: -item[1])[:beam])
        beams = dict(sorted(ended.items(), key=lambda item: -item[1])[:beam])
    return beams


def write_arpa(path: Path, tokens: Sequence[str]) -> Path:
    """A 3-gram with arbitrary numbers; most n-grams are missing, so that it backs off."""
    generator = torch.Generator().manual_seed(4)

    def value() -> float:
        return -float(torch.rand((), generator=generator)) * 2 - 0.1

    some = list(tokens[2:8])
    pairs = [(a, b) for a in ["<s>", *some] for b in some if value() < -1.0]
    triples = [(*pair, c) for pair in pairs for c in some if (pair[1], c) in pairs and value() < -1.0]
    words = ["<unk>", "<s>", "</s>", *tokens[2:12]]
    lines = ["\\data\\", f"ngram 1={len(words)}", f"ngram 2={len(pairs)}", f"ngram 3={len(triples)}", "", "\\1-grams:"]
    lines += [f"{value():.4f}\t{word}\t{value():.4f}" for word in words]
    lines += ["", "\\2-grams:", *(f"{value():.4f}\t{' '.join(pair)}\t{value():.4f}" for pair in pairs)]
    lines += ["", "\\3-grams:", *(f"{value():.4f}\t{' '.join(triple)}" for triple in triples), "", "\\end\\"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "weights", [{"ngram": 0.8}, {"lm": 0.7}, {"ilm": -0.6}, {"ngram": 0.5, "lm": 0.4, "ilm": -0.3}]
)
@torch.no_grad()
def test_fusion_is_that_of_a_slow_search_that_scores_each_hypothesis(tmp_path: Path, weights: dict[str, float]) -> None:
    model = beam_model("lstm")
    model.joint_network.lin_out.bias[0] -= 5.0
    tokens = model.token_list
    ngram = read_arpa(str(write_arpa(tmp_path / "3.arpa", tokens)))
    table, lm = ngrams(ngram), lm_of(model)
    words = [token if (token,) in table else "<unk>" for token in tokens]

    def of_ngram(text: tuple[int, ...], token: int) -> float:
        context = ("<s>", *(words[past] for past in text))[-2:]
        return slow_score(table, context, words[token])

    def of_lm(text: tuple[int, ...], token: int) -> float:
        return float(lm.lm(torch.tensor([[lm.sos, *text]]))[0, -1].log_softmax(0)[token])

    def of_internal(text: tuple[int, ...], token: int) -> float:
        predicted = model.joint_network.project_predictions(model.decoder(torch.tensor([[0, *text]]))[0, -1])
        logits = model.joint_network(model.joint_network.project_frames(torch.zeros(8)), predicted)
        return float(logits[1:].log_softmax(0)[token - 1])

    slow = {"ngram": of_ngram, "lm": of_lm, "ilm": of_internal}
    ours: dict[str, TextScorer] = {
        "ngram": NgramText(NgramFullScorer(ngram, tokens, eos=None, device=torch.device("cpu"))),
        "lm": LmText(lm),
        "ilm": InternalLm(model.transducer_parts),
    }

    def total(text: tuple[int, ...], token: int) -> float:
        return sum(weight * slow[name](text, token) for name, weight in weights.items())

    given = {"beam_size": 3, "search_type": "tsd", "max_sym_exp": 3, "score_norm": False}
    encoded = encoded_of(model)
    encoded = Encoded(memory=encoded.memory[:, :12], lengths=encoded.lengths.clamp(max=12))
    found = run_search(search_of(model, given, **{name: (ours[name], weights[name]) for name in weights}), encoded)
    for row, length in enumerate(encoded.lengths.tolist()):
        expected = slow_tsd(model, encoded.memory[row, :length], total, beam=3, expansions=3)
        assert [one.token_ids for one in found[row]] == list(expected)
        for one in found[row]:
            assert one.score == pytest.approx(expected[one.token_ids], abs=1e-3)
            for name in weights:
                parts = [slow[name](one.token_ids[:place], token) for place, token in enumerate(one.token_ids)]
                assert one.scores[name] == pytest.approx(sum(parts), abs=1e-3)
    assert max(len(one.token_ids) for hypotheses in found for one in hypotheses) >= 2
