"""Optional abilities of a model that training uses besides the loss, checked with `isinstance`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from tympan.models.parts import Recomputes

__all__ = [
    "AlignsText",
    "CollectsFeatures",
    "ExpectsTokens",
    "NeedsFrames",
    "OwnRates",
    "PlotsAttention",
    "Recomputes",
    "TextAlignment",
]


@runtime_checkable
class CollectsFeatures(Protocol):
    """A model with features whose statistics `--collect_stats` collects."""

    def collect_feats(self, *args: Any, **tensors: Any) -> dict[str, Tensor]:
        """From the tensors of a batch to NAME (batch, time, size) with NAME_lengths (batch,)."""
        ...


@runtime_checkable
class PlotsAttention(Protocol):
    """A model with attention layers to plot."""

    def attention_weights(self, *args: Any, **tensors: Any) -> dict[str, Tensor]:
        """From the tensors of a batch, by layer name: (batch, [heads,] queries, keys)."""
        ...


@runtime_checkable
class NeedsFrames(Protocol):
    """A model with a loss that needs more encoder frames for a longer text."""

    def output_lengths(self, lengths: Tensor, /) -> Tensor:
        """Number of encoder frames for a number of samples or feature frames."""
        ...

    def frames_needed(self, tokens: Tensor, repeats: Tensor, /) -> dict[str, Tensor]:
        """Least encoder frames (batch,) of each loss, for numbers of tokens and of tokens that equal the one before."""
        ...


@runtime_checkable
class ExpectsTokens(Protocol):
    """A model whose search would emit far too many tokens before training, so that its speed can't be measured."""

    def expect_tokens(self, out: Tensor, lengths: Tensor, /, *, tokens: int) -> None:
        """Change the weights so that about so many tokens are emitted for each encoder output (batch, frames, size)."""
        ...


@runtime_checkable
class OwnRates(Protocol):
    """A layer with parameters that `--exclude_weight_decay true` treats differently from others of their kind."""

    def own_learning_rates(self) -> dict[str, float | None]:
        """Its parameters without weight decay, with their learning rate; None: that of the optimizer."""
        ...


@dataclass(frozen=True)
class TextAlignment:
    """The best alignment of a text: first frame, frame after the last, and probability of each token."""

    spans: tuple[tuple[int, int, float], ...]
    log_prob: float


@runtime_checkable
class AlignsText(Protocol):
    """A model that aligns a text by other means than CTC."""

    def align_text(self, out: Tensor, text: Sequence[int], /) -> TextAlignment | None:
        """For encoder output (frames, size) and token ids; None if the text does not fit into the frames."""
        ...
