"""The n-gram in tensors against KenLM, a slow reference, and ESPnet2's search."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tympan.decode.ngram_scorer import NgramFullScorer, NgramPartScorer, load_ngram_scorer
from tympan.decode.ngram_table import NgramTable
from tympan.decode.search import Encoded
from tympan.errors import UserError
from tympan.text.ngram.arpa_reader import read_arpa
from tympan.text.ngram.model import NgramModel

CPU = torch.device("cpu")


def encoded(utterances: int) -> Encoded:
    return Encoded(memory=torch.zeros(utterances, 1, 1), lengths=torch.ones(utterances, dtype=torch.long))


def ngrams(model: NgramModel) -> dict[tuple[str, ...], tuple[float, float]]:
    found = {}
    for n, count in enumerate(model.counts, start=1):
        first = model.first_entry(n)
        for entry, row in enumerate(model.ngrams(first, first + count), start=first):
            backoff = float(model.backoff[entry + 1]) if n < model.order else 0.0
            found[tuple(model.words[w] for w in row)] = (float(model.log_prob[entry]), backoff)
    return found


def slow_score(table: dict[tuple[str, ...], tuple[float, float]], context: tuple[str, ...], word: str) -> float:
    if (*context, word) in table:
        return table[(*context, word)][0]
    return table.get(context, (0.0, 0.0))[1] + slow_score(table, context[1:], word)


@pytest.mark.parametrize("name", ["tiny/2gram", "tiny/3gram", "tiny/4gram", "zh/4gram", "zh/4gram.prune001"])
def test_random_sentences_score_as_in_kenlm(golden: Path, name: str) -> None:
    kenlm = pytest.importorskip("kenlm")
    path = golden / "kenlm" / f"{name}.arpa"
    reference, model = kenlm.Model(str(path)), read_arpa(str(path))
    table = NgramTable.from_model(model, CPU)
    generator = random.Random(3)
    text = (path.parent / "train.txt").read_text(encoding="utf-8").split()
    numbers = {word: number for number, word in enumerate(model.words)}
    sentences = []
    for _ in range(100):
        # Pieces of real text, so that long n-grams match, with random and unknown words in between.
        start = generator.randrange(len(text))
        words = text[start : start + generator.randrange(1, 12)]
        sentences.append([generator.choice([*text, "unheard"]) if generator.random() < 0.2 else w for w in words])
    longest = max(map(len, sentences))
    padded = torch.tensor(
        [[numbers.get(w, numbers["<unk>"]) for w in s] + [numbers["</s>"]] * (longest + 1 - len(s)) for s in sentences]
    )
    state = torch.full((len(sentences),), table.begin)
    scores = []
    for column in padded.T:
        everything = table.distribution(state)
        scores.append(table.score(state, column))
        torch.testing.assert_close(everything.gather(1, column.unsqueeze(1)).squeeze(1), scores[-1])
        state = table.advance(state, column)
    for row, sentence in zip(torch.stack(scores, 1), sentences, strict=True):
        expected = [score for score, _, _ in reference.full_scores(" ".join(sentence))]
        np.testing.assert_allclose(row[: len(sentence) + 1], expected, atol=1e-4)


@pytest.mark.parametrize("name", ["tiny", "zh"])
def test_golden_totals(golden: Path, name: str) -> None:
    folder = golden / "kenlm" / name
    model = read_arpa(str(folder / "4gram.arpa"))
    table = NgramTable.from_model(model, CPU)
    numbers = {word: number for number, word in enumerate(model.words)}
    for query in json.loads((folder / "scores_4gram.json").read_text(encoding="utf-8")):
        words = [numbers.get(word, numbers["<unk>"]) for word in query["text"].split()]
        for bos in (0, 1):
            for eos in (0, 1):
                state, total = torch.tensor(table.begin if bos else 0), 0.0
                for word in torch.tensor(words + [numbers["</s>"]] * eos):
                    total += float(table.score(state, word))
                    state = table.advance(state, word)
                assert total == pytest.approx(query[f"bos{bos}_eos{eos}"], abs=1e-3)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_distributions_match_a_slow_reference(golden: Path, order: int) -> None:
    """Every state of a small model, every word."""
    model = read_arpa(str(golden / "kenlm" / "tiny" / f"{order}gram.arpa"))
    table, slow = NgramTable.from_model(model, CPU), ngrams(model)
    contexts: list[tuple[str, ...]] = [(), *(ngram for ngram in slow if len(ngram) < model.order)]
    scores = table.distribution(torch.arange(model.states))
    for context, row in zip(contexts, scores, strict=True):
        expected = [slow_score(slow, context, word) for word in model.words]
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_distributions_sum_to_one(golden: Path) -> None:
    model = read_arpa(str(golden / "kenlm" / "zh" / "4gram.arpa"))
    table = NgramTable.from_model(model, CPU)
    states = torch.tensor([0, table.begin, *range(10, model.states, 997)])
    probabilities = 10 ** table.distribution(states).double()
    # <s> is in the file with the logarithm 0, but is never predicted.
    without = probabilities.sum(1) - probabilities[:, model.words.index("<s>")]
    torch.testing.assert_close(without, torch.ones_like(without), atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["full", "part"])
def test_scores_of_espnet2s_search(golden: Path, kind: str) -> None:
    folder = golden / "espnet2"
    tokens = yaml.safe_load((folder / "conformer" / "config.yaml").read_text(encoding="utf-8"))["token_list"]
    eos = len(tokens) - 1
    path = folder / "conformer_ngram" / "4gram.arpa"
    scorer = load_ngram_scorer(path, tokens, eos=eos, device=CPU, is_full=kind == "full")
    nbest = json.loads((folder / "conformer_ngram" / "expected.json").read_text(encoding="utf-8"))["nbest"][kind]
    for hypotheses in nbest.values():
        # The search ended at its limit: the last eos was not scored.
        sequences = torch.tensor([h["yseq"][:-1] for h in hypotheses]).unsqueeze(0)
        state = scorer.start(encoded(1), len(hypotheses))
        total = torch.zeros(1, len(hypotheses))
        for token, following in zip(sequences.unbind(-1)[:-1], sequences.unbind(-1)[1:], strict=True):
            if isinstance(scorer, NgramPartScorer):
                scores, state = scorer.step(token, state, candidates=following.unsqueeze(-1))
            else:
                scores, state = scorer.step(token, state)
                scores = scores.gather(-1, following.unsqueeze(-1))
            total += scores.squeeze(-1)
        np.testing.assert_allclose(total[0], [h["scores"]["ngram"] for h in hypotheses], atol=1e-4)


def test_tokens_outside_the_model_and_the_end(golden: Path) -> None:
    model = read_arpa(str(golden / "kenlm" / "tiny" / "4gram.arpa"))
    tokens = ["<blank>", "<unk>", "c", "zebra", "a", "<sos/eos>"]
    scorer = NgramFullScorer(model, tokens, eos=5, device=CPU)
    assert scorer.unknown_tokens == ["<blank>", "<unk>", "zebra"]
    scores, _ = scorer.step(torch.tensor([[5]]), scorer.start(encoded(1), 1))
    slow = ngrams(model)
    words = ["<unk>", "<unk>", "c", "<unk>", "a", "</s>"]
    expected = [slow_score(slow, ("<s>",), word) for word in words]
    np.testing.assert_allclose(scores[0, 0], expected, atol=1e-5)


def test_states_follow_the_hypotheses(golden: Path) -> None:
    model = read_arpa(str(golden / "kenlm" / "tiny" / "3gram.arpa"))
    tokens = ["a", "b", "c", "d", "e", "<sos/eos>"]
    full = NgramFullScorer(model, tokens, eos=5, device=CPU)
    part = NgramPartScorer(model, tokens, eos=5, device=CPU)
    slow = ngrams(model)
    state = full.start(encoded(2), 2)
    _, state = full.step(torch.full((2, 2), 5), state)
    _, state = full.step(torch.tensor([[0, 1], [2, 3]]), state)
    state = state.reorder(torch.tensor([[1, 1], [0, 1]]))
    scores, after = full.step(torch.tensor([[2, 3], [4, 0]]), state)
    histories = [["b c", "b d"], ["c e", "d a"]]
    for u in range(2):
        for b in range(2):
            context = tuple(histories[u][b].split())
            expected = [slow_score(slow, context, w) for w in [*tokens[:5], "</s>"]]
            np.testing.assert_allclose(scores[u, b], expected, atol=1e-5)
    candidates = torch.tensor([[[0, 5], [1, 2]], [[3, 3], [5, 4]]])
    some, same = part.step(torch.tensor([[2, 3], [4, 0]]), state, candidates=candidates)
    torch.testing.assert_close(some, scores.gather(-1, candidates))
    assert torch.equal(after.context, same.context)
    assert after.keep(torch.tensor([1])).context.shape == (1, 2)


@pytest.mark.parametrize("is_full", [True, False])
def test_kenlm_scores_as_the_table_does(golden: Path, is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package reads ARPA files as well as its binary files, which only KenLM's build_binary can write."""
    pytest.importorskip("kenlm")
    path = golden / "kenlm" / "tiny" / "3gram.arpa"
    tokens = ["<blank>", "<unk>", *sorted(set((path.parent / "train.txt").read_text().split()))[:12], "<sos/eos>"]
    eos = len(tokens) - 1
    ours = load_ngram_scorer(path, tokens, eos=eos, device=CPU, is_full=is_full)
    monkeypatch.setattr("tympan.decode.ngram_scorer.is_kenlm_binary", lambda _: True)
    theirs = load_ngram_scorer(path, tokens, eos=eos, device=CPU, is_full=is_full)
    assert type(theirs).__name__ == ("KenlmFullScorer" if is_full else "KenlmPartScorer")
    states = [scorer.start(encoded(2), 3) for scorer in (ours, theirs)]
    generator = torch.Generator().manual_seed(0)
    last = torch.full((2, 3), eos)
    for _ in range(6):
        candidates = {} if is_full else {"candidates": torch.randint(len(tokens), (2, 3, 4), generator=generator)}
        found = [scorer.step(last, state, **candidates) for scorer, state in zip((ours, theirs), states, strict=True)]
        torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-5)
        parents = torch.randint(3, (2, 3), generator=generator)
        states = [state.reorder(parents) for _, state in found]
        last = torch.randint(2, eos, (2, 3), generator=generator)


