"""`frontend: fused`: the features of several frontends, projected to one frame rate and concatenated."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.config.registry import Registry
from tympan.errors import UserError
from tympan.features.frontend import DefaultFrontend
from tympan.models.pretrained.s3prl import S3prlFrontend
from tympan.nn.masks import length_mask

_KINDS = Registry(
    "frontend",
    {
        "default": "tympan.features.frontend:DefaultFrontend",
        "s3prl": "tympan.models.pretrained.s3prl:S3prlFrontend",
    },
)


class FusedFrontends(nn.Module):
    """`frontends` is a list of mappings: `frontend_type` (default or s3prl) and the options of that frontend.

    As in ESPnet2, the frontends are not trained, only their projections. Unlike ESPnet2, an utterance has as many
    frames in a batch as alone: ESPnet2 gives every utterance the length of the longest.
    """

    def __init__(
        self,
        frontends: list[dict[str, Any]],
        align_method: Literal["linear_projection"] = "linear_projection",
        proj_dim: Annotated[int, Range(1, 100_000)] = 100,
        fs: Annotated[int | str, Range(100, 1_000_000)] = 16000,
    ) -> None:
        super().__init__()
        if not frontends:
            raise UserError("frontend_conf frontends: name at least one frontend")
        parts = [_build(conf, fs) for conf in frontends]
        self.frontends = nn.ModuleList(parts)
        self.frontends.requires_grad_(False)
        hops = [part.hop_length for part in parts]
        self.factors = [hop // math.gcd(*hops) for hop in hops]
        self.proj_dim = proj_dim
        self.projection_layers = nn.ModuleList(
            nn.Linear(part.output_size, factor * proj_dim) for part, factor in zip(parts, self.factors, strict=True)
        )
        self.output_size = proj_dim * len(parts)

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features (batch, frames, frontends * proj_dim), zero beyond their lengths, and the lengths."""
        frames = self.output_lengths(lengths)
        longest = int(frames.max())
        parts = []
        for frontend, projection, factor in zip(self.frontends, self.projection_layers, self.factors, strict=True):
            frontend.eval()
            with torch.no_grad():
                features, _ = frontend(speech, lengths)
            projected = projection(features)
            parts.append(projected.reshape(len(speech), projected.size(1) * factor, self.proj_dim)[:, :longest])
        fused = torch.cat(parts, dim=-1)
        return fused.masked_fill(~length_mask(frames, longest).unsqueeze(-1), 0.0), frames

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples: of the frontend that has the fewest."""
        parts = cast("Iterable[DefaultFrontend | S3prlFrontend]", self.frontends)
        found = [part.output_lengths(lengths) * factor for part, factor in zip(parts, self.factors, strict=True)]
        return torch.stack(found).min(0).values


def _build(conf: dict[str, Any], fs: int | str) -> DefaultFrontend | S3prlFrontend:
    kind = conf.get("frontend_type")
    if not isinstance(kind, str):
        raise UserError("frontend_conf frontends: every entry needs frontend_type: default or s3prl")
    options = {key: value for key, value in conf.items() if key != "frontend_type"}
    frontend: DefaultFrontend | S3prlFrontend = _KINDS.build(_KINDS.registered(kind), {**options, "fs": fs})
    return frontend
