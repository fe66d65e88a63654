"""Prompts of Whisper's decoder: tokens before the text, rules for times, detection of the language."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.text.test_whisper_tokens import write_tiktoken
from tympan.decode.options import DecodeOptions
from tympan.decode.prompt import LATEST_START, Prompt, PromptedScorer, read_prompt, spoken, spoken_hypothesis
from tympan.decode.search import Encoded, Ended
from tympan.errors import UserError
from tympan.nn.beam_state import BeamState
from tympan.text.cleaner import TextCleaner
from tympan.text.codec import TextCodec
from tympan.text.vocabulary import Vocabulary
from tympan.text.whisper import WhisperTokenizer

# Tokens: 0 to 5 text, 6 eos, 7 start, 8 and 9 languages, 10 no times, 11 and more times
EOS, FIRST, VOCABULARY = 6, 11, 80


@dataclass(frozen=True)
class Heard(BeamState):
    """The tokens so far."""

    tokens: Tensor  # (U, B, length)


class Fixed:
    """Scores that are a function of the position and the last token, so that a reference is easy to compute."""

    def start(self, encoded: Encoded, beams: int) -> Heard:
        return Heard(torch.zeros(encoded.utterances, beams, 0, dtype=torch.long))

    def step(self, tokens: Tensor, state: Heard) -> tuple[Tensor, Heard]:
        state = Heard(torch.cat([state.tokens, tokens.unsqueeze(2)], dim=2))
        return self.scores(tokens, state.tokens.size(2)), state

    @staticmethod
    def scores(tokens: Tensor, position: int) -> Tensor:
        number = torch.arange(VOCABULARY, dtype=torch.float)
        return (3 * torch.sin(1.7 * number + 0.9 * tokens.unsqueeze(-1) + position)).log_softmax(-1)


def encoded(utterances: int) -> Encoded:
    return Encoded(torch.zeros(utterances, 4, 2), torch.full((utterances,), 4))


def run(prompt: Prompt, rows: list[list[int]]) -> tuple[list[Tensor], BeamState]:
    """The scores after each token of some hypotheses of one utterance."""
    scorer = PromptedScorer(Fixed(), prompt)
    state = scorer.start(encoded(1), len(rows))
    found = []
    for step in range(len(rows[0])):
        tokens = torch.tensor([[row[step] for row in rows]])
        scores, state = scorer.step(tokens, state)
        found.append(scores[0])
    return found, state.inner


def allowed_by_openai(sampled: list[int], logits: Tensor, suppressed: tuple[int, ...]) -> Tensor:
    """The rules of openai's `ApplyTimestampRules`, one hypothesis at a time."""
    logits = logits.clone()
    logits[list(suppressed)] = -torch.inf
    is_time = bool(sampled) and sampled[-1] >= FIRST
    was_time = len(sampled) < 2 or sampled[-2] >= FIRST
    if is_time:
        if was_time:
            logits[FIRST:] = -torch.inf
        else:
            logits[:EOS] = -torch.inf
    times = [token for token in sampled if token >= FIRST]
    if times:
        last = times[-1] if is_time and not was_time else times[-1] + 1
        logits[FIRST:last] = -torch.inf
    if not sampled:
        logits[:FIRST] = -torch.inf
        logits[FIRST + LATEST_START + 1 :] = -torch.inf
    log_probs = logits.log_softmax(-1)
    if log_probs[FIRST:].logsumexp(-1) > log_probs[:FIRST].max():
        logits[:FIRST] = -torch.inf
    return logits.log_softmax(-1)


def test_prompt_comes_before_the_text_and_is_not_in_the_hypothesis() -> None:
    found, heard = run(Prompt((8, 10)), [[7, 2], [7, 4]])
    assert heard.tokens.tolist() == [[[7, 8, 10, 2], [7, 8, 10, 4]]]
    torch.testing.assert_close(found[0], Fixed.scores(torch.tensor([10, 10]), 3))
    torch.testing.assert_close(found[1], Fixed.scores(torch.tensor([2, 4]), 4))


def test_language_is_the_most_probable_one() -> None:
    _, heard = run(Prompt((None, 10), languages=(8, 9)), [[7]])
    best = 8 + int(Fixed.scores(torch.tensor([7]), 1)[0, 8:10].argmax())
    assert heard.tokens.tolist() == [[[7, best, 10]]]


def test_suppressed_tokens_have_no_probability() -> None:
    found, _ = run(Prompt((8,), suppressed=(7, 8, 9)), [[7, 1]])
    for scores in found:
        assert scores[:, 7:10].eq(-torch.inf).all()
        torch.testing.assert_close(scores.exp().sum(-1), torch.ones(1))


