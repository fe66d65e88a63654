"""Word search: CTC scores of phones, a pronunciation lexicon, and an n-gram over words.

Frame by frame for all utterances at once, keeping the best alignment of each state (Viterbi). A state is a node of the
lexicon tree, the n-gram context, and whether the last frame was blank. Nothing else influences the rest of the search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tympan.decode.lexicon_tree import NO_WORD, ROOT, LexiconTree, build_tree
from tympan.decode.load import LoadedModel
from tympan.decode.ngram_table import NgramTable
from tympan.decode.options import DecodeOptions
from tympan.decode.search import Encoded, Ended
from tympan.errors import UserError
from tympan.text.lexicon import Lexicon
from tympan.text.ngram.load import load_ngram
from tympan.text.ngram.model import NgramModel
from tympan.text.vocabulary import Vocabulary

NEVER = float("-inf")
NO_TOKEN = -1


@dataclass(frozen=True)
class WordScores:
    """What a word adds to the score: its n-gram and a bonus. W words of the lexicon."""

    table: NgramTable | None
    word_of: Tensor  # (W,) their indices in the n-gram
    end: int
    """Index of </s> in the n-gram."""
    weight: float
    bonus: Tensor  # (W,)

    def start(self) -> int:
        return 0 if self.table is None else self.table.begin

    def step(self, contexts: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of words after contexts (same shape), and the new contexts."""
        if self.table is None:
            return self.bonus[words], contexts
        scores, following = self.table.walk(contexts, self.word_of[words])
        return scores.double() * self.weight + self.bonus[words], following

    def finish(self, contexts: Tensor) -> Tensor:
        """Scores of the sentence's end."""
        if self.table is None:
            return torch.zeros(contexts.shape, dtype=torch.float64, device=contexts.device)
        ends = torch.full_like(contexts, self.end)
        return self.table.score(contexts, ends).double() * self.weight


def build_lexicon(loaded: LoadedModel, options: DecodeOptions) -> LexiconSearch:
    """The search over the words of the model's own lexicon."""
    lexicon = loaded.lexicon
    assert lexicon is not None, "SearchKind.needs"
    return load_lexicon_search(lexicon, loaded.codec.vocabulary, loaded.ngram_file, options, loaded.device)


def load_lexicon_search(
    lexicon: Lexicon, vocabulary: Vocabulary, ngram_file: Path | None, options: DecodeOptions, device: torch.device
) -> LexiconSearch:
    """The search over all words of a lexicon."""
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    model = None if ngram_file is None or options.ngram_weight == 0 else load_ngram(ngram_file)
    if model is not None:
        lexicon = lexicon.by_character(set(model.words))
    tree = build_tree(lexicon.pronunciations, ids, device=device, source=lexicon.source)
    scores = _word_scores(model, tree, options, device)
    if model is not None and bool((scores.word_of == model.words.index("<unk>")).all()):
        raise UserError(
            f"{ngram_file}: the n-gram model contains none of the words of {lexicon.source}: train it on a text of "
            f"words in the same upper or lower case"
        )
    return LexiconSearch(tree, scores, blank_id=vocabulary.blank_id, beam_size=options.beam_size, nbest=options.nbest)


def _word_scores(
    model: NgramModel | None, tree: LexiconTree, options: DecodeOptions, device: torch.device
) -> WordScores:
    bonus = torch.full((len(tree.words),), options.penalty, dtype=torch.float64, device=device)
    if model is None:
        return WordScores(table=None, word_of=torch.zeros_like(bonus).long(), end=0, weight=0.0, bonus=bonus)
    numbers = {word: number for number, word in enumerate(model.words)}
    unknown = numbers["<unk>"]
    word_of = torch.tensor([numbers.get(word, unknown) for word in tree.words], device=device)
    is_unknown = word_of == unknown
    # The n-gram has one probability for all unknown words. The unknown words of the lexicon share it.
    sharing = int(is_unknown[torch.unique(tree.word)].sum())
    bonus = bonus - options.ngram_weight * is_unknown * math.log10(max(sharing, 1))
    table = NgramTable.from_model(model, device)
    return WordScores(table=table, word_of=word_of, end=numbers["</s>"], weight=options.ngram_weight, bonus=bonus)


@dataclass(frozen=True)
class _States:
    """B states per utterance; one whose score is -inf is not in use."""

    score: Tensor  # (U, B)
    node: Tensor  # (U, B)
    context: Tensor  # (U, B)
    is_blank: Tensor  # (U, B)

    def pick(self, index: Tensor) -> _States:
        return _States(*(part.gather(1, index) for part in (self.score, self.node, self.context, self.is_blank)))


@dataclass(frozen=True)
class _Step:
    """Backpointers of the states of a frame."""

    parent: Tensor  # (U, B)
    word: Tensor  # (U, B) the word that ended before this frame, or NO_WORD
    token: Tensor  # (U, B) the token that began in this frame, or NO_TOKEN


