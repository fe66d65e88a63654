"""`frontend: espnet_ssl`: hidden states of a model that ESPnet2's SSL task trained, with its parameter names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tympan.config.mistakes import did_you_mean
from tympan.config.model import SpeechModelOptions
from tympan.config.range import Range
from tympan.config.registry import Registry
from tympan.config.yaml_text import read_mapping
from tympan.errors import UserError
from tympan.features.frontend import parse_rate
from tympan.models.encoder.blocks import BlockEncoder
from tympan.models.inputs import build_inputs, prepare_features, with_encoder
from tympan.models.pretrained.audio_encoders import trained_later
from tympan.models.pretrained.s3prl import UNUSED_KEYS, Featurizer
from tympan.models.weights import load_weights
from tympan.nn.masks import length_mask

CONFIG = "config.yaml"
_DEFAULTS = {"frontend": "wav2vec_cnn", "normalize": "utterance_mvn", "preencoder": "linear", "encoder": "transformer"}
"""ESPnet2's choices where config.yaml names none."""
_PARTS = ("frontend", "specaug", "normalize", "preencoder", "encoder")
_KINDS = {
    "frontend": ("wav2vec_cnn", "default"),
    "preencoder": ("linear", "sinc", None),
    "encoder": ("transformer", "e_branchformer", "conformer"),
}
"""What ESPnet2's SSL task can choose."""
_PRETRAINING = ("losses.", "util_modules.ema.")
"""Weights that only pretraining uses."""
_MASKS = Registry("masking", {"mask": "tympan.models.pretrained.span_mask:SpanMask"}, supplied=["encoder_embed_dim"])