@pytest.mark.parametrize("text", [[], [11], [11, 3], [20, 3, 30], [20, 3, 30, 30], [20, 3, 1, 40, 41, 2, 5, 50]])
def test_rules_for_times_equal_openai_whisper(text: list[int]) -> None:
    suppressed = (7, 8, 9, 10)
    prompt = Prompt((8,), suppressed=suppressed, first_time=FIRST, eos=EOS)
    found, _ = run(prompt, [[7, *text]])
    last = text[-1] if text else 8
    expected = allowed_by_openai(text, Fixed.scores(torch.tensor(last), len(text) + 2), suppressed)
    torch.testing.assert_close(found[-1][0], expected)


def test_times_are_divided_among_the_tokens_of_a_segment() -> None:
    tokens = ["<|en|>", "<|0.50|>", " one", " two", "<|2.10|>", "<|3.00|>", " three", "<|4.00|>"]
    found = spoken(tokens)
    assert [tokens[index] for index in found.indices] == [" one", " two", " three"]
    assert found.times == ((0.5, 1.3), (1.3, 2.1), (3.0, 4.0))
    assert spoken(["<|en|>", " one"]).times is None


NAMES = ["!", "h", "i", " ", "yes", "<|startoftranscript|>", "<|endoftext|>", "<|en|>", "<|de|>", "<|transcribe|>"]
NAMES += ["<|notimestamps|>", "<|ic|>", "<|fsc|>", "<|nospeech|>", "intent:yes"]


class Prompted(torch.nn.Module):
    """A model of English transcripts."""

    prompt = (7, 9, 10)
    eos = 6


def codec_of(vocabulary: Path | None) -> TextCodec:
    tokenizer = WhisperTokenizer(vocabulary, "whisper_multilingual")
    return TextCodec(Vocabulary(NAMES, unk_symbol="<|endoftext|>"), tokenizer, TextCleaner(None))


def prompt_of(tmp_path: Path, **options: Any) -> tuple[list[str], list[str]]:
    """The tokens of the prompt, and those that the text may not contain."""
    vocabulary = write_tiktoken(tmp_path / "multilingual.tiktoken")
    found = read_prompt(Prompted(), codec_of(vocabulary), DecodeOptions(**options))  # type: ignore[arg-type]
    assert found is not None
    names = ["auto" if token is None else NAMES[token] for token in found.tokens]
    return names, [NAMES[token] for token in found.suppressed]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "<|en|> <|transcribe|> <|notimestamps|>"),
        ({"lang_prompt_token": "<|de|>"}, "<|de|> <|transcribe|> <|notimestamps|>"),
        ({"lang_prompt_token": "<|en|> <|ic|> <|fsc|>"}, "<|en|> <|ic|> <|fsc|> <|notimestamps|>"),
        ({"lang_prompt_token": "<|ic|>"}, "<|ic|> <|notimestamps|>"),
        ({"nlp_prompt_token": "hi"}, "<|en|> h i <|notimestamps|>"),
        ({"lid_prompt": True}, ""),
    ],
)
def test_prompts_are_espnet2s(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    assert prompt_of(tmp_path, **options)[0] == expected.split()


def test_text_of_a_prompt_is_split_at_added_tokens(tmp_path: Path) -> None:
    (tmp_path / "added.txt").write_text("intent:yes\n<|ic|>\n")
    options = {"nlp_prompt_token": "hi<|ic|>intent:yes", "prompt_token_file": tmp_path / "added.txt"}
    assert prompt_of(tmp_path, **options)[0] == ["<|en|>", "h", "i", "<|ic|>", "intent:yes", "<|notimestamps|>"]
    (tmp_path / "added.txt").write_text("intent:no\n")
    with pytest.raises(UserError, match=r"added\.txt: the token 'intent:no' is not in the model's token list"):
        prompt_of(tmp_path, **options)
    with pytest.raises(UserError, match="nlp_prompt_token: its token 'n' is not in the model's token list"):
        prompt_of(tmp_path, nlp_prompt_token="n")
    with pytest.raises(UserError, match="lang_prompt_token and lid_prompt exclude each other"):
        DecodeOptions(lang_prompt_token="<|en|>", lid_prompt=True)


def test_language_token_is_part_of_the_text_with_lid_prompt(tmp_path: Path) -> None:
    assert prompt_of(tmp_path, lid_prompt=True)[1] == ["<|startoftranscript|>"]
    assert "<|de|>" in prompt_of(tmp_path)[1]
    ended, tokens = Ended((8, 1, 2), -1.0, {"decoder": -1.0}), ["<|de|>", "h", "i"]
    kept = spoken_hypothesis(ended, tokens, codec_of(None), space_symbol="-", keeps_special=True)
    assert (kept.text, kept.tokens, kept.token_ids) == ("<|de|> hi", ("<|de|>", "h", "i"), (8, 1, 2))
    plain = spoken_hypothesis(ended, tokens, codec_of(None), space_symbol="-")
    assert (plain.text, plain.token_ids) == ("hi", (1, 2))