@dataclass(frozen=True)
class _WordEnds:
    """States that have just ended a word, or the sentence."""

    score: Tensor  # (U, E)
    parent: Tensor  # (U, E)
    word: Tensor  # (U, E)
    context: Tensor  # (U, E)


@dataclass(frozen=True)
class LexiconState:
    """The states after the last frame (None before the first), and the backpointers of every frame."""

    utterances: int
    states: _States | None = None
    steps: tuple[_Step, ...] = ()


class LexiconSearch:
    """Keeps `beam_size` states per utterance and frame, and tries the best `tokens` tokens of a frame."""

    def __init__(
        self,
        tree: LexiconTree,
        words: WordScores,
        *,
        blank_id: int,
        beam_size: int,
        nbest: int = 1,
        tokens: int = 20,
    ) -> None:
        self.tree = tree
        self.words = words
        self.blank_id = blank_id
        self.beam_size = beam_size
        self.nbest = nbest
        self.tokens = tokens

    def start(self, utterances: int) -> LexiconState:
        return LexiconState(utterances)

    @torch.inference_mode()
    def accept(self, state: LexiconState, encoded: Encoded) -> LexiconState:
        assert encoded.log_probs is not None
        log_probs = encoded.log_probs.double().contiguous()  # frame by frame
        states = self._first(log_probs) if state.states is None else state.states
        steps = []
        for frame in range(log_probs.size(1)):
            is_over = (frame >= encoded.lengths).unsqueeze(1)
            states, step = self._advance(states, log_probs[:, frame], is_over)
            steps.append(step)
        return LexiconState(state.utterances, states, (*state.steps, *steps))

    def partial(self, state: LexiconState) -> list[Ended]:
        """The best words so far, as if the sentence ended here."""
        nothing = Ended((), 0.0, {}, words=())
        if state.states is None:
            return [nothing] * state.utterances
        return [found[0] if found else nothing for found in self._results(state.states, state.steps, 1)]

    def finish(self, state: LexiconState) -> list[list[Ended]]:
        if state.states is None:
            return [[] for _ in range(state.utterances)]
        return self._results(state.states, state.steps, self.nbest)

    def _first(self, log_probs: Tensor) -> _States:
        shape = (log_probs.size(0), self.beam_size)
        score = log_probs.new_full(shape, NEVER)
        score[:, 0] = 0.0
        zeros = torch.zeros(shape, dtype=torch.long, device=score.device)
        return _States(score, zeros + ROOT, zeros + self.words.start(), torch.ones_like(zeros, dtype=torch.bool))

    def _advance(self, states: _States, log_probs: Tensor, is_over: Tensor) -> tuple[_States, _Step]:
        """Advance by one frame. log_probs: (U, V)."""
        beams = torch.arange(self.beam_size, device=states.node.device).expand_as(states.node)
        blank = log_probs[:, self.blank_id].unsqueeze(1)
        last = self.tree.token[states.node]
        # The state stays the same: the frame is a blank or repeats the token.
        stay_blank = states.score + blank
        stay_token = states.score + log_probs.gather(1, last.clamp(min=0))
        stay_token = stay_token.masked_fill(states.is_blank, NEVER)
        # A token begins, inside the word or after its end. To repeat the last token, the frame before must be a blank.
        ends = self._word_ends(states)
        node = torch.cat([states.node, torch.full_like(ends.parent, ROOT)], 1)
        context = torch.cat([states.context, ends.context], 1)
        score = torch.cat([states.score, ends.score], 1)
        parent = torch.cat([beams, ends.parent], 1)
        word = torch.cat([torch.full_like(states.node, NO_WORD), ends.word], 1)
        best = self._best_tokens(log_probs)
        child, is_arc = self.tree.follow(node.unsqueeze(2), best.indices.unsqueeze(1))
        repeats = (best.indices.unsqueeze(1) == last.gather(1, parent).unsqueeze(2)) & ~states.is_blank.gather(
            1, parent
        ).unsqueeze(2)
        begun = score.unsqueeze(2) + best.values.unsqueeze(1)
        begun = begun.masked_fill(~is_arc | repeats, NEVER).flatten(1)

        choices = best.indices.size(1)
        everything = torch.cat([stay_blank, stay_token, begun], 1)
        found = everything.topk(min(3 * self.beam_size, everything.size(1)), dim=1)
        chosen, stays = found.indices, 2 * self.beam_size
        is_new = chosen >= stays
        source = torch.where(is_new, (chosen - stays).clamp(min=0) // choices, chosen % self.beam_size)
        began = (chosen - stays).clamp(min=0) % choices
        after = _States(
            score=found.values,
            node=torch.where(is_new, child.flatten(1).gather(1, (chosen - stays).clamp(min=0)), node.gather(1, source)),
            context=context.gather(1, source),
            is_blank=chosen < self.beam_size,
        )
        kept = self._distinct(after)
        step = _Step(
            parent=torch.where(is_over, beams, parent.gather(1, source).gather(1, kept)),
            word=word.gather(1, source).gather(1, kept).masked_fill(is_over, NO_WORD),
            token=torch.where(is_new, best.indices.gather(1, began), NO_TOKEN)
            .gather(1, kept)
            .masked_fill(is_over, NO_TOKEN),
        )
        after = after.pick(kept)
        frozen = zip(
            (states.score, states.node, states.context, states.is_blank),
            (after.score, after.node, after.context, after.is_blank),
            strict=True,
        )
        return _States(*(torch.where(is_over, old, new) for old, new in frozen)), step

    def _best_tokens(self, log_probs: Tensor) -> torch.return_types.topk:
        others = log_probs.clone()
        others[:, self.blank_id] = NEVER
        return others.topk(min(self.tokens, others.size(1) - 1), dim=1)

    def _word_ends(self, states: _States) -> _WordEnds:
        """The best states that end a word here: (U, beam_size) at most."""
        words = self.tree.ending(states.node)  # (U, B, H)
        scores, contexts = self.words.step(states.context.unsqueeze(2).expand_as(words), words.clamp(min=0))
        scores = (states.score.unsqueeze(2) + scores).masked_fill(words == NO_WORD, NEVER).flatten(1)
        best = scores.topk(min(self.beam_size, scores.size(1)), dim=1)
        return _WordEnds(
            score=best.values,
            parent=best.indices // words.size(2),
            word=words.flatten(1).gather(1, best.indices),
            context=contexts.flatten(1).gather(1, best.indices),
        )

    def _distinct(self, states: _States) -> Tensor:
        """Indices of the best `beam_size` different states. The input is sorted, best first."""
        key = (states.context * self.tree.nodes + states.node) * 2 + states.is_blank
        order = key.sort(dim=1, stable=True)
        is_again = torch.zeros_like(key, dtype=torch.bool)
        is_again[:, 1:] = order.values[:, 1:] == order.values[:, :-1]
        is_again = torch.zeros_like(is_again).scatter(1, order.indices, is_again)
        states.score.masked_fill_(is_again, NEVER)
        return states.score.topk(self.beam_size, dim=1).indices

    @torch.inference_mode()
    def _results(self, states: _States, steps: Sequence[_Step], nbest: int) -> list[list[Ended]]:
        """Sentences: the states at the end of a word, or before a new one. If there are none, for example because a
        recording breaks off, the last unfinished word is left out.
        """
        ends = self._word_ends(states)
        is_inside = (states.node != ROOT) & (ends.score > NEVER).any(1, keepdim=True)
        score = torch.cat([states.score.masked_fill(is_inside, NEVER), ends.score], 1)
        context = torch.cat([states.context, ends.context], 1)
        score = score + self.words.finish(context)
        parent = torch.cat([torch.arange(self.beam_size).expand_as(states.node).to(ends.parent.device), ends.parent], 1)
        word = torch.cat([torch.full_like(states.node, NO_WORD), ends.word], 1)
        # Several alignments of one sentence may have survived.
        best = score.topk(min(4 * nbest, score.size(1)), dim=1)
        words, tokens = self._trace(steps, parent.gather(1, best.indices), word.gather(1, best.indices))
        return [
            self._ranked(*parts, nbest)
            for parts in zip(best.values.tolist(), words.tolist(), tokens.tolist(), strict=True)
        ]

    def _trace(self, steps: Sequence[_Step], parent: Tensor, word: Tensor) -> tuple[Tensor, Tensor]:
        """(U, R, T + 1) words and (U, R, T) tokens, by the frame after which, or in which, they were found."""
        words, tokens = [word], []
        for step in reversed(steps):
            words.append(step.word.gather(1, parent))
            tokens.append(step.token.gather(1, parent))
            parent = step.parent.gather(1, parent)
        return torch.stack(words[::-1], 2), torch.stack(tokens[::-1], 2)

    def _ranked(self, scores: list[float], words: list[list[int]], tokens: list[list[int]], nbest: int) -> list[Ended]:
        found: dict[tuple[str, ...], Ended] = {}
        for score, word_row, token_row in zip(scores, words, tokens, strict=True):
            if not math.isfinite(score):
                break
            with_lengths = self._with_lengths(word_row, token_row)
            ids = tuple(token for token in token_row if token != NO_TOKEN)[: sum(count for _, count in with_lengths)]
            said = tuple(word for word, _ in with_lengths)
            found.setdefault(said, Ended(ids, score, {"words": score}, words=with_lengths))
        return list(found.values())[:nbest]

    def _with_lengths(self, words: list[int], tokens: list[int]) -> tuple[tuple[str, int], ...]:
        """Words with the number of tokens of each. Word t of `words` ended before token t of `tokens` began."""
        found, count = [], 0
        for word, token in zip(words, [*tokens, NO_TOKEN], strict=True):
            if word != NO_WORD:
                found.append((self.tree.words[word], count))
                count = 0
            count += token != NO_TOKEN
        return tuple(found)
