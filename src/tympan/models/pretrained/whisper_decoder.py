"""`decoder: whisper`: the decoder of Whisper, with ESPnet2's options and parameter names.

Shapes: memory (batch, frames, size); ys_in (batch, length). In steps: U utterances, B beams, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.pretrained.whisper_encoder import fill, read_size
from tympan.models.pretrained.whisper_files import whisper_weights
from tympan.models.pretrained.whisper_layers import WhisperBlock
from tympan.models.pretrained.whisper_sizes import WhisperSize
from tympan.nn.beam_state import PER_UTTERANCE, BeamState
from tympan.nn.checkpointing import call_layer
from tympan.nn.dropout import Dropout
from tympan.nn.full_precision import at_least_float32
from tympan.nn.masks import causal_bias, key_bias, length_mask
from tympan.nn.prefix_cache import PrefixCache
from tympan.nn.typed_torch import ModuleList

EMBEDDING = "token_embedding.weight"


@dataclass(frozen=True)
class WhisperDecoderState(BeamState):
    """Keys and values of the tokens so far, and of the encoder frames (once per utterance)."""

    tokens: PrefixCache
    memory: tuple[tuple[Tensor, Tensor], ...] = field(metadata=PER_UTTERANCE)
    memory_bias: Tensor = field(metadata=PER_UTTERANCE)  # (U, 1, 1, frames)


class WhisperDecoder(nn.Module):
    """Whisper's decoder; `whisper_model`, `download_dir` and `architecture` are as in `encoder: whisper`.

    If the token list has another size than the model's vocabulary, the embedding is new, with the mean and deviation of
    the original one. With `load_origin_token_embedding` the original rows are kept and only the others are new.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        encoder_output_size: int,
        dropout_rate: Annotated[float, Range(0, below=1)] = 0.0,
        whisper_model: str = "small",
        download_dir: str | None = None,
        load_origin_token_embedding: bool = False,
        architecture: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.download_dir = whisper_model, download_dir
        size = read_size(whisper_model, download_dir, architecture, "decoder_conf")
        if encoder_output_size != size.n_text_state:
            raise UserError(
                f"decoder whisper: this model has {size.n_text_state} values per frame, but the encoder's output has "
                f"{encoder_output_size}; use the same whisper_model in encoder_conf"
            )
        if load_origin_token_embedding and vocab_size < size.n_vocab:
            raise UserError(
                f"decoder_conf load_origin_token_embedding: the token list has {vocab_size} tokens, fewer than the "
                f"{size.n_vocab} of the model"
            )
        self.architecture = size.as_dict()
        self.max_tokens = size.n_text_ctx
        self.decoders = TextDecoder(size, vocab_size, dropout_rate, keeps_embedding=load_origin_token_embedding)

    def forward(self, memory: Tensor, memory_lengths: Tensor, ys_in: Tensor, ys_in_lengths: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) of the token after each of ys_in (sos first)."""
        if ys_in.size(1) > self.max_tokens:
            raise UserError(
                f"a transcript has {ys_in.size(1)} tokens, but Whisper's decoder has {self.max_tokens} positions; "
                "remove or split long utterances"
            )
        parts = self.decoders
        x = parts.embed(ys_in, 0).to(memory.dtype)
        causal = causal_bias(ys_in.size(1), x.dtype, x.device)
        bias = key_bias(length_mask(ys_in_lengths, ys_in.size(1)), x.dtype) + causal
        memory_bias = key_bias(length_mask(memory_lengths, memory.size(1)), x.dtype)
        for number, block in enumerate(parts.blocks, start=1):
            is_checkpointed = self.training and parts.grad_checkpointing
            x = call_layer(block, x, bias, memory, memory_bias, is_checkpointed=is_checkpointed)
            if number < len(parts.blocks):
                x = parts.dropout(x)
        return parts.read_out(x)

    def start(self, memory: Tensor, memory_lengths: Tensor, beams: int) -> WhisperDecoderState:
        """The state before any token: memory (U, frames, size)."""
        utterances, _, size = memory.shape
        blocks = self.decoders.blocks
        return WhisperDecoderState(
            tokens=PrefixCache.empty(len(blocks), utterances, beams, size, dtype=memory.dtype, device=memory.device),
            memory=tuple(block.project_memory(memory) for block in blocks),
            memory_bias=key_bias(length_mask(memory_lengths, memory.size(1)), memory.dtype),
        )

    def step(self, tokens: Tensor, state: WhisperDecoderState) -> tuple[Tensor, WhisperDecoderState]:
        """Log probabilities (U, B, vocabulary) of the token after `tokens` (U, B), which begin with sos."""
        cache = state.tokens.extended()
        bias = cache.bias()
        x = self.decoders.embed(tokens.unsqueeze(-1), state.tokens.length).squeeze(-2).to(state.memory_bias.dtype)
        for layer, block in enumerate(self.decoders.blocks):
            x = block.step(x, layer, cache, bias, state.memory[layer], state.memory_bias)
        log_probs = at_least_float32(self.decoders.read_out(x)).log_softmax(-1)
        return log_probs, replace(state, tokens=cache)

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Recompute activations of the blocks in the backward pass, to save memory."""
        self.decoders.grad_checkpointing = is_on

    def load_pretrained(self) -> None:
        """Fill in the pretrained weights, from a file or the hub."""
        _, weights = whisper_weights(self.name, self.download_dir)
        original = weights[f"decoder.{EMBEDDING}"].float()
        embedding = self.decoders.token_embedding
        embedding.take(original)
        others = {name: tensor for name, tensor in weights.items() if name != f"decoder.{EMBEDDING}"}
        own = {f"decoder.token_embedding.{name}": tensor for name, tensor in embedding.state_dict().items()}
        fill(self.decoders, others | own, "decoder.", self.name)


