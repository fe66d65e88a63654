"""A batch of recordings through features and encoder, in the way that suits the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tympan.decode.load import LoadedModel
from tympan.decode.search import Encoded
from tympan.errors import UserError
from tympan.models.encoder.packed import group_by_length
from tympan.models.parts import Packs
from tympan.models.speech_model import SpeechModel
from tympan.nn.masks import length_mask
from tympan.runtime.device import compiles_every_shape, search_device

CPU_SECONDS, CPU_PADDING = 20.0, 0.05
"""Maximum seconds of audio and share of padding per group, for encoders on a CPU that compute padding like speech.
One sentence is enough to use the CPU fully. The search still takes the whole batch.
"""

BUCKETS_PER_OCTAVE = 4
"""Lengths that inputs are padded to, between a length and its double, where every shape is compiled."""


@torch.inference_mode()
def encode_batch(loaded: LoadedModel, inputs: Sequence[np.ndarray], *, seconds: Sequence[float]) -> Encoded:
    """`inputs` are samples or features of each utterance, `seconds` their durations. UserError if one is too short.

    For a model of several speakers, the result has a row for each speaker of each utterance, those of an utterance
    together.
    """
    prepared = loaded.input.prepare(inputs)
    lengths = [len(item) for item in prepared]
    frames = loaded.model.output_lengths(torch.tensor(lengths, device=loaded.device))
    if int(frames.min()) < 1:
        raise UserError(f"the input is too short for one encoder frame: {min(lengths)} samples (or feature frames)")
    if compiles_every_shape(loaded.device.type):
        return _in_fixed_shapes(loaded, prepared)
    return _in_own_shapes(loaded, prepared, seconds)


def encoded_piece(loaded: LoadedModel, out: Tensor) -> Encoded:
    """The next frames (1, T, dim) of one utterance, as a search accepts them."""
    log_probs = _log_posteriors(loaded.model, [out[0]]) if loaded.model.has_ctc else None
    place = search_device(loaded.device)
    lengths = torch.tensor([out.size(1)], device=place)
    return Encoded(memory=out, lengths=lengths, log_probs=None if log_probs is None else log_probs.to(place))


def bucket_length(length: int) -> int:
    """The smallest length of a bucket that is not below `length`: at most a quarter more."""
    step = max(1, (1 << (length.bit_length() - 1)) // BUCKETS_PER_OCTAVE)
    return -(-length // step) * step


def _in_fixed_shapes(loaded: LoadedModel, prepared: Sequence[np.ndarray]) -> Encoded:
    """The encoder's output with its padding, on the device; the posteriors where the search runs."""
    model, place = loaded.model, search_device(loaded.device)
    padded = bucket_length(max(len(item) for item in prepared))
    speech, lengths = _pad(prepared, loaded.device, loaded.dtype, length=padded)
    encoded = model.encode(speech, lengths)
    frames = encoded.lengths.to(place)
    log_probs = None
    if model.has_ctc:
        log_probs = model.ctc_log_posteriors(encoded.out).to(place)
        mask = length_mask(frames, log_probs.size(1)).unsqueeze(2)
        log_probs = log_probs.masked_fill_(~mask, 0.0).transpose(1, 2).contiguous().transpose(1, 2)
    return Encoded(memory=encoded.out, lengths=frames, log_probs=log_probs)


def _in_own_shapes(loaded: LoadedModel, prepared: Sequence[np.ndarray], seconds: Sequence[float]) -> Encoded:
    """The encoder's output with as little padding as possible."""
    model, place = loaded.model, search_device(loaded.device)
    groups: Sequence[Sequence[int]] = [range(len(prepared))]
    if loaded.device.type == "cpu" and not (isinstance(model, Packs) and model.packs_batches):
        # The batch stays as planned. An encoder that computes padding gets it in smaller groups.
        groups = group_by_length(seconds, max_padding=CPU_PADDING, max_total=CPU_SECONDS)
    # Rows of an utterance: one, or one for each of its speakers, all of the same length
    outputs: dict[int, list[Tensor]] = {}
    for group in groups:
        speech, lengths = _pad([prepared[index] for index in group], loaded.device, loaded.dtype)
        encoded = model.encode(speech, lengths)
        rows = len(encoded.out) // len(group)
        for row, (out, length) in enumerate(zip(encoded.out, encoded.lengths.tolist(), strict=True)):
            outputs.setdefault(group[row // rows], []).append(out[:length])
    ordered = [out for index in range(len(prepared)) for out in outputs[index]]
    return Encoded(
        memory=pad_sequence(ordered, batch_first=True),
        lengths=torch.tensor([len(out) for out in ordered], device=place),
        log_probs=_log_posteriors(model, ordered).to(place) if model.has_ctc else None,
    )


def _log_posteriors(model: SpeechModel, outputs: Sequence[Tensor]) -> Tensor:
    """(U, T, V), zero beyond the end of each utterance. The frames of a token are contiguous in memory: searches and
    alignments read few tokens of all frames. Computed per utterance to save memory: this is the largest tensor.
    """
    frames = max(len(out) for out in outputs)
    by_token: Tensor | None = None
    for row, out in enumerate(outputs):
        log_probs = model.ctc_log_posteriors(out)
        if by_token is None:
            by_token = log_probs.new_zeros(len(outputs), log_probs.size(1), frames)
        by_token[row, :, : len(out)].copy_(log_probs.t())
    assert by_token is not None
    return by_token.transpose(1, 2)


def _pad(
    inputs: Sequence[np.ndarray], device: torch.device, dtype: torch.dtype, *, length: int = 0
) -> tuple[Tensor, Tensor]:
    """The inputs in one tensor, at least `length` long, and their lengths."""
    # Half precision would round samples to 8 or 11 bits, so the model casts only after its frontend.
    wide = dtype if dtype == torch.float64 else torch.float32
    # Features may be memory-mapped and read-only, which torch warns about: require a writable array.
    tensors = [torch.from_numpy(np.require(item, requirements=["C", "W"])).to(wide) for item in inputs]
    lengths = torch.tensor([len(item) for item in tensors])
    padded = pad_sequence(tensors, batch_first=True)
    if padded.size(1) < length:
        padded = torch.cat([padded, padded.new_zeros(len(padded), length - padded.size(1), *padded.shape[2:])], dim=1)
    return padded.to(device), lengths.to(device)
