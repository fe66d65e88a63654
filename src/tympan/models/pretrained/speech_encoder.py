"""A pretrained encoder of the wav2vec 2.0 family: from audio to the hidden states of all layers.

wav2vec 2.0, HuBERT, WavLM, UniSpeech and UniSpeech-SAT share their structure: convolutions with a stride of 320
samples, a projection, and a Transformer. `transformers` has the layers. What is done here makes the output of an
utterance independent of its batch: group normalization and the normalization of the audio ignore the padding.

Shapes: speech (batch, samples); hidden states (batch, frames, size).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.models.pretrained.fairseq import own_names
from tympan.models.pretrained.folder import require_transformers
from tympan.nn.masks import length_mask

FAMILIES = ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat")
_NOT_ARCHITECTURE = ("do_normalize", "torch_dtype", "dtype", "auto_map", "architectures", "transformers_version")


@runtime_checkable
class HasArchitecture(Protocol):
    """A pretrained part that can be built again from `architecture` in its options, without the files of its model."""

    architecture: dict[str, Any]


class SpeechEncoder(nn.Module):
    """The encoder that `architecture` describes (the content of config.json), with random weights.

    `model` has the parameter names of `transformers`. SpecAugment and LayerDrop inside of the encoder are off.
    """

    IS_NEVER_FROZEN = True
    """The layers of `transformers` pass their weights to functions of torch."""

    def __init__(self, architecture: Mapping[str, Any]) -> None:
        super().__init__()
        self.is_never_sharded = False
        """True if not every process runs it in every step, because its output may be in a cache."""
        self.model = build_base_model(architecture)
        self.do_normalize = bool(architecture.get("do_normalize", True))
        self.hidden_size = int(self.model.config.hidden_size)
        self.num_layers = len(self.model.encoder.layers) + 1
        self.stride = 1
        for layer in self.model.feature_extractor.conv_layers:
            self.stride *= int(layer.conv.stride[0])

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[list[Tensor], Tensor]:
        """The input of every layer and the output of the last one, and their lengths in frames."""
        speech = normalized(speech, lengths) if self.do_normalize else speech
        speech = speech.masked_fill(~length_mask(lengths, speech.size(1)), 0.0)
        features, frames = self._convolve(speech, lengths)
        projected = self.model.feature_projection(features.transpose(1, 2))
        hidden = projected[0] if isinstance(projected, tuple) else projected
        states: list[Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(lambda _, args: states.append(args[0]))
            for layer in self.model.encoder.layers
        ]
        try:
            # A copy, because the encoder writes zeros into the padding in place
            last = self.model.encoder(hidden.clone(), attention_mask=length_mask(frames, hidden.size(1)))
        finally:
            for hook in hooks:
                hook.remove()
        return [*states, last.last_hidden_state], frames

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples."""
        for layer in self.model.feature_extractor.conv_layers:
            kernel, stride = int(layer.conv.kernel_size[0]), int(layer.conv.stride[0])
            lengths = (torch.div(lengths - kernel, stride, rounding_mode="floor") + 1).clamp(min=0)
        return lengths

    def load(self, weights: Mapping[str, Tensor], source: object) -> None:
        """Fill in pretrained weights. The vector for masked frames may be missing, because it is not used."""
        own = self.model.state_dict()
        taken = {name: tensor for name, tensor in weights.items() if name in own}
        missing = sorted(own.keys() - taken.keys() - {"masked_spec_embed"})
        wrong = [name for name, tensor in taken.items() if tensor.shape != own[name].shape]
        if missing or wrong:
            example = (missing or wrong)[0]
            raise UserError(
                f"{source}: {len(missing)} weights are missing and {len(wrong)} have a different shape, such as "
                f"{example}; the file belongs to a different model"
            )
        self.model.load_state_dict(taken, strict=False)

    def freeze_unused(self, layer: int) -> None:
        """Exclude from training what does not change the hidden state `layer`, so that every rank has all gradients."""
        last = self.num_layers - 1
        unused: list[nn.Module] = list(self.model.encoder.layers[layer:]) if layer < last else []
        if layer < last and self.model.config.do_stable_layer_norm:
            unused.append(self.model.encoder.layer_norm)
        for part in unused:
            part.requires_grad_(False)
        for name, parameter in self.model.named_parameters():
            if name == "masked_spec_embed":
                parameter.requires_grad_(False)

    def rename_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Names of fairseq and s3prl (`upstream.model.encoder.layers.0.fc1`), as ESPnet2's checkpoints have them."""
        inner = {_inner_name(name): tensor for name, tensor in weights.items()}
        own = self.model.state_dict()
        renamed = {f"model.{name}": tensor for name, tensor in own_names(inner).items()}
        if "masked_spec_embed" in own:
            renamed.setdefault("model.masked_spec_embed", own["masked_spec_embed"])
        return renamed

    def _convolve(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x = speech.unsqueeze(1)
        for layer in self.model.feature_extractor.conv_layers:
            kernel, stride = int(layer.conv.kernel_size[0]), int(layer.conv.stride[0])
            lengths = (torch.div(lengths - kernel, stride, rounding_mode="floor") + 1).clamp(min=0)
            norm = getattr(layer, "layer_norm", None)
            if isinstance(norm, nn.GroupNorm):
                x = layer.activation(masked_group_norm(norm, layer.conv(x), lengths))
            else:
                x = layer(x)
        return x, lengths


def build_base_model(architecture: Mapping[str, Any]) -> Any:
    """The model of `transformers` with random weights."""
    family = str(architecture.get("model_type"))
    if family not in FAMILIES:
        raise UserError(
            f"a pretrained encoder of type '{family}' is not supported here; supported: {', '.join(FAMILIES)}"
        )
    transformers = require_transformers()
    values = {key: item for key, item in architecture.items() if key not in (*_NOT_ARCHITECTURE, "model_type")}
    values |= {"layerdrop": 0.0, "apply_spec_augment": False}
    try:
        config = transformers.AutoConfig.for_model(family, **values)
        model = transformers.AutoModel.from_config(config, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"the pretrained encoder of type '{family}' can't be built: {reason}") from None
    return model


def _inner_name(name: str) -> str:
    """s3prl wraps the model once or twice, depending on its version."""
    while name.startswith(("upstream.", "model.")):
        name = name.partition(".")[2]
    return name


def normalized(speech: Tensor, lengths: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the samples of each utterance."""
    mask = length_mask(lengths, speech.size(1))
    count = lengths.clamp(min=1).unsqueeze(1).to(speech.dtype)
    mean = speech.masked_fill(~mask, 0.0).sum(1, keepdim=True) / count
    centred = (speech - mean).masked_fill(~mask, 0.0)
    variance = centred.square().sum(1, keepdim=True) / count
    return centred * torch.rsqrt(variance + 1e-5)


def masked_group_norm(norm: nn.GroupNorm, x: Tensor, lengths: Tensor) -> Tensor:
    """Group normalization with one channel per group, over the frames of each utterance. x (batch, channels, time)."""
    mask = length_mask(lengths, x.size(2)).unsqueeze(1)
    count = lengths.clamp(min=1).view(-1, 1, 1).to(x.dtype)
    mean = x.masked_fill(~mask, 0.0).sum(2, keepdim=True) / count
    centred = (x - mean).masked_fill(~mask, 0.0)
    variance = centred.square().sum(2, keepdim=True) / count
    return centred * torch.rsqrt(variance + norm.eps) * norm.weight.unsqueeze(1) + norm.bias.unsqueeze(1)
