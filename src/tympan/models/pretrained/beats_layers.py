"""The Transformer of BEATs (Chen et al. 2022), with the parameter names of its published checkpoints.

Shapes: x (batch, time, size); mask (batch, time), true for valid positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.nn.dropout import Dropout
from tympan.nn.typed_torch import ModuleList

ARCHITECTURE: dict[str, Any] = {
    "input_patch_size": 16,
    "embed_dim": 512,
    "conv_bias": False,
    "encoder_layers": 12,
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_attention_heads": 12,
    "activation_fn": "gelu",
    "layer_wise_gradient_decay_ratio": 1.0,
    "layer_norm_first": False,
    "deep_norm": False,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "dropout_input": 0.0,
    "conv_pos": 128,
    "conv_pos_groups": 16,
    "relative_position_embedding": False,
    "num_buckets": 320,
    "max_distance": 1280,
    "gru_rel_pos": False,
}
"""The keys of a BEATs configuration that matter here, with the defaults of its publication."""
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": nn.functional.gelu, "relu": nn.functional.relu}


class BeatsTransformer(nn.Module):
    """A convolution over positions, then layers. `states` are the input of the first layer and the layers' outputs."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        super().__init__()
        size = int(conf["encoder_embed_dim"])
        self.pos_conv = nn.Sequential(
            PositionConv(size, int(conf["conv_pos"]), int(conf["conv_pos_groups"])), nn.GELU()
        )
        self.layers: ModuleList[BeatsLayer] = ModuleList(BeatsLayer(conf) for _ in range(int(conf["encoder_layers"])))
        if conf["relative_position_embedding"]:
            shared = nn.Embedding(int(conf["num_buckets"]), int(conf["encoder_attention_heads"]))
            for layer in self.layers:
                layer.self_attn.relative_attention_bias = shared
        self.is_norm_first = bool(conf["layer_norm_first"])
        self.layer_norm = nn.LayerNorm(size)
        self.dropout = Dropout(float(conf["dropout"]))
        self.layerdrop = float(conf["encoder_layerdrop"])
        self.decay = float(conf["layer_wise_gradient_decay_ratio"])
        self.max_distance = int(conf["max_distance"])

    def forward(self, x: Tensor, mask: Tensor, *, count: int) -> list[Tensor]:
        """The states up to the output of `count` layers."""
        x = x.masked_fill(~mask.unsqueeze(-1), 0.0)
        x = x + self.pos_conv(x.transpose(1, 2)).transpose(1, 2)
        x = self.dropout(x if self.is_norm_first else self.layer_norm(x))
        bias = self._position_bias(x)
        states = [x]
        for layer in self.layers[:count]:
            if self.decay != 1.0:  # the same value, with a scaled gradient
                x = x.detach() + self.decay * (x - x.detach())
            is_dropped = self.training and self.layerdrop > 0 and torch.rand(()).item() < self.layerdrop
            x = x if is_dropped else layer(x, mask, bias)
            states.append(x)
        if self.is_norm_first and count == len(self.layers):
            states[-1] = self.layer_norm(x)
        return states

    def _position_bias(self, x: Tensor) -> Tensor | None:
        """(heads, time, time)."""
        table = self.layers[0].self_attn.relative_attention_bias
        if table is None:
            return None
        position = torch.arange(x.size(1), device=x.device)
        distance = position.unsqueeze(0) - position.unsqueeze(1)
        found: Tensor = table(buckets(distance, table.num_embeddings, self.max_distance)).permute(2, 0, 1)
        return found


