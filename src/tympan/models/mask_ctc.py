"""Mask-CTC (Higuchi et al. 2020): CTC, and a decoder that learns to fill in masked tokens of the transcript."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tympan.errors import UserError
from tympan.features.specaug import Draws
from tympan.models.attention import Attended, Text
from tympan.models.ctc import Ctc
from tympan.models.decoder.mlm import MlmDecoder
from tympan.models.encoder.output import EncoderOutput
from tympan.models.hybrid import HybridModel
from tympan.models.label_smoothing import smoothed_loss
from tympan.models.loss import LossTerm, Stat, count_of
from tympan.models.parts import Augmenter, Encoder, Frontend, Normalizer, Preencoder
from tympan.nn.masks import length_mask

FIRST_DRAW = 1000
"""SpecAugment uses the draws before this."""


class MaskCtcModel(HybridModel):
    """`model: maskctc` with `decoder: mlm`. Which tokens are masked depends on the utterance's seed in training, and
    only on the transcript in validation.
    """

    searches: tuple[str, ...] = ("mask_ctc", "ctc_greedy", "ctc_prefix")

    def __init__(
        self,
        *,
        token_list: Sequence[str],
        frontend: Frontend | None,
        specaug: Augmenter | None,
        normalize: Normalizer | None,
        preencoder: Preencoder | None,
        encoder: Encoder,
        decoder: MlmDecoder | None,
        ctc: Ctc | None,
        ctc_weight: float = 0.5,
        interctc_weight: float = 0.0,
        ignore_id: int = -1,
        lsm_weight: float = 0.0,
        length_normalized_loss: bool = False,
        report_cer: bool = True,
        report_wer: bool = True,
        sym_space: str = "<space>",
        sym_blank: str = "<blank>",
        sym_mask: str = "<mask>",
        extract_feats_in_collect_stats: bool = True,
    ) -> None:
        super().__init__(
            token_list=token_list,
            frontend=frontend,
            specaug=specaug,
            normalize=normalize,
            preencoder=preencoder,
            encoder=encoder,
            decoder=None,
            ctc=ctc,
            ctc_weight=1.0,
            interctc_weight=interctc_weight,
            ignore_id=ignore_id,
            lsm_weight=lsm_weight,
            length_normalized_loss=length_normalized_loss,
            report_cer=report_cer,
            report_wer=report_wer,
            sym_space=sym_space,
            sym_blank=sym_blank,
            extract_feats_in_collect_stats=extract_feats_in_collect_stats,
        )
        if sym_mask in token_list:
            raise UserError(f"the token list contains '{sym_mask}', which the model adds itself; remove it")
        if not 0.0 < ctc_weight <= 1.0:
            raise UserError(f"model_conf ctc_weight must be above 0, but it is {ctc_weight}: Mask-CTC starts from CTC")
        if decoder is None and ctc_weight < 1.0:
            raise UserError("model: maskctc needs decoder: mlm, or model_conf ctc_weight=1.0")
        self.ctc_weight = ctc_weight
        self.decoder = decoder if ctc_weight < 1.0 else None  # type: ignore[assignment]

    @property
    def mlm(self) -> MlmDecoder | None:
        """The decoder, with its own interface."""
        return self.decoder  # type: ignore[return-value]

    @property
    def step_decoder(self) -> None:
        """It predicts no next token, so a search can't run it token by token."""
        return None

    def _add_attention_term(
        self, encoded: EncoderOutput, text: Text, terms: list[LossTerm], stats: dict[str, Stat], seeds: Tensor | None
    ) -> None:
        found = self._fill_in(encoded, text, seeds)
        terms.append(LossTerm(found.total, found.count, 1.0 - self.ctc_weight))
        stats["loss_mlm"] = Stat(found.total.detach(), found.count)
        stats["acc_mlm"] = found.accuracy

    def _attend(self, encoded: EncoderOutput, text: Text) -> Attended:
        return self._fill_in(encoded, text, None)

    def _fill_in(self, encoded: EncoderOutput, text: Text, seeds: Tensor | None) -> Attended:
        assert self.mlm is not None
        is_token = length_mask(text.lengths, text.ids.size(1))
        if seeds is None:
            # The same masks whenever this transcript is validated.
            places = torch.arange(1, text.ids.size(1) + 1, device=text.ids.device)
            seeds = (text.ids.clamp(min=0) * places).sum(1)
        is_masked = mask_uniform(text.lengths, text.ids.size(1), seeds) & is_token
        tokens = torch.where(is_token, text.ids, self.eos).masked_fill(is_masked, self.mlm.mask_token)
        logits = self.mlm(encoded.out, encoded.lengths, tokens, text.lengths)
        count, best = is_masked.sum().float(), logits.detach().argmax(-1)
        return Attended(
            total=smoothed_loss(logits, text.ids, is_masked, smoothing=self.lsm_weight),
            count=count if self.length_normalized_loss else count_of(text.ids.size(0), logits),
            accuracy=Stat(((best == text.ids) & is_masked).sum().float(), count),
            best=best,
        )


def mask_uniform(lengths: Tensor, longest: int, seeds: Tensor) -> Tensor:
    """(batch, longest): masks at positions drawn with replacement; their number is uniform from 1 to the length."""
    if longest == 0:
        return torch.zeros(len(lengths), 0, dtype=torch.bool, device=lengths.device)
    draws, first = Draws(seeds), FIRST_DRAW + 1
    several = lengths.clamp(min=1)
    number = draws.integers(FIRST_DRAW, torch.ones_like(several), several + 1)
    zeros = torch.zeros_like(several)
    places = torch.stack([draws.integers(index, zeros, several) for index in range(first, first + longest)], dim=1)
    is_drawn = length_mask(number, longest)
    return torch.zeros_like(places).scatter_add_(1, places, is_drawn.long()) > 0