@pytest.mark.parametrize("kind", ["probing", "trie"])
def test_binary_files_of_kenlm_give_the_golden_scores(kind: str) -> None:
    """The files were written by KenLM's build_binary from 4gram.arpa next to them."""
    pytest.importorskip("kenlm")
    folder = Path(__file__).parents[1] / "golden" / "kenlm" / "tiny"
    tokens = ["<blank>", "<unk>", *sorted(set((folder / "train.txt").read_text().split())), "<sos/eos>"]
    eos = len(tokens) - 1
    scorer = load_ngram_scorer(folder / f"4gram.{kind}.bin", tokens, eos=eos, device=CPU)
    assert type(scorer).__name__ == "KenlmFullScorer"
    for sentence in json.loads((folder / "scores_4gram.json").read_text()):
        ids = [tokens.index(word) if word in tokens else 1 for word in sentence["text"].split()]
        state, last, total = scorer.start(encoded(1), 1), eos, 0.0
        for token in [*ids, eos]:
            scores, state = scorer.step(torch.tensor([[last]]), state)
            total, last = total + float(scores[0, 0, token]), token
        assert total == pytest.approx(sentence["bos1_eos1"], abs=1e-5)


def test_a_binary_file_of_kenlm_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "4gram.bin"
    path.write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0")
    monkeypatch.setitem(sys.modules, "kenlm", None)
    with pytest.raises(UserError, match="needs the package kenlm: pip install"):
        load_ngram_scorer(path, ["<blank>", "<unk>", "<sos/eos>"], eos=None, device=CPU)


def test_a_damaged_binary_file_of_kenlm(tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    path = tmp_path / "4gram.bin"
    path.write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0" + bytes(100))
    with pytest.raises(UserError, match=r"4gram\.bin: .*KenLM can read"):
        load_ngram_scorer(path, ["<blank>", "<unk>", "<sos/eos>"], eos=None, device=CPU)
