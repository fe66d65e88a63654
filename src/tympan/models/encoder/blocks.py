"""Code shared by the attention encoders: input layer, blocks, intermediate CTC, layer drop, checkpointing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.models.ctc import Ctc
from tympan.models.encoder.output import EncoderOutput
from tympan.models.encoder.packed import PackableLayers, encode_packed
from tympan.models.encoder.trim import trimmed_lengths
from tympan.nn.attention import (
    LegacyRelPositionMultiHeadedAttention,
    MultiHeadedAttention,
    RelPositionMultiHeadedAttention,
    SelfAttentionContext,
)
from tympan.nn.checkpointing import call_layer
from tympan.nn.fast_attention import FastSelfAttention
from tympan.nn.input_layer import InputLayer
from tympan.nn.masks import key_bias, length_mask
from tympan.nn.position import Positioned


class BlockEncoder(nn.Module):
    """An input layer, blocks called with (x, mask, context), and a normalization.

    `interctc_layer_idx`: blocks whose output intermediate CTC uses, after the final normalization if
    `normalizes_intermediate`. `checkpointed_layers`: numbers of blocks, from 1; 0 is the input layer. `reach`: frames
    that convolutions see on either side; None if utterances can't be concatenated (see packed.py). `ctc_trim` drops
    blank frames at the end after each intermediate CTC.
    """

    def __init__(
        self,
        embed: InputLayer,
        blocks: Iterable[nn.Module],
        after_norm: nn.Module | None,
        *,
        output_size: int,
        layer_drop_rate: float = 0.0,
        interctc_layer_idx: Sequence[int] | None = (),
        interctc_use_conditioning: bool = False,
        normalizes_intermediate: bool = True,
        checkpointed_layers: Sequence[int] = (),
        reach: int | None = None,
        ctc_trim: bool = False,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.embed = embed
        self.encoders = nn.ModuleList(blocks)
        self.after_norm = after_norm
        self.layer_drop_rate = layer_drop_rate
        self.interctc_layer_idx = _check_interctc(interctc_layer_idx, len(self.encoders))
        self.interctc_use_conditioning = interctc_use_conditioning
        self.conditioning_layer: nn.Module | None = None
        self.normalizes_intermediate = normalizes_intermediate
        self.checkpointed_layers = frozenset(checkpointed_layers)
        self.grad_checkpointing = False
        self.reach = reach
        self.ctc_trim = ctc_trim

    def forward(self, features: Tensor, lengths: Tensor, ctc: Ctc | None = None) -> EncoderOutput:
        """features (batch, time, input size), or tokens (batch, time) for `input_layer: embed`; zero beyond lengths."""
        if self.can_pack(features):
            assert self.reach is not None
            layers = PackableLayers(self.embed, self.encoders, self.after_norm, self.reach)
            return encode_packed(layers, features, lengths)
        positioned: Positioned = call_layer(self.embed, features, is_checkpointed=self._is_checkpointed(0))
        lengths = self.output_lengths(lengths)
        x = positioned.x
        mask = length_mask(lengths, x.size(1))
        context = SelfAttentionContext(key_bias(mask, x.dtype), positioned.table, lengths, positioned.max_len)
        intermediate: list[tuple[int, Tensor]] = []
        for number, block in enumerate(self.encoders, start=1):
            if self.training and self.layer_drop_rate > 0 and torch.rand(()).item() < self.layer_drop_rate:
                continue
            x = call_layer(block, x, mask, context, is_checkpointed=self._is_checkpointed(number))
            if number in self.interctc_layer_idx:
                out = self.after_norm(x) if self.normalizes_intermediate and self.after_norm is not None else x
                intermediate.append((number, out))
                if self.interctc_use_conditioning:
                    assert ctc is not None
                    assert self.conditioning_layer is not None
                    x = x + self.conditioning_layer(ctc.softmax(out))
                if self.ctc_trim and ctc is not None:
                    lengths = trimmed_lengths(ctc.softmax(out), lengths)
                    mask = length_mask(lengths, x.size(1))
                    context = replace(context, bias=key_bias(mask, x.dtype), lengths=lengths)
        if self.after_norm is not None:
            x = self.after_norm(x)
        return EncoderOutput(x, lengths, tuple(intermediate))

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of input frames."""
        return self.embed.output_lengths(lengths)

    @property
    def uses_ctc(self) -> bool:
        """Whether the blocks depend on the posteriors of intermediate CTC."""
        return self.interctc_use_conditioning or self.ctc_trim

    @property
    def packs_batches(self) -> bool:
        """Whether its blocks can process concatenated utterances. Intermediate CTC needs them as a batch."""
        return self.reach is not None and not self.interctc_layer_idx

    def can_pack(self, features: Tensor) -> bool:
        """Whether this batch is encoded without padding: on a CPU, in evaluation, without keeping attention weights."""
        is_inference = features.is_cpu and not self.training and not torch.is_grad_enabled()
        if not self.packs_batches or not is_inference or len(features) < 2 or torch.compiler.is_compiling():
            return False
        layers = (layer for block in self.encoders for layer in block.children())
        return not any(layer.keep_weights for layer in layers if isinstance(layer, MultiHeadedAttention))

    def add_conditioning(self, vocab_size: int) -> None:
        """Create the layer that projects CTC posteriors, for `interctc_use_conditioning`."""
        self.conditioning_layer = nn.Linear(vocab_size, self.output_size)

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Recompute activations of the blocks in the backward pass, to save memory."""
        self.grad_checkpointing = is_on

    def _is_checkpointed(self, number: int) -> bool:
        return self.training and (self.grad_checkpointing or number in self.checkpointed_layers)


def resolve_position_types(attention: str, position: str, rel_pos_type: Literal["legacy", "latest"]) -> tuple[str, str]:
    """ESPnet2's three options as (attention, position), each with its `legacy_` prefix if it applies."""
    if rel_pos_type == "legacy":
        position = "legacy_rel_pos" if position == "rel_pos" else position
        attention = "legacy_rel_selfattn" if attention == "rel_selfattn" else attention
    elif attention.startswith("legacy") or position.startswith("legacy"):
        raise UserError(
            f"attention '{attention}' with position '{position}' needs rel_pos_type: legacy, but it is 'latest'"
        )
    is_fitting = {
        "rel_selfattn": ("rel_pos",),
        "legacy_rel_selfattn": ("legacy_rel_pos",),
        "selfattn": ("abs_pos", "scaled_abs_pos"),
        "fast_selfattn": ("abs_pos", "scaled_abs_pos"),
    }
    if position not in is_fitting[attention]:
        allowed = " or ".join(is_fitting[attention])
        raise UserError(f"attention '{attention}' needs pos_enc_layer_type {allowed}, but it is '{position}'")
    return attention, position


