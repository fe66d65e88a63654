"""Extend or replace a model's token list: new tokens, and new rows of the layers that have one row per token."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tympan.config.asr import AsrTrainConfig
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.models.weights import in_own_names
from tympan.text.codec import WORD_START, TextCodec
from tympan.text.sentencepiece import BpeTokenizer
from tympan.text.vocabulary import SOS_EOS

_SPECIAL = re.compile(r"<.+>|\[.+\]")
"""Names of tokens that are not written, such as <blank>, <sos/eos> and [UNK]."""


@dataclass(frozen=True)
class Coverage:
    """How well a token list covers some texts."""

    tokens: int
    """Number of tokens of the texts."""
    missing: Counter[str]
    """Tokens that are not in the list. Of subwords, the characters that no piece covers."""
    unmapped: int = 0
    """Number of tokens that are <unk> already before the lookup, such as words that a lexicon does not have."""

    @property
    def unknown_share(self) -> float:
        """Share of the tokens that become <unk>."""
        return (sum(self.missing.values()) + self.unmapped) / max(self.tokens, 1)

    def __str__(self) -> str:
        number = sum(self.missing.values())
        if not number and not self.unmapped:
            return f"all {self.tokens:,} tokens of the text are in the token list"
        lines = []
        if number:
            shown = ", ".join(f"{token} ({times})" for token, times in self.missing.most_common(20))
            more = f" and {len(self.missing) - 20} more" if len(self.missing) > 20 else ""
            share = 100 * number / max(self.tokens, 1)
            lines.append(
                f"{len(self.missing)} tokens of the text are not in the token list ({number:,} times, {share:.1f} % of "
                f"the text): {shown}{more}"
            )
        if self.unmapped:
            lines.append(f"{self.unmapped:,} tokens of the text can't be mapped: the tokenizer makes <unk> of them")
        return "; ".join(lines)


def coverage(texts: Iterable[str], codec: TextCodec) -> Coverage:
    """Tokens of the texts that the vocabulary lacks."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(codec.tokenize(text))
    unknown = codec.vocabulary.tokens[codec.vocabulary.unk_id]
    unmapped = counts.pop(unknown, 0)
    missing: Counter[str] = Counter()
    for token, times in counts.items():
        if token in codec.vocabulary:
            continue
        if isinstance(codec.tokenizer, BpeTokenizer):
            for character in token.replace(WORD_START, ""):
                missing[character] += times
        else:
            missing[token] += times
    return Coverage(sum(counts.values()) + unmapped, missing, unmapped)


def extended_tokens(tokens: Sequence[str], new: Iterable[str]) -> list[str]:
    """The list with new tokens at its end, but before `<sos/eos>` if this is the last token."""
    added = [token for token in new if token not in set(tokens)]
    if tokens and tokens[-1] == SOS_EOS:
        return [*tokens[:-1], *added, tokens[-1]]
    if SOS_EOS not in tokens:
        raise UserError(
            "the token list can't be extended: it has no <sos/eos>. Whisper's tokens cover every text; in other lists "
            "without it, the last token marks the end of a sentence"
        )
    return [*tokens, *added]


def with_pieces(model: bytes, characters: Iterable[str]) -> bytes:
    """A sentencepiece model with these characters as further pieces. Texts without them are split as before."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise UserError(f"extending a sentencepiece model needs the package protobuf: pip install protobuf ({error})") from None  # fmt: skip  # noqa: E501
    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(model)
    known = {piece.piece for piece in proto.pieces}
    lowest = min((piece.score for piece in proto.pieces), default=0.0)
    for character in characters:
        if character not in known:
            piece = proto.pieces.add()
            piece.piece, piece.score = character, lowest - 1.0
    content: bytes = proto.SerializeToString()
    return content


def similar_tokens(token: str, known: Mapping[str, int]) -> list[int]:
    """Ids of tokens to start a new one from: another case, or without accents; else all ordinary tokens."""
    base = "".join(part for part in unicodedata.normalize("NFD", token) if not unicodedata.combining(part))
    forms = [token.lower(), token.upper(), token.title(), base, base.lower(), base.upper()]
    for form in [form for one in forms for form in (one, f"{WORD_START}{one}")]:
        if form in known and form != token:
            return [known[form]]
    ordinary = [number for name, number in known.items() if not _SPECIAL.fullmatch(name)]
    return ordinary or list(known.values())


def vocabulary_dims(config: AsrTrainConfig, weights: Mapping[str, Tensor]) -> dict[str, int]:
    """Name of each weight with one row per token, and the dimension of these rows.

    Found by building the model with one more token and comparing the shapes.
    """
    assert isinstance(config.token_list, list)
    tokens = extended_tokens(config.token_list, ["<another token>"])
    larger = build_asr_model(dataclasses.replace(config, token_list=tokens), reads_statistics=False)
    dims = {}
    for name, tensor in larger.state_dict().items():
        if name in weights and weights[name].shape != tensor.shape:
            old = weights[name].shape
            different = [dim for dim in range(tensor.dim()) if tensor.size(dim) != old[dim]]
            assert len(different) == 1, f"{name}: {tuple(old)} and {tuple(tensor.shape)}"
            dims[name] = different[0]
    return dims


def with_tokens(
    weights: Mapping[str, Tensor], dims: Mapping[str, int], *, old: Sequence[str], new: Sequence[str]
) -> dict[str, Tensor]:
    """The weights for another token list. Rows of tokens in both lists are copied unchanged.

    Rows of other tokens are the mean of the rows of similar tokens.
    """
    known = {token: number for number, token in enumerate(old)}
    kept = [(place, known[token]) for place, token in enumerate(new) if token in known]
    added = [(place, similar_tokens(token, known)) for place, token in enumerate(new) if token not in known]
    return {
        name: _moved_rows(tensor, dims[name], len(new), kept, added) if name in dims else tensor
        for name, tensor in weights.items()
    }


def _moved_rows(
    tensor: Tensor, dim: int, size: int, kept: Sequence[tuple[int, int]], added: Sequence[tuple[int, list[int]]]
) -> Tensor:
    rows = tensor.movedim(dim, 0)
    result = rows.new_empty(size, *rows.shape[1:])
    places, sources = zip(*kept, strict=True) if kept else ((), ())
    result[torch.tensor(places, dtype=torch.long)] = rows[torch.tensor(sources, dtype=torch.long)]
    means: dict[tuple[int, ...], Tensor] = {}
    for place, similar in added:
        key = tuple(similar)
        if key not in means:
            means[key] = rows[similar].double().mean(0).to(rows.dtype)
        result[place] = means[key]
    return result.movedim(0, dim).contiguous()


def own_weights(config: AsrTrainConfig, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The weights in Tympan's names, and the names of the model's parameters (without buffers)."""
    model = build_asr_model(config, reads_statistics=False)
    return in_own_names(model, weights), [name for name, _ in model.named_parameters()]