class TextDecoder(nn.Module):
    """Embedding, learned positions and Transformer blocks. The embedding is also the output layer."""

    def __init__(self, size: WhisperSize, vocab_size: int, dropout_rate: float, *, keeps_embedding: bool) -> None:
        super().__init__()
        state = size.n_text_state
        self.token_embedding: TokenEmbedding | ExpandedTokenEmbedding = (
            ExpandedTokenEmbedding(size.n_vocab, vocab_size - size.n_vocab, state)
            if keeps_embedding and vocab_size > size.n_vocab
            else TokenEmbedding(vocab_size, state)
        )
        self.positional_embedding = nn.Parameter(0.01 * torch.randn(size.n_text_ctx, state))
        self.blocks: ModuleList[WhisperBlock] = ModuleList(
            WhisperBlock(state, size.n_text_head, has_memory=True) for _ in range(size.n_text_layer)
        )
        self.ln = nn.LayerNorm(state)
        self.dropout = Dropout(dropout_rate)
        self.grad_checkpointing = False

    def embed(self, tokens: Tensor, start: int) -> Tensor:
        """Tokens (..., length) at the positions from `start` -> (..., length, size)."""
        x = self.token_embedding(tokens) + self.positional_embedding[start : start + tokens.size(-1)]
        out: Tensor = self.dropout(x)
        return out

    def read_out(self, x: Tensor) -> Tensor:
        """Logits of the next token."""
        return nn.functional.linear(self.ln(x), self.token_embedding.matrix.to(x.dtype))


class TokenEmbedding(nn.Embedding):
    """The embedding of a vocabulary of any size."""

    @property
    def matrix(self) -> Tensor:
        return self.weight

    @torch.no_grad()
    def take(self, original: Tensor) -> None:
        """Copy the original embedding, or draw values with its mean and deviation if the sizes differ."""
        if original.shape == self.weight.shape:
            self.weight.copy_(original)
        else:
            nn.init.normal_(self.weight, original.mean().item(), original.std().item())


class ExpandedTokenEmbedding(nn.Module):
    """The original embedding, followed by rows for added tokens."""

    def __init__(self, size: int, added: int, dim: int) -> None:
        super().__init__()
        self.ori_emb = nn.Embedding(size, dim)
        self.add_emb = nn.Embedding(added, dim)

    @property
    def matrix(self) -> Tensor:
        return torch.cat([self.ori_emb.weight, self.add_emb.weight])

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.embedding(tokens, self.matrix)

    @torch.no_grad()
    def take(self, original: Tensor) -> None:
        """Copy the original embedding, and draw the added rows with its mean and deviation."""
        self.ori_emb.weight.copy_(original)
        nn.init.normal_(self.add_emb.weight, original.mean().item(), original.std().item())
