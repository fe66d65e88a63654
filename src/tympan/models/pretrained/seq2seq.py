"""`decoder: hugging_face_transformers`: the decoder of a text-to-text model of the Hugging Face hub.

BART, mBART, T5 and other models with an encoder and a decoder, through the package `transformers`.

Shapes: memory (batch, frames, size); ys_in (batch, length). In steps: U utterances, B beams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.models.pretrained.folder import CONFIG, find_folder, read_json, read_weight_files, require_transformers
from tympan.nn.beam_state import PER_UTTERANCE, BeamState
from tympan.nn.full_precision import at_least_float32
from tympan.nn.masks import length_mask

_NOT_ARCHITECTURE = ("model_type", "torch_dtype", "dtype", "auto_map", "architectures", "transformers_version")
TIED = ("embed_tokens.weight", "shared.weight", "lm_head.weight", "final_logits_bias")
MBART_START = 2
"""ESPnet2 begins every text of mBART with this token."""


@dataclass(frozen=True)
class PrefixState(BeamState):
    """The tokens so far, and the encoder's output."""

    tokens: Tensor  # (U, B, length)
    memory: Tensor = field(metadata=PER_UTTERANCE)
    lengths: Tensor = field(metadata=PER_UTTERANCE)


class HuggingFaceDecoder(nn.Module):
    """`model_name_or_path` is a hub name or a folder; `architecture` is the content of its config.json.

    A step of the search computes the whole prefix again. `overriding_architecture_config` changes keys of config.json:
    a mapping, or the path of a JSON file, which is not read again if `architecture` is given.
    """

    IS_NEVER_FROZEN = True
    """The layers of `transformers` read the dtypes of their weights."""

    def __init__(
        self,
        *,
        vocab_size: int,
        encoder_output_size: int,
        model_name_or_path: str,
        causal_lm: bool = False,
        prefix: str = "",
        postfix: str = "",
        overriding_architecture_config: dict[str, Any] | str | None = None,
        load_pretrained_weights: bool = True,
        separate_lm_head: bool = False,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if causal_lm or prefix or postfix:
            raise UserError(
                "decoder_conf causal_lm, prefix and postfix are not supported; use a model with encoder and decoder"
            )
        self.name, self.loads, self.vocab_size = model_name_or_path, load_pretrained_weights, vocab_size
        changes = overriding_architecture_config or {}
        if isinstance(changes, str):
            changes = {} if architecture else read_json(Path(changes))
        self.architecture = {**(architecture or read_json(find_folder(model_name_or_path, None) / CONFIG)), **changes}
        model = build_seq2seq(self.architecture)
        model.resize_token_embeddings(vocab_size)
        self.is_mbart = self.architecture.get("model_type") == "mbart"
        self.decoder = inner_model(model).decoder
        self.lm_head = model.get_output_embeddings()
        if separate_lm_head:
            self.lm_head.weight = nn.Parameter(self.lm_head.weight.detach().clone())
        size = int(model.config.hidden_size)
        self.linear_in: nn.Module = (
            nn.Linear(encoder_output_size, size) if encoder_output_size != size else nn.Identity()
        )

    def forward(self, memory: Tensor, memory_lengths: Tensor, ys_in: Tensor, ys_in_lengths: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of the token after each of ys_in (sos first)."""
        logits: Tensor = self.lm_head(self._hidden(memory, memory_lengths, ys_in, ys_in_lengths))
        return logits

    def start(self, memory: Tensor, memory_lengths: Tensor, beams: int) -> PrefixState:
        """The state before any token: memory (U, frames, size)."""
        nothing = torch.zeros(memory.size(0), beams, 0, dtype=torch.long, device=memory.device)
        return PrefixState(nothing, memory, memory_lengths)

    def step(self, tokens: Tensor, state: PrefixState) -> tuple[Tensor, PrefixState]:
        """Log probabilities (U, B, vocabulary) of the token after `tokens` (U, B), which begin with sos."""
        prefix = torch.cat([state.tokens, tokens.unsqueeze(2)], dim=2)
        utterances, beams, length = prefix.shape
        hidden = self._hidden(
            state.memory.repeat_interleave(beams, 0),
            state.lengths.repeat_interleave(beams, 0),
            prefix.flatten(0, 1),
            torch.full((utterances * beams,), length, device=prefix.device),
        )[:, -1]
        log_probs = at_least_float32(self.lm_head(hidden)).log_softmax(-1)
        return log_probs.view(utterances, beams, -1), PrefixState(prefix, state.memory, state.lengths)

    def load_pretrained(self) -> None:
        """Fill in the pretrained weights, unless `load_pretrained_weights` is false."""
        if not self.loads:
            return
        full = read_seq2seq(self.architecture, find_folder(self.name, None))
        full.resize_token_embeddings(self.vocab_size)
        self.decoder.load_state_dict(inner_model(full).decoder.state_dict())
        self.lm_head.load_state_dict(full.get_output_embeddings().state_dict())

    def generator(self) -> Any:
        """The model of `transformers` around this decoder, without an encoder, for its method `generate`."""
        model = build_seq2seq(self.architecture)
        model.resize_token_embeddings(self.vocab_size)
        inner = inner_model(model)
        inner.decoder, model.lm_head = self.decoder, self.lm_head
        del inner.encoder
        return model.to(next(self.parameters()).device).eval()

    def _hidden(self, memory: Tensor, memory_lengths: Tensor, ys_in: Tensor, ys_in_lengths: Tensor) -> Tensor:
        if self.is_mbart:
            ys_in = torch.cat([torch.full_like(ys_in[:, :1], MBART_START), ys_in[:, 1:]], dim=1)
        out: Tensor = self.decoder(
            input_ids=ys_in,
            attention_mask=length_mask(ys_in_lengths, ys_in.size(1)).long(),
            encoder_hidden_states=self.linear_in(memory),
            encoder_attention_mask=length_mask(memory_lengths, memory.size(1)).long(),
            use_cache=False,
        ).last_hidden_state
        return out


def build_seq2seq(architecture: Mapping[str, Any]) -> Any:
    """The model with encoder and decoder, with random weights."""
    return make_model(architecture, "AutoModelForSeq2SeqLM")


def make_model(architecture: Mapping[str, Any], auto_class: str) -> Any:
    """The model of one of the automatic classes of `transformers`, with random weights."""
    transformers = require_transformers()
    family = str(architecture.get("model_type"))
    values = {key: item for key, item in architecture.items() if key not in _NOT_ARCHITECTURE}
    try:
        config = transformers.AutoConfig.for_model(family, **values)
        if auto_class == "AutoModelForSeq2SeqLM" and not config.is_encoder_decoder:
            raise ValueError("it has no encoder and decoder")
        return getattr(transformers, auto_class).from_config(config, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"a text model of type '{family}' can't be built: {reason}") from None


def read_seq2seq(architecture: Mapping[str, Any], folder: Path) -> Any:
    """The model with its pretrained weights."""
    model = build_seq2seq(architecture)
    weights, own = read_weight_files(folder), model.state_dict()
    taken = {name: tensor for name, tensor in weights.items() if name in own and tensor.shape == own[name].shape}
    missing = sorted(name for name in own.keys() - taken.keys() if not name.endswith(TIED))
    has_embedding = any(name.endswith(TIED[:3]) for name in taken)
    if missing or not has_embedding:
        example = missing[0] if missing else "the embedding"
        raise UserError(f"{folder}: {max(1, len(missing))} weights are missing, such as {example}")
    model.load_state_dict(taken, strict=False)
    # A tied weight is stored under one of its names
    shared = next(
        taken[name] for name in sorted(taken, key=lambda name: "shared" not in name) if name.endswith(TIED[:3])
    )
    if model.config.tie_word_embeddings:
        with torch.no_grad():
            model.get_input_embeddings().weight.copy_(shared)
        model.tie_weights()
    return model


def inner_model(model: Any) -> Any:
    return model.model if hasattr(model, "model") else model


def embedding_of(model: Any, token: int) -> Tensor:
    """The embedding of a token, with the scale that the model applies to it."""
    found: Tensor = model.get_input_embeddings()(torch.tensor(token)).detach()
    return found
