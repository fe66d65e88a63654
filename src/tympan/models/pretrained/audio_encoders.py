"""Pretrained speech encoders as the encoder of a model: `encoder: wav2vec2`, `hubert` and `torchaudiohubert`.

The options and parameter names are ESPnet2's. Masking of frames and LayerDrop, which ESPnet2 applies inside of these
encoders while training, are off: use `speed_perturb` or other augmentation of the audio.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.encoder.output import EncoderOutput
from tympan.models.parts import Augmenter, Frontend
from tympan.models.pretrained.s3prl import Source
from tympan.models.pretrained.speech_encoder import SpeechEncoder
from tympan.nn.layer_norm import LayerNorm


class RawAudio(nn.Module):
    """A frontend that passes the audio on, the first channel of several."""

    output_size = 1

    def forward(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Audio (batch, samples), and the lengths in samples."""
        return speech if speech.dim() == 2 else speech[:, :, 0], lengths

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return lengths


class Wav2Vec2Encoder(nn.Module):
    """`encoder: wav2vec2`. `w2v_url` is the address of a published checkpoint, or its file in `w2v_dir_path`.

    The first `freeze_finetune_updates` updates train only the parts after the encoder.
    """

    FAMILY = "wav2vec2"
    max_samples: int | None = None

    def __init__(
        self,
        *,
        input_size: int = 1,
        w2v_url: str,
        w2v_dir_path: str = "./",
        output_size: Annotated[int, Range(0, 1_000_000)] = 256,
        normalize_before: bool = False,
        freeze_finetune_updates: Annotated[int, Range(0)] = 0,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.source = Source(f"{self.FAMILY}_url", w2v_url, w2v_dir_path)
        self.architecture = architecture or self.source.architecture()
        self.encoders = SpeechEncoder(self.architecture)
        self.encoders.freeze_unused(self.encoders.num_layers - 1)
        size = self.encoders.hidden_size
        self.output_size = output_size or size
        self.output_layer = nn.Sequential(nn.Linear(size, output_size)) if self.output_size != size else None
        self.after_norm = LayerNorm(self.output_size) if normalize_before else None
        self.freeze_finetune_updates = freeze_finetune_updates
        self.register_buffer("num_updates", torch.tensor([0]))

    num_updates: Tensor

    def own_inputs(self) -> tuple[Frontend, Augmenter | None]:
        """The audio itself."""
        return RawAudio(), None

    def forward(self, speech: Tensor, lengths: Tensor) -> EncoderOutput:
        """Audio (batch, samples)."""
        states, frames = self.encoders(speech, lengths)
        x = trained_later(states[-1], self, self.num_updates, self.freeze_finetune_updates)
        x = x if self.output_layer is None else self.output_layer(x)
        return EncoderOutput(x if self.after_norm is None else self.after_norm(x), frames)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of samples."""
        return self.encoders.output_lengths(lengths)

    def load_pretrained(self) -> None:
        """Fill in the pretrained weights, from a file or the hub."""
        self.encoders.load(self.source.weights(), self.source.name)


class HubertEncoder(Wav2Vec2Encoder):
    """`encoder: hubert`, with a published HuBERT checkpoint. The options of masks have no effect."""

    FAMILY = "hubert"

    def __init__(
        self,
        *,
        input_size: int = 1,
        hubert_url: str = "./",
        hubert_dir_path: str = "./",
        output_size: Annotated[int, Range(0, 1_000_000)] = 256,
        normalize_before: bool = False,
        freeze_finetune_updates: Annotated[int, Range(0)] = 0,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        activation_dropout: Annotated[float, Range(0, below=1)] = 0.1,
        attention_dropout: Annotated[float, Range(0, below=1)] = 0.0,
        mask_length: Annotated[int, Range(0, 1_000_000)] = 10,
        mask_prob: Annotated[float, Range(0, 1)] = 0.75,
        mask_selection: Literal["static", "uniform", "normal", "poisson"] = "static",
        mask_other: Annotated[int, Range(0, 1_000_000)] = 0,
        apply_mask: bool = True,
        mask_channel_length: Annotated[int, Range(0, 1_000_000)] = 64,
        mask_channel_prob: Annotated[float, Range(0, 1)] = 0.5,
        mask_channel_other: Annotated[int, Range(0, 1_000_000)] = 0,
        mask_channel_selection: Literal["static", "uniform", "normal", "poisson"] = "static",
        layerdrop: Annotated[float, Range(0, below=1)] = 0.1,
        feature_grad_mult: Annotated[float, Range(0, 1)] = 0.0,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        if hubert_url == "espnet":
            raise UserError(
                "encoder_conf hubert_url: a model that ESPnet2 trained itself is not supported; use a published one"
            )
        found = architecture or Source("hubert_url", hubert_url, hubert_dir_path).architecture()
        rates = {
            "hidden_dropout": dropout_rate,
            "activation_dropout": activation_dropout,
            "attention_dropout": attention_dropout,
        }
        super().__init__(
            w2v_url=hubert_url,
            w2v_dir_path=hubert_dir_path,
            output_size=output_size,
            normalize_before=normalize_before,
            freeze_finetune_updates=freeze_finetune_updates,
            architecture={**found, **rates},
        )
        if feature_grad_mult == 0.0:
            self.encoders.model.feature_extractor.requires_grad_(False)


class TorchAudioHubertEncoder(nn.Module):
    """`encoder: torchaudiohubert` for fine-tuning; its weights come from `--init_param`. Masks have no effect."""

    max_samples: int | None = None

    def __init__(
        self,
        *,
        input_size: int | None = 1,
        extractor_mode: Literal["group_norm", "layer_norm"] = "group_norm",
        extractor_conv_layer_config: Annotated[Sequence[Sequence[int]], Range(0, 1_000_000)] = (
            (512, 10, 5),
            (512, 3, 2),
            (512, 3, 2),
            (512, 3, 2),
            (512, 3, 2),
            (512, 2, 2),
            (512, 2, 2),
        ),
        extractor_conv_bias: bool = False,
        encoder_embed_dim: Annotated[int, Range(1, 1_000_000)] = 768,
        encoder_projection_dropout: Annotated[float, Range(0, below=1)] = 0.1,
        encoder_pos_conv_kernel: Annotated[int, Range(1, 10_000)] = 128,
        encoder_pos_conv_groups: Annotated[int, Range(1, 10_000)] = 16,
        encoder_num_layers: Annotated[int, Range(1, 1_000)] = 12,
        encoder_num_heads: Annotated[int, Range(1, 10_000)] = 12,
        encoder_attention_dropout: Annotated[float, Range(0, below=1)] = 0.1,
        encoder_ff_interm_features: Annotated[int, Range(1, 1_000_000)] = 3072,
        encoder_ff_interm_dropout: Annotated[float, Range(0, below=1)] = 0.0,
        encoder_dropout: Annotated[float, Range(0, below=1)] = 0.1,
        encoder_layer_norm_first: bool = False,
        encoder_layer_drop: Annotated[float, Range(0, below=1)] = 0.05,
        mask_prob: Annotated[float, Range(0, 1)] = 0.8,
        mask_selection: Literal["static", "uniform", "normal", "poisson"] = "static",
        mask_other: Annotated[float, Range(0, 1_000_000)] = 0.0,
        mask_length: Annotated[int, Range(0, 1_000_000)] = 10,
        no_mask_overlap: bool = False,
        mask_min_space: Annotated[int, Range(0, 1_000_000)] = 1,
        mask_channel_prob: Annotated[float, Range(0, 1)] = 0.0,
        mask_channel_selection: Literal["static", "uniform", "normal", "poisson"] = "static",
        mask_channel_other: Annotated[float, Range(0, 1_000_000)] = 0.0,
        mask_channel_length: Annotated[int, Range(0, 1_000_000)] = 10,
        no_mask_channel_overlap: bool = False,
        mask_channel_min_space: Annotated[int, Range(0, 1_000_000)] = 1,
        skip_masked: bool = False,
        skip_nomask: bool = False,
        num_classes: Annotated[int, Range(0, 1_000_000)] = 100,
        final_dim: Annotated[int, Range(0, 1_000_000)] = 256,
        feature_grad_mult: Annotated[float | None, Range(0, 1)] = 0.1,
        finetuning: bool = False,
        freeze_encoder_updates: Annotated[int, Range(0)] = 0,
    ) -> None:
        super().__init__()
        if not finetuning:
            raise UserError("encoder_conf finetuning: false is pretraining, which is not supported; use true")
        is_layer_norm = extractor_mode == "layer_norm"
        self.hubert_pretrain_model = SpeechEncoder(
            {
                "model_type": "hubert",
                "hidden_size": encoder_embed_dim,
                "num_hidden_layers": encoder_num_layers,
                "num_attention_heads": encoder_num_heads,
                "intermediate_size": encoder_ff_interm_features,
                "conv_dim": [layer[0] for layer in extractor_conv_layer_config],
                "conv_kernel": [layer[1] for layer in extractor_conv_layer_config],
                "conv_stride": [layer[2] for layer in extractor_conv_layer_config],
                "num_feat_extract_layers": len(extractor_conv_layer_config),
                "conv_bias": extractor_conv_bias,
                "feat_extract_norm": "layer" if is_layer_norm else "group",
                "do_stable_layer_norm": encoder_layer_norm_first,
                "num_conv_pos_embeddings": encoder_pos_conv_kernel,
                "num_conv_pos_embedding_groups": encoder_pos_conv_groups,
                "feat_proj_dropout": encoder_projection_dropout,
                "attention_dropout": encoder_attention_dropout,
                "activation_dropout": encoder_ff_interm_dropout,
                "hidden_dropout": encoder_dropout,
                "do_normalize": False,
            }
        )
        self.hubert_pretrain_model.freeze_unused(encoder_num_layers)
        self.hubert_pretrain_model.model.feature_extractor.requires_grad_(False)
        self.output_size = encoder_embed_dim
        self.freeze_encoder_updates = freeze_encoder_updates
        self.register_buffer("global_step", torch.tensor([0]))

    global_step: Tensor

    def own_inputs(self) -> tuple[Frontend, Augmenter | None]:
        """The audio itself."""
        return RawAudio(), None

    def forward(self, speech: Tensor, lengths: Tensor) -> EncoderOutput:
        """Audio (batch, samples)."""
        states, frames = self.hubert_pretrain_model(speech, lengths)
        return EncoderOutput(trained_later(states[-1], self, self.global_step, self.freeze_encoder_updates), frames)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of samples."""
        return self.hubert_pretrain_model.output_lengths(lengths)

    def rename_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """torchaudio's names, without the parts that only pretraining used."""
        found = {}
        for name, tensor in weights.items():
            inner = name.removeprefix("hubert_pretrain_model.")
            if inner.startswith("logit_generator."):
                continue
            inner = inner.removeprefix("wav2vec2.").replace("encoder.feature_projection.", "feature_projection.")
            inner = inner.replace("encoder.transformer.", "encoder.")
            inner = inner.replace("mask_generator.mask_embedding", "masked_spec_embed")
            found[f"hubert_pretrain_model.{inner}" if inner != name or "." in name else name] = tensor
        return found


def trained_later(x: Tensor, part: nn.Module, done: Tensor, frozen: int) -> Tensor:
    """`x` without a gradient in the first updates, which are counted in `done`.

    The graph stays the same, so that every process has a gradient of every parameter: it is 0.
    """
    if not part.training or frozen == 0:
        return x
    is_frozen = bool((done < frozen).item())
    done += 1
    return x.detach() + 0.0 * x if is_frozen else x
