"""`frontend: s3prl`: features of a pretrained speech encoder, with ESPnet2's options and s3prl's names of models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tympan.config.mistakes import did_you_mean
from tympan.config.range import Range
from tympan.errors import UserError
from tympan.features.frontend import parse_rate
from tympan.models.pretrained.cache import HiddenStateCache
from tympan.models.pretrained.fairseq import read_checkpoint
from tympan.models.pretrained.folder import find_folder, read_architecture, read_weights
from tympan.models.pretrained.speech_encoder import SpeechEncoder
from tympan.models.pretrained.upstreams import FROM_FILE, FROM_HUB, find_upstream, upstream_of_file
from tympan.nn.masks import length_mask

RATE = 16000
MIN_SAMPLES = 800
"""s3prl appends zeros to shorter audio."""
KEYS = ("upstream", "path_or_url", "normalize", "extra_conf", "tile_factor")
# The defaults of another frontend, which ESPnet2 writes into printed configurations, and does not use here.
UNUSED_KEYS = frozenset(
    (
        *("use_wpe", "wtype", "wlayers", "wunits", "wprojs", "wdropout_rate", "taps", "delay", "use_dnn_mask_for_wpe"),
        *("use_beamformer", "btype", "blayers", "bunits", "bprojs", "bnmask", "badim", "ref_channel", "bdropout_rate"),
    )
)


class S3prlFrontend(nn.Module):
    """Hidden states of a pretrained encoder: of the last layer, of `layer`, or their weighted sum.

    `frontend_conf` has the keys `upstream` (s3prl's name), `path_or_url` (for the names that end in `_local`, `_url` or
    `_custom`), `normalize` (layer normalization of the hidden states) and `tile_factor`. A pretrained model is looked
    for below `download_dir`, then on the Hugging Face hub. `architecture` is the content of its config.json; `tympan
    pack` stores it. `cache_dir` stores the hidden states of every utterance, which needs a frozen upstream.

    Differs from s3prl in the last frame of an utterance in a batch: it is the same as without the batch.
    """

    def __init__(
        self,
        fs: Annotated[int | str, Range(100, 1_000_000)] = 16000,
        frontend_conf: dict[str, Any] | None = None,
        download_dir: str | None = None,
        multilayer_feature: bool = False,
        layer: Annotated[int, Range(-1, 1_000)] = -1,
        architecture: dict[str, Any] | None = None,
        cache_dir: str | None = None,
    ) -> None:
        super().__init__()
        if parse_rate(fs) != RATE:
            raise UserError(f"frontend_conf fs: pretrained encoders need audio at {RATE} Hz, not {fs}")
        if layer != -1 and multilayer_feature:
            raise UserError("frontend_conf: use either layer or multilayer_feature: true, not both")
        conf = _checked(frontend_conf or {})
        self.source = Source(str(conf["upstream"]), conf.get("path_or_url"), download_dir)
        self.architecture = architecture or self.source.architecture()
        self.upstream = SpeechEncoder(self.architecture)
        if layer >= self.upstream.num_layers:
            raise UserError(f"frontend_conf layer is {layer}, but the last layer is {self.upstream.num_layers - 1}")
        self.is_multilayer = multilayer_feature
        self.layer = layer
        self.normalizes = bool(conf.get("normalize", False))
        self.tile_factor = int(conf.get("tile_factor") or 1)
        self.featurizer = Featurizer(1 if layer != -1 else self.upstream.num_layers)
        self.featurizer.requires_grad_(multilayer_feature)
        self.upstream.freeze_unused(self.upstream.num_layers - 1 if layer == -1 else layer)
        self.output_size = self.upstream.hidden_size
        self.hop_length = self.upstream.stride // self.tile_factor
        self.cache = None if cache_dir is None else HiddenStateCache(Path(cache_dir))
        self.upstream.is_never_sharded = self.cache is not None

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features, zero beyond their lengths, and the lengths."""
        speech = speech if speech.dim() == 2 else speech[:, :, 0]
        if self.is_frozen:
            self.upstream.eval()
            with torch.no_grad():
                states = self._cached(speech, lengths) if self.cache is not None else self._states(speech, lengths)[0]
        else:
            if self.cache is not None and self.training:
                raise UserError("frontend_conf cache_dir needs a frozen upstream: add --freeze_param frontend.upstream")
            states, _ = self._states(speech, lengths)
        features = self.featurizer(states) if self.is_multilayer else states[0]
        if self.tile_factor != 1:
            features = features.repeat_interleave(self.tile_factor, dim=1)
        frames = self.output_lengths(lengths)
        return features.masked_fill(~length_mask(frames, features.size(1)).unsqueeze(-1), 0.0), frames

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples: one for every 320 that have begun."""
        frames = torch.div(lengths + self.upstream.stride - 1, self.upstream.stride, rounding_mode="floor")
        return frames * self.tile_factor

    @property
    def is_frozen(self) -> bool:
        """Whether no parameter of the pretrained encoder is trained. It then runs in evaluation mode."""
        return not any(parameter.requires_grad for parameter in self.upstream.parameters())

    def load_pretrained(self) -> None:
        """Fill in the pretrained weights, from a file or the hub."""
        self.upstream.load(self.source.weights(), self.source.name)

    def _states(self, speech: Tensor, lengths: Tensor) -> tuple[list[Tensor], Tensor]:
        """The hidden states that are used, and their numbers of frames (before tiling)."""
        padded = torch.where(lengths > 0, lengths.clamp(min=MIN_SAMPLES), lengths)
        speech = speech.masked_fill(~length_mask(lengths, speech.size(1)), 0.0)
        speech = nn.functional.pad(speech, (0, max(0, MIN_SAMPLES - speech.size(1))))
        states, valid = self.upstream(speech, padded)
        chosen = states if self.is_multilayer else [states[self.layer]]
        frames = torch.div(lengths + self.upstream.stride - 1, self.upstream.stride, rounding_mode="floor")
        index = torch.arange(int(frames.max()), device=speech.device).unsqueeze(0)
        # The convolutions give up to two frames less; the last one is repeated
        index = torch.minimum(index, (valid - 1).clamp(min=0).unsqueeze(1)).unsqueeze(-1)
        found = [state.gather(1, index.expand(-1, -1, state.size(2))) for state in chosen]
        if self.normalizes:
            found = [nn.functional.layer_norm(state, state.shape[-1:]) for state in found]
        return found, frames

    def _cached(self, speech: Tensor, lengths: Tensor) -> list[Tensor]:
        assert self.cache is not None
        setting = f"{self.is_multilayer} {self.layer} {self.normalizes}"
        return self.cache.states(speech, lengths, self._states, encoder=self.upstream, setting=setting)


class Source:
    """Where the architecture and the weights of an upstream come from."""

    def __init__(self, upstream: str, path_or_url: str | None, download_dir: str | None) -> None:
        self.known = find_upstream(upstream)
        if self.known is None and path_or_url is None:
            raise UserError(f"frontend_conf frontend_conf.path_or_url: the upstream '{upstream}' needs it")
        self.family = upstream.removeprefix("hf_").partition("_")[0]
        self.is_file = upstream in FROM_FILE
        self.name = str(path_or_url) if self.known is None else self.known.repository
        self.download_dir = download_dir
        assert self.is_file or upstream in FROM_HUB or self.known is not None

    def architecture(self) -> dict[str, Any]:
        """The content of config.json. It is known without any file for the models that s3prl names."""
        known = self.known
        if known is None and self.is_file and not self._checkpoint().is_file():
            known = upstream_of_file(self.name)
        if known is not None:
            return known.architecture()
        if self.is_file:
            return read_checkpoint(self._found_checkpoint(), self.family)[0]
        return read_architecture(find_folder(self.name, self.download_dir))

    def weights(self) -> dict[str, Tensor]:
        """The pretrained weights."""
        if self.is_file:
            return read_checkpoint(self._found_checkpoint(), self.family)[1]
        if self.known is not None and (file := self._checkpoint(self.known.file)).is_file():
            return read_checkpoint(file, self.known.family)[1]
        return read_weights(find_folder(self.name, self.download_dir))

    def _checkpoint(self, name: str | None = None) -> Path:
        """The path itself, or the file of that name below `download_dir`, where s3prl puts it."""
        path = Path(self.name if name is None else name or "none")
        below = Path(self.download_dir or ".", path.name)
        return path if path.is_file() or not below.is_file() else below

    def _found_checkpoint(self) -> Path:
        path = self._checkpoint()
        if not path.is_file():
            place = Path(self.download_dir or ".", path.name)
            raise UserError(
                f"{self.name}: no such file. Download it on a machine with internet access, and copy it to {place}"
            )
        return path


class Featurizer(nn.Module):
    """A weighted sum of hidden states, as s3prl's."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(count))

    def forward(self, states: list[Tensor]) -> Tensor:
        """Hidden states of one shape -> their sum, weighted by the softmax of `weights`."""
        return torch.einsum("l,lbtd->btd", self.weights.softmax(0), torch.stack(states))


def _checked(conf: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [key for key in conf if key not in KEYS and key not in UNUSED_KEYS]
    if unknown:
        hint = did_you_mean(unknown[0], KEYS) or f" Its keys: {', '.join(KEYS)}"
        raise UserError(f"frontend_conf frontend_conf: the frontend 's3prl' has no key '{unknown[0]}'.{hint}")
    if not isinstance(conf.get("upstream"), str):
        raise UserError("frontend_conf frontend_conf.upstream: name a pretrained model, such as wavlm_large")
    if conf.get("extra_conf"):
        raise UserError("frontend_conf frontend_conf.extra_conf is not supported; remove it")
    factor = conf.get("tile_factor", 1)
    if isinstance(factor, bool) or not isinstance(factor, int) or not 1 <= factor <= 100:
        raise UserError(f"frontend_conf frontend_conf.tile_factor must be between 1 and 100, found {factor!r}")
    return dict(conf)
