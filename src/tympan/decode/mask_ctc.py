"""The search of Mask-CTC: tokens of the best CTC path of which CTC is unsure are filled in by the decoder.

Differs from ESPnet2 on purpose: the mask itself is never filled in, so it never stands in a result.

All utterances of a batch are filled in together, some tokens per iteration, the surest first.

Shapes: U utterances, T frames, L tokens of the longest text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tympan.decode.load import LoadedModel
from tympan.decode.mask_ctc_kind import MASK_CTC, MaskCtcOptions
from tympan.decode.options import DecodeOptions
from tympan.decode.search import Encoded, Ended
from tympan.decode.whole import Collected, WholeUtteranceSearch
from tympan.errors import UserError
from tympan.models.decoder.mlm import MlmDecoder
from tympan.models.mask_ctc import MaskCtcModel


class MaskCtcSearch(WholeUtteranceSearch):
    """Needs the whole encoding of an utterance, so it fills in at the end."""

    def __init__(self, mlm: MlmDecoder, *, blank_id: int, iterations: int, threshold: float) -> None:
        self.mlm = mlm
        self.blank_id = blank_id
        self.iterations = iterations
        self.threshold = threshold

    @torch.inference_mode()
    def finish(self, state: Collected) -> list[list[Ended]]:
        encoded = state.joined()
        best = best_path(encoded, blank_id=self.blank_id)
        is_unsure = best.is_token & (best.probabilities < self.threshold)
        tokens = best.tokens.masked_fill(is_unsure, self.mlm.mask_token)
        tokens = self._fill_in(encoded, tokens, best.lengths, is_unsure)
        rows = zip(tokens.tolist(), best.lengths.tolist(), best.scores, strict=True)
        return [[Ended(tuple(ids[:length]), score, {"ctc": score})] for ids, length, score in rows]

    def _fill_in(self, encoded: Encoded, tokens: Tensor, lengths: Tensor, is_unsure: Tensor) -> Tensor:
        masks = is_unsure.sum(1)
        times = masks.clamp(max=self.iterations) if self.iterations > 0 else masks
        share = torch.div(masks, times.clamp(min=1), rounding_mode="floor")
        for time in range(int(times.max()) if len(times) else 0):
            is_masked = tokens == self.mlm.mask_token
            logits = self.mlm(encoded.memory, encoded.lengths, tokens, lengths)
            surest = logits[:, :, : self.mlm.mask_token].max(2)
            order = surest.values.masked_fill(~is_masked, float("-inf")).argsort(1, descending=True)
            rank = torch.zeros_like(order).scatter_(1, order, torch.arange(order.size(1)).to(order).expand_as(order))
            # The last time everything that is left is filled in.
            number = torch.where(time + 1 < times, share, tokens.size(1))
            is_filled = is_masked & (rank < number.unsqueeze(1))
            tokens = torch.where(is_filled, surest.indices, tokens)
        return tokens


@dataclass(frozen=True)
class BestPath:
    tokens: Tensor  # (U, L)
    lengths: Tensor  # (U,)
    probabilities: Tensor  # (U, L): the highest of the frames of each token
    scores: list[float]

    @property
    def is_token(self) -> Tensor:
        return torch.arange(self.tokens.size(1), device=self.tokens.device) < self.lengths.unsqueeze(1)


def best_path(encoded: Encoded, *, blank_id: int) -> BestPath:
    """The tokens of the best CTC path, without repetitions and blanks."""
    assert encoded.log_probs is not None
    best = encoded.log_probs.max(2)
    is_frame = torch.arange(best.indices.size(1), device=best.indices.device) < encoded.lengths.unsqueeze(1)
    starts = best.indices != torch.nn.functional.pad(best.indices[:, :-1], (1, 0), value=-1)
    is_token = (best.indices != blank_id) & is_frame
    # Frames of the same token have the same position in the text; all others go to a position that is cut off.
    place = (starts & is_token).cumsum(1) - 1
    frames = best.indices.size(1)
    place = place.masked_fill(~is_token, frames)
    probabilities = best.values.exp().new_zeros(len(place), frames + 1)
    probabilities.scatter_reduce_(1, place, best.values.exp(), "amax")
    tokens = best.indices.new_zeros(len(place), frames + 1).scatter_(1, place, best.indices)
    lengths = (starts & is_token).sum(1)
    longest = int(lengths.max()) if len(lengths) else 0
    scores = best.values.double().masked_fill(~is_frame, 0.0).sum(1).tolist()
    return BestPath(tokens[:, :longest], lengths, probabilities[:, :longest], scores)


def build_mask_ctc(loaded: LoadedModel, options: DecodeOptions) -> MaskCtcSearch:
    model = loaded.model
    if not isinstance(model, MaskCtcModel) or model.mlm is None:
        raise UserError("search mask_ctc needs a model that was trained with model: maskctc and decoder: mlm")
    own: MaskCtcOptions = MASK_CTC.own_options(options.search_conf)
    return MaskCtcSearch(
        model.mlm,
        blank_id=model.blank_id,
        iterations=own.maskctc_n_iterations,
        threshold=own.maskctc_threshold_probability,
    )
