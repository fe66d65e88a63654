"""Code shared by models with attention decoders: the decoder's loss, and the attention weights for plots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.models.encoder.output import EncoderOutput
from tympan.models.label_smoothing import smoothed_loss
from tympan.models.loss import Stat, count_of
from tympan.models.parts import Decoder, KeepsAttention
from tympan.nn.masks import length_mask


@dataclass(frozen=True)
class Text:
    """Token ids (batch, length), -1 beyond the lengths (batch,)."""

    ids: Tensor
    lengths: Tensor

    @classmethod
    def cut(cls, ids: Tensor, lengths: Tensor) -> Text:
        """Build from ids, which may have any value beyond the lengths."""
        return cls(ids.masked_fill(~length_mask(lengths, ids.size(1)), -1), lengths)

    def after(self, tokens: Sequence[int]) -> Text:
        """Prepend these tokens, such as language and task."""
        if not tokens:
            return self
        first = torch.tensor(tokens, dtype=self.ids.dtype, device=self.ids.device).expand(self.ids.size(0), -1)
        return Text(torch.cat([first, self.ids], dim=1), self.lengths + len(tokens))


@dataclass(frozen=True)
class Attended:
    """The loss of a decoder, and its best tokens (batch, length + 1)."""

    total: Tensor
    count: Tensor
    accuracy: Stat
    best: Tensor


def attention_loss(
    decoder: Decoder,
    encoded: EncoderOutput,
    text: Text,
    *,
    sos: int,
    eos: int,
    smoothing: float,
    is_length_normalized: bool,
) -> Attended:
    """Cross entropy with label smoothing over all tokens and eos, normalized by utterances or by tokens."""
    ys_in, ys_out, ys_lengths = add_sos_eos(text, sos=sos, eos=eos)
    logits = decoder(encoded.out, encoded.lengths, ys_in, ys_lengths)
    mask = length_mask(ys_lengths, ys_in.size(1))
    tokens = mask.sum().float()
    best = logits.detach().argmax(-1)
    return Attended(
        total=smoothed_loss(logits, ys_out, mask, smoothing=smoothing),
        count=tokens if is_length_normalized else count_of(text.ids.size(0), logits),
        accuracy=Stat(((best == ys_out) & mask).sum().float(), tokens),
        best=best,
    )


def add_sos_eos(text: Text, *, sos: int, eos: int) -> tuple[Tensor, Tensor, Tensor]:
    """Decoder input (sos first), target (eos last), and their lengths. Inputs beyond them are eos, targets -1."""
    ids, lengths = text.ids, text.lengths
    first = torch.full((ids.size(0), 1), sos, dtype=ids.dtype, device=ids.device)
    ys_in = torch.cat([first, ids.masked_fill(~length_mask(lengths, ids.size(1)), eos)], dim=1)
    ys_out = nn.functional.pad(ids, (0, 1), value=-1).scatter(1, lengths.unsqueeze(1), eos)
    return ys_in, ys_out, lengths + 1


@contextmanager
def attention_kept(model: nn.Module) -> Iterator[Callable[[], dict[str, Tensor]]]:
    """Evaluation mode in which attention layers keep their weights. Yields a function that returns them by name."""
    keepers = {name: module for name, module in model.named_modules() if isinstance(module, KeepsAttention)}
    was_training = model.training
    model.eval()
    for module in keepers.values():
        module.keep_weights = True
    try:
        yield lambda: {name: module.weights for name, module in keepers.items() if module.weights is not None}
    finally:
        for module in keepers.values():
            module.keep_weights = False
            module.weights = None
        model.train(was_training)


def language_prompt(lang_token_id: int, vocab_size: int) -> tuple[int, ...]:
    """The tokens before a text for `model_conf lang_token_id`: this one, or none if it is -1."""
    if lang_token_id >= vocab_size:
        raise UserError(
            f"model_conf lang_token_id: must be below the number of tokens, which is {vocab_size}, or -1 for none; "
            f"found {lang_token_id}"
        )
    return () if lang_token_id == -1 else (lang_token_id,)
