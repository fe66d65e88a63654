"""Recognition of several speakers who talk at the same time, with permutation invariant training (Yu et al. 2017).

The encoder gives one output per speaker, in any order. In training the texts of an utterance are assigned to the
outputs so that the CTC loss is smallest; CTC and decoder then learn these pairs. R: number of speakers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.attention import Text, attention_kept
from tympan.models.ctc import Ctc
from tympan.models.encoder.output import EncoderOutput
from tympan.models.hybrid import HybridModel, build_hybrid
from tympan.models.loss import Loss
from tympan.models.parts import (
    Augmenter,
    Decoder,
    Encoder,
    Frontend,
    Normalizer,
    Postencoder,
    Preencoder,
    SeparatesSpeakers,
)

if TYPE_CHECKING:
    from tympan.config.asr import AsrTrainConfig


def build_multi_speaker(config: AsrTrainConfig, *, reads_statistics: bool = True) -> nn.Module:
    """Build the model of `config`. ESPnet2 needs `ctc_conf reduce: false` for it; here both values mean the same."""
    config = replace(config, ctc_conf={**config.ctc_conf, "reduce": True})
    return build_hybrid(config, reads_statistics=reads_statistics)


class MultiSpeakerModel(HybridModel):
    """`model: pit_espnet`, with an encoder that separates the speakers. `text`, `text_spk2`, ... are their texts."""

    def __init__(
        self,
        *,
        token_list: Sequence[str],
        frontend: Frontend | None,
        specaug: Augmenter | None,
        normalize: Normalizer | None,
        preencoder: Preencoder | None,
        encoder: Encoder,
        decoder: Decoder | None,
        ctc: Ctc,
        ctc_weight: float = 0.5,
        interctc_weight: float = 0.0,
        ignore_id: int = -1,
        lsm_weight: float = 0.0,
        length_normalized_loss: bool = False,
        report_cer: bool = True,
        report_wer: bool = True,
        sym_space: str = "<space>",
        sym_blank: str = "<blank>",
        sym_sos: str = "<sos/eos>",
        sym_eos: str = "<sos/eos>",
        extract_feats_in_collect_stats: bool = True,
        lang_token_id: int = -1,
        num_inf: Annotated[int, Range(1, 4)] = 1,
        num_ref: Annotated[int, Range(1, 4)] = 1,
        prompt: Sequence[int] = (),
        postencoder: Postencoder | None = None,
    ) -> None:
        super().__init__(
            token_list=token_list,
            frontend=frontend,
            specaug=specaug,
            normalize=normalize,
            preencoder=preencoder,
            encoder=encoder,
            decoder=decoder,
            ctc=ctc,
            ctc_weight=ctc_weight,
            interctc_weight=interctc_weight,
            ignore_id=ignore_id,
            lsm_weight=lsm_weight,
            length_normalized_loss=length_normalized_loss,
            report_cer=report_cer,
            report_wer=report_wer,
            sym_space=sym_space,
            sym_blank=sym_blank,
            sym_sos=sym_sos,
            sym_eos=sym_eos,
            extract_feats_in_collect_stats=extract_feats_in_collect_stats,
            lang_token_id=lang_token_id,
            prompt=prompt,
            postencoder=postencoder,
        )
        outputs = encoder.num_inf if isinstance(encoder, SeparatesSpeakers) else 1
        if not isinstance(encoder, SeparatesSpeakers) or not num_ref == num_inf == outputs:
            raise UserError(
                f"model: pit_espnet needs an encoder with as many outputs as speakers (encoder: transformer_multispkr "
                f"with encoder_conf num_inf): model_conf num_ref is {num_ref}, model_conf num_inf {num_inf}, and the "
                f"encoder has {outputs}"
            )
        if self.ctc is None:
            raise UserError("model_conf ctc_weight must be above 0: pit_espnet assigns texts to speakers by CTC")
        if interctc_weight != 0.0:
            raise UserError(f"model_conf interctc_weight must be 0 with pit_espnet, found {interctc_weight}")
        self.num_speakers = num_ref
        # ESPnet2's weights contain the CTC layer under this name, too
        self.pit_ctc = nn.ModuleDict({"criterion_fn": self.ctc})

    def forward(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        augment_seed: Tensor | None = None,
        **others: Tensor,
    ) -> Loss:
        """The loss of a batch. `others` contains the texts of the other speakers, text_spk2, text_spk2_lengths, ..."""
        encoded = self.encode(speech, speech_lengths, augment_seed=augment_seed)
        texts = self._texts(text, text_lengths, others)
        return self._loss(self._assigned(encoded, texts), texts)

    @torch.no_grad()
    def attention_weights(
        self, speech: Tensor, speech_lengths: Tensor, text: Tensor, text_lengths: Tensor, **others: Tensor
    ) -> dict[str, Tensor]:
        """Attention weights by layer name: the decoder's of `text`, those of shared layers of the first output."""
        with attention_kept(self) as weights:
            encoded = self.encode(speech, speech_lengths)
            if self.decoder is not None:
                texts = self._texts(text, text_lengths, others)
                self._attend(self._assigned(encoded, texts), texts.after(self.prompt))
            return {name: kept[:: len(kept) // speech.size(0)] for name, kept in weights().items()}

    def best_order(self, encoded: EncoderOutput, texts: Text) -> Tensor:
        """(batch, R): for each text, the index of the output that it is assigned to. All rows are (batch * R, ...)."""
        count = self.num_speakers
        orders = torch.tensor(list(permutations(range(count))), device=encoded.out.device)
        costs = self._pair_costs(encoded, texts)  # (batch, text, output)
        # (batch, order): the sum over the texts
        totals = costs[:, torch.arange(count, device=orders.device), orders].sum(2)
        return orders[totals.argmin(1)]

    @torch.no_grad()
    def _pair_costs(self, encoded: EncoderOutput, texts: Text) -> Tensor:
        """(batch, R, R): the CTC loss of each text with each output."""
        assert self.ctc is not None
        count = self.num_speakers
        ids, lengths = texts.ids.view(-1, count, texts.ids.size(1)), texts.lengths.view(-1, count)
        costs = [
            self.ctc(
                encoded.out,
                encoded.lengths,
                ids[:, speaker].repeat_interleave(count, 0),
                lengths[:, speaker].repeat_interleave(count),
                blank_id=self.blank_id,
            )
            for speaker in range(count)
        ]
        return torch.stack([cost.view(-1, count) for cost in costs], dim=1)

    def _assigned(self, encoded: EncoderOutput, texts: Text) -> EncoderOutput:
        """The outputs in the order of the texts."""
        order = self.best_order(encoded, texts)
        first = torch.arange(len(order), device=order.device).unsqueeze(1) * self.num_speakers
        rows = (first + order).flatten()
        return EncoderOutput(encoded.out[rows], encoded.lengths[rows])

    def _texts(self, text: Tensor, lengths: Tensor, others: Mapping[str, Tensor]) -> Text:
        """All texts (batch * R, length), those of an utterance together."""
        names = [f"text_spk{number}" for number in range(2, self.num_speakers + 1)]
        texts = [text, *(others[name] for name in names)]
        longest = max(one.size(1) for one in texts)
        padded = [nn.functional.pad(one, (0, longest - one.size(1))) for one in texts]
        all_lengths = torch.stack([lengths, *(others[f"{name}_lengths"] for name in names)], dim=1)
        return Text.cut(torch.stack(padded, dim=1).flatten(0, 1), all_lengths.flatten())