def build_self_attention(
    kind: str, *, heads: int, size: int, dropout_rate: float, zero_triu: bool = False, qk_norm: bool = False
) -> MultiHeadedAttention | FastSelfAttention:
    """The self-attention with a name returned by `resolve_position_types`."""
    if size % heads:
        raise UserError(f"output_size {size} must be a multiple of attention_heads, which is {heads}")
    if kind == "rel_selfattn":
        return RelPositionMultiHeadedAttention(heads, size, dropout_rate, zero_triu=zero_triu)
    if kind == "legacy_rel_selfattn":
        return LegacyRelPositionMultiHeadedAttention(heads, size, dropout_rate)
    if kind == "fast_selfattn":
        return FastSelfAttention(heads, size, dropout_rate)
    return MultiHeadedAttention(heads, size, dropout_rate, qk_norm=qk_norm)


def _check_interctc(layers: Sequence[int] | None, num_blocks: int) -> tuple[int, ...]:
    """The layers whose output intermediate CTC uses, from 1 to num_blocks - 1."""
    layers = tuple(layers or ())
    if any(not 0 < layer < num_blocks for layer in layers):
        raise UserError(f"interctc_layer_idx {list(layers)} must be between 1 and {num_blocks - 1} (num_blocks - 1)")
    return layers


def per_layer(value: float | Sequence[float], num_blocks: int, name: str) -> list[float]:
    """One value per block, from a single value or a list."""
    if isinstance(value, int | float):
        return [float(value)] * num_blocks
    if len(value) != num_blocks:
        raise UserError(
            f"{name} has {len(value)} values, but num_blocks is {num_blocks}: give one number, or one value per block"
        )
    return [float(item) for item in value]


def draw_stochastic_depth(rate: float, *, is_training: bool) -> float | None:
    """The factor of a block's residual branches, or None if the block is skipped this time (Huang et al. 2016)."""
    if not is_training or rate == 0.0:
        return 1.0
    return None if torch.rand(()).item() < rate else 1.0 / (1.0 - rate)
