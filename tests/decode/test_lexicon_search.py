"""The word search against an exhaustive search over all sentences."""

import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tympan.data.kaldi_dir import Segment
from tympan.decode.hypothesis import Hypothesis, join_hypotheses
from tympan.decode.lexicon_search import LexiconSearch, load_lexicon_search
from tympan.decode.lexicon_tree import build_tree
from tympan.decode.options import DecodeOptions
from tympan.decode.search import Encoded, run_search
from tympan.errors import UserError
from tympan.text.lexicon import read_lexicon
from tympan.text.vocabulary import Vocabulary

TOKENS = Vocabulary(["<blank>", "<unk>", "T", "UW", "OW", "N", "<sos/eos>"])
LEXICON = "TWO T UW\nTOO T UW\nO OW\nNO N OW\nON OW N\nTOT T OW T\nTOT T UW T\n"
ARPA = r"""\data\
ngram 1=8
ngram 2=5

\1-grams:
-1.5 <unk>
0 <s> -0.3
-0.9 </s>
-0.8 TWO -0.2
-1.1 TOO -0.1
-0.7 O -0.4
-0.9 NO
-1.2 TOT

\2-grams:
-0.3 <s> NO
-0.5 TWO O
-0.2 O </s>
-0.6 O TWO
-0.4 NO NO

\end\
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "lexicon.txt").write_text(LEXICON, encoding="utf-8")
    (tmp_path / "2gram.arpa").write_text(ARPA, encoding="utf-8")
    return tmp_path / "lexicon.txt", tmp_path / "2gram.arpa"


def search_for(
    files: tuple[Path, Path], *, weight: float, penalty: float = 0.0, beam_size: int = 200, nbest: int = 1
) -> LexiconSearch:
    settings = DecodeOptions(search="lexicon", beam_size=beam_size, ngram_weight=weight, penalty=penalty, nbest=nbest)
    return load_lexicon_search(read_lexicon(files[0]), TOKENS, files[1], settings, torch.device("cpu"))


def random_log_probs(*lengths: int, seed: int) -> Encoded:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(len(lengths), max(lengths), len(TOKENS), generator=generator, dtype=torch.float64)
    return Encoded(memory=logits, lengths=torch.tensor(lengths), log_probs=logits.log_softmax(2))


def best_path(log_probs: Tensor, ids: tuple[int, ...]) -> float:
    """The best of all alignments, by a plain Viterbi search."""
    states = [0, *(state for token in ids for state in (token, 0))]
    scores = [float("-inf")] * len(states)
    scores[0] = float(log_probs[0, 0])
    if len(states) > 1:
        scores[1] = float(log_probs[0, states[1]])
    for frame in log_probs[1:]:
        before = scores
        scores = [
            max(
                before[place],
                before[place - 1] if place else float("-inf"),
                before[place - 2] if place > 1 and state and state != states[place - 2] else float("-inf"),
            )
            + float(frame[state])
            for place, state in enumerate(states)
        ]
    return max(scores[-2:])


def bigram(words: tuple[str, ...]) -> float:
    """log10 probability of a sentence, from the text of the ARPA file."""
    entries = {}
    for line in ARPA.splitlines():
        score, *rest = line.split() or [""]
        if score.lstrip("-").replace(".", "").isdigit():
            last = rest[-1]
            has_backoff = last.startswith("-") and len(rest) > 1
            entries[tuple(rest[:-1] if has_backoff else rest)] = (float(score), float(last) if has_backoff else 0.0)
    total = 0.0
    # ON is the only word that is not in the n-gram.
    heard = ["<unk>" if word == "ON" else word for word in words]
    for before, word in itertools.pairwise(["<s>", *heard, "</s>"]):
        known = entries.get((before, word))
        total += entries[(word,)][0] + entries[(before,)][1] if known is None else known[0]
    return total


def every_sentence(files: tuple[Path, Path], log_probs: Tensor, weight: float, penalty: float) -> dict:
    lexicon = read_lexicon(files[0])
    known = list(lexicon.pronunciations)
    scored = {}
    for count in range(len(log_probs) + 1):
        for words in itertools.product(known, repeat=count):
            acoustic = max(
                best_path(log_probs, tuple(TOKENS.tokens2ids([phone for phones in said for phone in phones])))
                for said in itertools.product(*(lexicon.pronunciations[word] for word in words))
            )
            scored[words] = acoustic + penalty * count + (weight * bigram(words) if weight else 0.0)
    return scored


@pytest.mark.parametrize("weight", [0.0, 0.8])
@pytest.mark.parametrize("seed", range(6))
def test_it_finds_the_best_sentence_of_all(files: tuple[Path, Path], seed: int, weight: float) -> None:
    encoded = random_log_probs(4, seed=seed)
    assert encoded.log_probs is not None
    found = run_search(search_for(files, weight=weight, penalty=-0.4, nbest=5), encoded)[0]
    expected = every_sentence(files, encoded.log_probs[0], weight, -0.4)
    best = max(expected.values())
    assert found[0].score == pytest.approx(best, abs=1e-6)
    for one in found:
        assert one.score == pytest.approx(expected[tuple(word for word, _ in one.words or ())], abs=1e-6)
        assert sum(count for _, count in one.words or ()) == len(one.token_ids)


def test_the_batch_does_not_change_the_result(files: tuple[Path, Path]) -> None:
    encoded = random_log_probs(9, 4, 7, seed=3)
    search = search_for(files, weight=0.5, beam_size=30, nbest=3)
    together = run_search(search, encoded)
    for row in range(3):
        alone = run_search(search, encoded.select(torch.tensor([row])))[0]
        assert [one.words for one in alone] == [one.words for one in together[row]]
        assert [one.score for one in alone] == pytest.approx([one.score for one in together[row]], abs=1e-12)


def test_a_word_that_breaks_off_is_left_out(files: tuple[Path, Path]) -> None:
    said = torch.tensor([4, 0, 2, 2])  # O, then the beginning of TWO
    logits = torch.full((1, 4, len(TOKENS)), -40.0).scatter(2, said.view(1, 4, 1), 0.0)
    encoded = Encoded(memory=logits, lengths=torch.tensor([4]), log_probs=logits.log_softmax(2))
    (found,) = run_search(search_for(files, weight=0.1, beam_size=1), encoded)
    assert found[0].words == (("O", 1),)
    assert found[0].token_ids == (4,)


def test_an_ngram_of_other_words_is_named(files: tuple[Path, Path]) -> None:
    files[1].write_text(ARPA.lower().replace("<unk>", "<unk>"), encoding="utf-8")
    with pytest.raises(UserError, match="contains none of the words"):
        search_for(files, weight=0.5)


def test_nan_scores_give_no_text(files: tuple[Path, Path]) -> None:
    logits = torch.full((1, 5, len(TOKENS)), float("nan"))
    encoded = Encoded(memory=logits, lengths=torch.tensor([5]), log_probs=logits)
    assert run_search(search_for(files, weight=0.5), encoded) == [[]]


def test_words_of_several_pieces_are_joined_with_spaces() -> None:
    pieces = [
        (Segment("", start), Hypothesis(text, ("T", "UW"), (2, 3), -1.0, {}, words=((text, 2),)))
        for start, text in ((0.0, "TWO"), (30.0, "TOO"))
    ]
    whole = join_hypotheses(pieces, separator="")
    assert whole.text == "TWO TOO"
    assert whole.words == (("TWO", 2), ("TOO", 2))


def test_a_model_of_other_phones_is_named(files: tuple[Path, Path]) -> None:
    settings = DecodeOptions(search="lexicon")
    with pytest.raises(UserError, match="trained with another"):
        load_lexicon_search(
            read_lexicon(files[0]),
            Vocabulary(["<blank>", "<unk>", "a", "<sos/eos>"]),
            None,
            settings,
            torch.device("cpu"),
        )


@pytest.mark.parametrize(("words", "warns"), [(300, False), (50, True)])
def test_a_few_words_without_phones_are_no_reason_for_a_warning(
    caplog: pytest.LogCaptureFixture, words: int, warns: bool
) -> None:
    pronunciations = {f"W{number}": [("T", "UW")] for number in range(words)} | {"<sil>": [("SIL",)]}
    caplog.set_level("WARNING")
    tree = build_tree(pronunciations, {"T": 2, "UW": 3}, device=torch.device("cpu"), source="lexicon.txt")
    assert len(tree.words) == words + 1
    assert ("1 of 51 words are skipped" in caplog.text) is warns