class BeatsLayer(nn.Module):
    """Self-attention and feed-forward, each with a residual and layer normalization."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        super().__init__()
        size, hidden = int(conf["encoder_embed_dim"]), int(conf["encoder_ffn_embed_dim"])
        activation = str(conf["activation_fn"])
        if activation not in ACTIVATIONS:
            raise UserError(f"beats_config activation_fn: expects gelu | relu, found '{activation}'")
        self.activation = ACTIVATIONS[activation]
        self.self_attn = GatedAttention(conf)
        self.self_attn_layer_norm = nn.LayerNorm(size)
        self.fc1 = nn.Linear(size, hidden)
        self.fc2 = nn.Linear(hidden, size)
        self.final_layer_norm = nn.LayerNorm(size)
        self.dropout = Dropout(float(conf["dropout"]))
        self.inner_dropout = Dropout(float(conf["activation_dropout"]))
        self.is_norm_first = bool(conf["layer_norm_first"])
        self.alpha = (2 * int(conf["encoder_layers"])) ** 0.25 if conf["deep_norm"] else 1.0

    def forward(self, x: Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
        if self.is_norm_first:
            x = x + self.dropout(self.self_attn(self.self_attn_layer_norm(x), mask, bias))
            return x + self._feed_forward(self.final_layer_norm(x))
        x = self.self_attn_layer_norm(self.alpha * x + self.dropout(self.self_attn(x, mask, bias)))
        out: Tensor = self.final_layer_norm(self.alpha * x + self._feed_forward(x))
        return out

    def _feed_forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.fc2(self.inner_dropout(self.activation(self.fc1(x)))))
        return out


class GatedAttention(nn.Module):
    """Self-attention with a bias of relative positions, which a gate of the query scales (Chi et al. 2022)."""

    relative_attention_bias: nn.Embedding | None

    def __init__(self, conf: Mapping[str, Any]) -> None:
        super().__init__()
        size, self.heads = int(conf["encoder_embed_dim"]), int(conf["encoder_attention_heads"])
        if size % self.heads:
            raise UserError(
                f"beats_config encoder_embed_dim {size} must be a multiple of encoder_attention_heads {self.heads}"
            )
        self.k_proj, self.v_proj = nn.Linear(size, size), nn.Linear(size, size)
        self.q_proj, self.out_proj = nn.Linear(size, size), nn.Linear(size, size)
        self.rate = float(conf["attention_dropout"])
        self.relative_attention_bias = None
        self.is_gated = bool(conf["gru_rel_pos"])
        if self.is_gated:
            self.grep_linear = nn.Linear(size // self.heads, 8)
            self.grep_a = nn.Parameter(torch.ones(1, self.heads, 1, 1))

    def forward(self, x: Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
        """`bias` (heads, time, time)."""
        batch, time, size = x.shape

        def split(projected: Tensor) -> Tensor:
            return projected.view(batch, time, self.heads, -1).transpose(1, 2)

        query, key, value = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        added = torch.zeros(batch, 1, 1, time, dtype=x.dtype, device=x.device)
        added = added.masked_fill(~mask[:, None, None], torch.finfo(x.dtype).min)
        if bias is not None:
            added = added + (self._gate(query) * bias if self.is_gated else bias)
        rate = self.rate if self.training else 0.0
        out = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=added, dropout_p=rate)
        projected: Tensor = self.out_proj(out.transpose(1, 2).reshape(batch, time, size))
        return projected

    def _gate(self, query: Tensor) -> Tensor:
        """(batch, heads, time, 1)."""
        gates = self.grep_linear(query).view(*query.shape[:-1], 2, 4).sum(-1).sigmoid()
        update, reset = gates.chunk(2, dim=-1)
        found: Tensor = update * (reset * self.grep_a - 1.0) + 2.0
        return found


class PositionConv(nn.Module):
    """A grouped convolution with normalized weights (Salimans and Kingma 2016), one scale per kernel position."""

    def __init__(self, size: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.kernel, self.groups = kernel, groups
        self.bias = nn.Parameter(torch.zeros(size))
        self.weight_g = nn.Parameter(torch.ones(1, 1, kernel))
        self.weight_v = nn.Parameter(torch.randn(size, size // groups, kernel) * math.sqrt(4 / (kernel * size)))
        with torch.no_grad():
            self.weight_g.copy_(self.weight_v.norm(dim=(0, 1), keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        """x (batch, size, time) -> the same shape."""
        weight = self.weight_v * (self.weight_g / self.weight_v.norm(dim=(0, 1), keepdim=True))
        out = nn.functional.conv1d(x, weight, self.bias, padding=self.kernel // 2, groups=self.groups)
        return out[..., : x.size(-1)]


def buckets(distance: Tensor, count: int, farthest: int) -> Tensor:
    """Numbers of relative positions: half for each direction, exact when near, logarithmic when far (T5)."""
    half = count // 2
    exact = half // 2
    far = distance.abs().clamp(min=1).float()
    logarithmic = exact + (torch.log(far / exact) / math.log(farthest / exact) * (half - exact)).long()
    number = torch.where(distance.abs() < exact, distance.abs(), logarithmic.clamp(max=half - 1))
    return number + (distance > 0).long() * half
