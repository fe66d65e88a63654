"""`encoder: beats`: BEATs (Chen et al. 2022), an encoder of sounds, with ESPnet2's options and parameter names.

The audio becomes a filterbank of 128 bands; squares of 16 frames and 16 bands are the positions of a Transformer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tympan.config.choices import SPECAUGS
from tympan.config.mistakes import did_you_mean
from tympan.config.range import Range
from tympan.errors import UserError
from tympan.features.kaldi_fbank import SHIFT, KaldiFbank
from tympan.features.specaug import Draws
from tympan.models.encoder.output import EncoderOutput
from tympan.models.parts import Augmenter, Frontend
from tympan.models.pretrained.beats_layers import ARCHITECTURE, BeatsTransformer
from tympan.models.pretrained.conformer_adapter import ConformerAdapter
from tympan.models.pretrained.folder import read_json
from tympan.models.weights import named_weights, read_tensors
from tympan.nn.masks import length_mask

BANDS = 128
MIN_SAMPLES = 3200
"""Shorter audio is repeated."""
FIRST_POSITION = 2
"""The first two learned positions are not used, as in BART."""


class BeatsEncoder(nn.Module):
    """`beats_ckpt_path` is a published checkpoint; `beats_config` changes keys of its configuration.

    `max_layer` is the number of layers that are used; null: all. `adapter_config` is the JSON file of a Conformer after
    the Transformer. `architecture` contains both configurations; `tympan pack` stores it. `roll_augment` moves the
    beginning of an utterance to its end in training, in whole frames (ESPnet2: in samples).
    """

    max_samples: int | None = None

    def __init__(
        self,
        *,
        input_size: int = 1,
        beats_ckpt_path: str | None = None,
        max_layer: Annotated[int | None, Range(0, 1_000)] = None,
        downsampling_rate: Annotated[int, Range(1, 1_000)] = 1,
        adapter_config: str = "",
        use_weighted_representation: bool = False,
        beats_config: dict[str, Any] | None = None,
        specaug_config: dict[str, Any] | None = None,
        add_positional_information: bool = False,
        max_positions: Annotated[int | None, Range(1, 10_000_000)] = None,
        fbank_mean: Annotated[float, Range(-1_000, 1_000)] = 15.41663,
        fbank_std: Annotated[float, Range(1e-6, 1_000)] = 6.55582,
        roll_augment: bool = False,
        roll_interval: Annotated[int, Range(1, 10_000_000)] = 1600,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.checkpoint = beats_ckpt_path
        self.architecture = architecture or _architecture(beats_ckpt_path, beats_config or {}, adapter_config)
        conf = self.architecture
        embed, size, self.patch = int(conf["embed_dim"]), int(conf["encoder_embed_dim"]), int(conf["input_patch_size"])
        self.post_extract_proj = nn.Linear(embed, size) if embed != size else None
        self.patch_embedding = nn.Conv2d(1, embed, self.patch, self.patch, bias=bool(conf["conv_bias"]))
        self.dropout_input = nn.Dropout(float(conf["dropout_input"]))
        self.encoder = BeatsTransformer(conf)
        self.layer_norm = nn.LayerNorm(embed)
        self.count = self._used_layers(max_layer, use_weighted_representation)
        for layer in self.encoder.layers[self.count :]:
            layer.requires_grad_(False)
        self.layer_weights = nn.Parameter(torch.ones(self.count + 1, 1)) if use_weighted_representation else None
        self.rate = downsampling_rate
        self.downsample_conv = nn.Conv1d(size, size, round(1.5 * self.rate), self.rate) if self.rate > 1 else None
        adapter = conf.get("adapter")
        self.conformer_adapter = ConformerAdapter(adapter, size) if adapter else None
        self.cross_embed_positions = None
        if add_positional_information:
            if max_positions is None:
                raise UserError("encoder_conf add_positional_information: true needs max_positions")
            self.cross_embed_positions = nn.Embedding(max_positions + FIRST_POSITION, size)
        self.output_size = size
        self._fbank = (fbank_mean, fbank_std)
        self._specaug = specaug_config
        self._roll = max(1, roll_interval // SHIFT) if roll_augment else None

    def own_inputs(self) -> tuple[Frontend, Augmenter | None]:
        """The filterbank, and random changes of it."""
        try:
            specaug = None if self._specaug is None else SPECAUGS.build("specaug", self._specaug)
        except UserError as error:
            raise UserError(f"encoder_conf specaug_config does not fit: {error}") from None
        augmenter = None if specaug is None and self._roll is None else Augmentation(specaug, self._roll)
        return BeatsFbank(*self._fbank), augmenter

    def forward(self, features: Tensor, lengths: Tensor) -> EncoderOutput:
        """features (batch, frames, bands)."""
        missing = self.patch - features.size(1)
        features = nn.functional.pad(features, (0, 0, 0, missing)) if missing > 0 else features
        x = self.patch_embedding(features.unsqueeze(1)).flatten(2).transpose(1, 2)
        lengths = self._patches(lengths)
        x = self.layer_norm(x)
        x = self.dropout_input(x if self.post_extract_proj is None else self.post_extract_proj(x))
        states = self.encoder(x, length_mask(lengths, x.size(1)), count=self.count)
        x = states[-1]
        if self.layer_weights is not None:
            x = torch.einsum("l,lbtd->btd", self.layer_weights.softmax(0).squeeze(1), torch.stack(states))
        if self.downsample_conv is not None:
            missing = self.downsample_conv.kernel_size[0] - x.size(1)
            x = nn.functional.pad(x, (0, 0, 0, missing)) if missing > 0 else x
            x, lengths = self.downsample_conv(x.transpose(1, 2)).transpose(1, 2), self._downsampled(lengths)
        if self.conformer_adapter is not None:
            x = self.conformer_adapter(x, length_mask(lengths, x.size(1)))
        return EncoderOutput(self._with_positions(x), lengths)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of frames of the filterbank."""
        return self._downsampled(self._patches(lengths))

    def load_pretrained(self) -> None:
        """Fill in the weights of the checkpoint, or BERT's initialization without one."""
        if self.checkpoint is None:
            self.encoder.apply(_initialize)
            return
        path = Path(self.checkpoint)
        found = named_weights(path, read_tensors(path).get("model"))
        own = self.state_dict()
        needed = [name for name in own if name.startswith(("encoder.", "layer_norm.", "patch_", "post_"))]
        missing = [name for name in needed if name not in found or found[name].shape != own[name].shape]
        if missing:
            raise UserError(f"{self.checkpoint}: {len(missing)} weights of BEATs are missing, such as {missing[0]}")
        self.load_state_dict({name: found[name] for name in needed}, strict=False)

    def _used_layers(self, max_layer: int | None, is_weighted: bool) -> int:
        total = len(self.encoder.layers)
        count = (total - 1 if is_weighted else total) if max_layer is None else max_layer
        if count > total:
            raise UserError(f"encoder_conf max_layer is {count}, but the model has {total} layers")
        return count

    def _patches(self, lengths: Tensor) -> Tensor:
        return torch.div(lengths, self.patch, rounding_mode="floor") * (BANDS // self.patch)

    def _downsampled(self, lengths: Tensor) -> Tensor:
        if self.downsample_conv is None:
            return lengths
        kernel = self.downsample_conv.kernel_size[0]
        return (torch.div(lengths - kernel, self.rate, rounding_mode="floor") + 1).clamp(min=0)

    def _with_positions(self, x: Tensor) -> Tensor:
        if self.cross_embed_positions is None:
            return x
        most = self.cross_embed_positions.num_embeddings - FIRST_POSITION
        if x.size(1) > most:
            raise UserError(f"an utterance has {x.size(1)} frames, but encoder_conf max_positions is {most}")
        out: Tensor = x + self.cross_embed_positions.weight[FIRST_POSITION : FIRST_POSITION + x.size(1)].to(x.dtype)
        return out


class BeatsFbank(nn.Module):
    """128 bands per frame of 10 ms, shifted and scaled by fixed numbers. Audio under 0.2 s is repeated."""

    output_size = BANDS

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.mean, self.scale = mean, 2 * deviation
        self.fbank = KaldiFbank(BANDS)

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Features, zero beyond their lengths, and the lengths."""
        speech = speech if speech.dim() == 2 else speech[:, :, 0]
        samples = self._repeated(lengths)
        position = torch.arange(int(samples.max()), device=speech.device) % lengths.clamp(min=1).unsqueeze(1)
        features = (self.fbank(speech.gather(1, position.clamp(max=speech.size(1) - 1))) - self.mean) / self.scale
        frames = self.fbank.output_lengths(samples)
        return features.masked_fill(~length_mask(frames, features.size(1)).unsqueeze(-1), 0.0), frames

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames for a number of samples."""
        return self.fbank.output_lengths(self._repeated(lengths))

    def _repeated(self, lengths: Tensor) -> Tensor:
        times = torch.div(MIN_SAMPLES, lengths.clamp(min=1), rounding_mode="floor") + 1
        return torch.where(lengths < MIN_SAMPLES, lengths * times, lengths)


class Augmentation(nn.Module):
    """Rolls the frames by a random multiple of `interval`, then SpecAugment."""

    def __init__(self, specaug: Augmenter | None, interval: int | None) -> None:
        super().__init__()
        self.specaug, self.interval = specaug, interval

    def forward(self, features: Tensor, lengths: Tensor, seeds: Tensor | None = None) -> Tensor:
        seeds = torch.randint(1 << 62, lengths.shape).to(features.device) if seeds is None else seeds
        if self.interval is not None:
            choices = torch.div(lengths, self.interval, rounding_mode="floor").clamp(min=1)
            amount = Draws(seeds).integers(900, torch.zeros_like(choices), choices) * self.interval
            position = torch.arange(features.size(1), device=features.device).unsqueeze(0)
            source = (position + amount.unsqueeze(1)) % lengths.clamp(min=1).unsqueeze(1)
            source = torch.where(position < lengths.unsqueeze(1), source, position)
            features = features.gather(1, source.unsqueeze(-1).expand_as(features))
        return features if self.specaug is None else self.specaug(features, lengths, seeds)


def _architecture(checkpoint: str | None, changes: dict[str, Any], adapter: str) -> dict[str, Any]:
    """The configuration of the checkpoint, or the default, with the user's changes."""
    unknown = [key for key in changes if key not in ARCHITECTURE]
    if unknown:
        hint = did_you_mean(unknown[0], ARCHITECTURE) or f" Its keys: {', '.join(ARCHITECTURE)}"
        raise UserError(f"encoder_conf beats_config: there is no key '{unknown[0]}'.{hint}")
    found: Any = {}
    if checkpoint is not None and not Path(checkpoint).is_file():
        raise UserError(
            f"encoder_conf beats_ckpt_path: {checkpoint}: no such file. Download a checkpoint of BEATs "
            "(https://github.com/microsoft/unilm/tree/master/beats), or leave it out for random weights"
        )
    if checkpoint is not None:
        found = read_tensors(Path(checkpoint)).get("cfg")
        if not isinstance(found, dict):
            raise UserError(f"{checkpoint}: expects the keys 'cfg' and 'model' of a checkpoint of BEATs")
    conf = {**ARCHITECTURE, **{key: found[key] for key in ARCHITECTURE if key in found}, **changes}
    return {**conf, "adapter": read_json(Path(adapter)) if adapter else None}


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