class EspnetSslFrontend(nn.Module):
    """The output of the last block, of block `layer` (from 0), or the weighted sum of all blocks' outputs.

    `frontend_conf` has the key `path_or_url`, the `.pth` file of the pretrained model; its config.yaml is in the same
    folder. `mask_feats` masks frames during training as in pretraining, and `masking_conf` changes options of these
    masks. The first `freeze_encoder_steps` updates train only the parts after this frontend. `architecture` is the
    part of config.yaml that describes the model; `tympan pack` stores it.

    The outputs of the blocks have no final normalization and no block is skipped at random, as in ESPnet2, whose
    `use_final_output` has no effect either.
    """

    def __init__(
        self,
        fs: Annotated[int | str, Range(100, 1_000_000)] = 16000,
        frontend_conf: dict[str, Any] | None = None,
        masking_conf: dict[str, Any] | None = None,
        multilayer_feature: bool = False,
        layer: Annotated[int, Range(-1_000, 1_000)] = -1,
        freeze_encoder_steps: Annotated[int, Range(0)] = 0,
        mask_feats: bool = True,
        use_final_output: bool = True,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        parse_rate(fs)
        self.weights_file = _weights_file(frontend_conf or {})
        self.architecture = architecture or _architecture(self.weights_file.with_name(CONFIG))
        self.upstream = Upstream(self.architecture, masking=masking_conf or {}, masks=mask_feats)
        count = len(self.upstream.encoder.encoders)
        if not multilayer_feature and not -count <= layer < count:
            raise UserError(f"frontend_conf layer is {layer}, but the model has the layers 0 to {count - 1}")
        self.layer = layer % count
        self.is_multilayer = multilayer_feature
        self.featurizer: nn.Module = Featurizer(count) if multilayer_feature else nn.Identity()
        self.upstream.freeze_unused(count - 1 if multilayer_feature else self.layer)
        self.freeze_encoder_steps = freeze_encoder_steps
        self.output_size = self.upstream.encoder.output_size
        self.register_buffer("global_step", torch.tensor([0]))

    global_step: Tensor

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features, zero beyond their lengths, and the lengths."""
        speech = speech if speech.dim() == 2 else speech[:, :, 0]
        states, frames = self.upstream(speech, lengths)
        chosen = torch.stack(states if self.is_multilayer else [states[self.layer]])
        chosen = trained_later(chosen, self, self.global_step, self.freeze_encoder_steps)
        features = self.featurizer(list(chosen)) if self.is_multilayer else chosen[0]
        return features.masked_fill(~length_mask(frames, features.size(1)).unsqueeze(-1), 0.0), frames

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples."""
        return self.upstream.output_lengths(lengths)

    def load_pretrained(self) -> None:
        """Fill in the pretrained weights."""
        self.upstream.load(load_weights(self.weights_file), self.weights_file)


class Upstream(nn.Module):
    """The pretrained model up to its encoder, with random weights."""

    def __init__(self, architecture: Mapping[str, Any], *, masking: Mapping[str, Any], masks: bool) -> None:
        super().__init__()
        chosen = {**_DEFAULTS, **architecture}
        values: dict[str, Any] = {name: chosen.get(name) for name in _PARTS}
        values |= {f"{name}_conf": dict(chosen.get(f"{name}_conf") or {}) for name in _PARTS}
        options = SpeechModelOptions(input_size=chosen.get("input_size"), **values)
        inputs, encoder = with_encoder(options, build_inputs(options, reads_statistics=False))
        assert isinstance(encoder, BlockEncoder)
        self.frontend = inputs.frontend
        self.specaug = inputs.specaug if masks else None
        self.normalize = inputs.normalize
        self.preencoder = inputs.preencoder
        self.encoder = encoder
        # The outputs of all blocks, as they are
        encoder.interctc_layer_idx = tuple(range(1, len(encoder.encoders) + 1))
        encoder.normalizes_intermediate = False
        encoder.layer_drop_rate = 0.0
        conf = {**(chosen.get("masking") or {}), **masking} if masks else {}
        self.util_modules = nn.ModuleDict({"mask": _MASKS.build("mask", conf, encoder_embed_dim=encoder.output_size)})
        self.masks = masks
        self.register_buffer("global_step", torch.tensor([0]))

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[list[Tensor], Tensor]:
        """The output (batch, frames, size) of every block, and the lengths in frames."""
        features, lengths = prepare_features(self, speech, lengths, augment_seed=None)
        if self.training and self.masks:
            features = self.util_modules["mask"](features, lengths)
        encoded = self.encoder(features, lengths)
        return [state for _, state in encoded.intermediate], encoded.lengths

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples."""
        return self.encoder.output_lengths(lengths if self.frontend is None else self.frontend.output_lengths(lengths))

    def freeze_unused(self, last: int) -> None:
        """Exclude from training what does not change the output of block `last`."""
        unused: list[nn.Module | None] = [*self.encoder.encoders[last + 1 :], self.encoder.after_norm]
        for part in (*unused, None if self.masks else self.util_modules):
            if part is not None:
                part.requires_grad_(False)

    def load(self, weights: Mapping[str, Tensor], source: object) -> None:
        """Fill in all weights except those that only pretraining uses; others that don't fit are an error."""
        given = {name: tensor for name, tensor in weights.items() if not name.startswith(_PRETRAINING)}
        own = self.state_dict()
        missing = sorted(own.keys() - given.keys())
        unknown = sorted(given.keys() - own.keys())
        wrong = sorted(name for name in own.keys() & given.keys() if given[name].shape != own[name].shape)
        if missing or unknown or wrong:
            raise UserError(
                f"{source}: does not belong to its {CONFIG}: {len(missing)} weights are missing, {len(unknown)} are "
                f"unknown and {len(wrong)} have a different shape, such as {(missing or unknown or wrong)[0]}"
            )
        self.load_state_dict(given)


def _weights_file(conf: Mapping[str, Any]) -> Path:
    unknown = [key for key in conf if key != "path_or_url" and key not in UNUSED_KEYS]
    if unknown:
        hint = did_you_mean(unknown[0], ["path_or_url"]) or " Its key is path_or_url"
        raise UserError(f"frontend_conf frontend_conf: the frontend 'espnet_ssl' has no key '{unknown[0]}'.{hint}")
    path = conf.get("path_or_url")
    if not isinstance(path, str) or not path.endswith((".pt", ".pth")):
        raise UserError(
            "frontend_conf frontend_conf.path_or_url: name the .pth file of a model that ESPnet2's SSL task trained, "
            f"with its {CONFIG} in the same folder; found {'nothing' if path is None else repr(path)}"
        )
    return Path(path)


def _architecture(path: Path) -> dict[str, Any]:
    """The options of config.yaml that describe the model."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; frontend_conf path_or_url needs it beside the weights")
    values = read_mapping(path)
    names = ("input_size", *_PARTS, *(f"{name}_conf" for name in _PARTS))
    found = {name: values[name] for name in names if name in values}
    for name, kinds in _KINDS.items():
        if name in found and found[name] not in kinds:
            known = ", ".join(str(kind or "null") for kind in kinds)
            raise UserError(f"{path}: {name} is {found[name]}, but ESPnet2's SSL task has {known}")
    for util in values.get("util") or ():
        if isinstance(util, dict) and util.get("name") == "mask":
            found["masking"] = dict(util.get("conf") or {})
    return found
