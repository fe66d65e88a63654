"""`postencoder: hugging_face_transformers`: the encoder of a text model of the Hugging Face hub, for speech frames.

Either the encoder of a text-to-text model (BART, mBART, T5), or a model that is only an encoder (BERT, RoBERTa).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.postencoder import LengthAdaptor
from tympan.models.pretrained.folder import CONFIG, find_folder, read_json, read_weight_files
from tympan.models.pretrained.seq2seq import TIED, build_seq2seq, embedding_of, inner_model, make_model, read_seq2seq
from tympan.nn.masks import length_mask

_OLD_NORM = {"gamma": "weight", "beta": "bias"}
"""The first published BERT models have these names of a layer normalization."""


class HuggingFacePostencoder(nn.Module):
    """The encoder of a text model, applied to speech frames instead of word embeddings.

    `lang_token_id` puts the embedding of a token before the frames.
    """

    IS_NEVER_FROZEN = True
    """The layers of `transformers` read the dtypes of their weights."""

    def __init__(
        self,
        *,
        input_size: int,
        model_name_or_path: str,
        length_adaptor_n_layers: Annotated[int, Range(0, 10)] = 0,
        lang_token_id: Annotated[int, Range(-1, 1_000_000)] = -1,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name = model_name_or_path
        self.architecture = architecture or read_json(find_folder(model_name_or_path, None) / CONFIG)
        model = _build(self.architecture)
        self.is_seq2seq = bool(model.config.is_encoder_decoder)
        self.transformer = inner_model(model).encoder
        if self.is_seq2seq:
            self.transformer.embed_tokens = None
        self.output_size = int(model.config.hidden_size)
        self.linear_in = nn.Linear(input_size, self.output_size)
        adaptor = LengthAdaptor(input_size=input_size, length_adaptor_n_layers=length_adaptor_n_layers)
        self.length_adaptor = adaptor.length_adaptor
        self._adaptor = (adaptor,)  # its layers are registered once, under ESPnet2's name
        self.lang_token_id = lang_token_id
        if lang_token_id != -1:
            self.register_buffer("lang_token_embed", torch.zeros(self.output_size))

    lang_token_embed: Tensor

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, frames, size) and lengths -> the same of the output."""
        x, lengths = self._adaptor[0](x, lengths)
        x = self.linear_in(x)
        if self.lang_token_id != -1:
            x = torch.cat([self.lang_token_embed.to(x.dtype).expand(x.size(0), 1, -1), x], dim=1)
            lengths = lengths + 1
        mask = length_mask(lengths, x.size(1))
        if self.is_seq2seq:
            return self.transformer(inputs_embeds=x, attention_mask=mask.long()).last_hidden_state, lengths
        added = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, torch.finfo(x.dtype).min)
        return self.transformer(x, attention_mask=added[:, None, None]).last_hidden_state, lengths

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of output frames for a number of encoder frames."""
        return self._adaptor[0].output_lengths(lengths) + int(self.lang_token_id != -1)

    def load_pretrained(self) -> None:
        """Fill in the pretrained weights, from a folder or the hub."""
        full = _read(self.architecture, find_folder(self.name, None))
        weights = inner_model(full).encoder.state_dict()
        self.transformer.load_state_dict({name: item for name, item in weights.items() if name != TIED[0]})
        if self.lang_token_id != -1:
            self.lang_token_embed.copy_(embedding_of(full, self.lang_token_id))

    def rename_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """ESPnet2 does not store the embedding of the language; it is read from the pretrained model."""
        if self.lang_token_id == -1 or "lang_token_embed" in weights:
            return weights
        full = _read(self.architecture, find_folder(self.name, None))
        return {**weights, "lang_token_embed": embedding_of(full, self.lang_token_id)}


def _build(architecture: Mapping[str, Any]) -> Any:
    """The model with random weights."""
    model = make_model(architecture, "AutoModel")
    if model.config.is_encoder_decoder:
        return build_seq2seq(architecture)
    # BERT and its relatives: a list of layers that takes vectors instead of tokens
    if not hasattr(getattr(model, "encoder", None), "layer") or not hasattr(model, "embeddings"):
        family = architecture.get("model_type")
        raise UserError(
            f"postencoder_conf model_name_or_path: a model of type '{family}' is not supported; use one with encoder "
            "and decoder (such as bart, mbart or t5), or one like bert or roberta"
        )
    return model


def _read(architecture: Mapping[str, Any], folder: Path) -> Any:
    """The model with its pretrained weights."""
    model = _build(architecture)
    if model.config.is_encoder_decoder:
        return read_seq2seq(architecture, folder)
    own = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(("encoder.", "embeddings."))}
    found = {_own_name(name): tensor for name, tensor in read_weight_files(folder).items()}
    taken = {name: tensor for name, tensor in found.items() if name in own and tensor.shape == own[name].shape}
    missing = sorted(name for name in own.keys() - taken.keys() if not name.endswith("_ids"))
    if missing:
        raise UserError(f"{folder}: {len(missing)} weights are missing, such as {missing[0]}")
    model.load_state_dict(taken, strict=False)
    return model


def _own_name(name: str) -> str:
    """`bert.encoder.layer.0.output.LayerNorm.gamma` -> `encoder.layer.0.output.LayerNorm.weight`."""
    name = re.sub(r"^\w+\.(?=(encoder|embeddings)\.)", "", name)
    start, dot, last = name.rpartition(".")
    return f"{start}{dot}{_OLD_NORM.get(last, last)}" if start.endswith("LayerNorm") else name
