"""The speech translation model: encoder, target-language decoder (and CTC), auxiliary tasks on the source language.

Shapes: speech (batch, samples[, channels]) or features (batch, frames, size); text, src_text (batch, length).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.models.attention import Attended, Text, attention_kept, attention_loss, language_prompt
from tympan.models.bleu import BleuCounter
from tympan.models.ctc import Ctc
from tympan.models.encoder.output import EncoderOutput
from tympan.models.encoder.packed import is_packable
from tympan.models.encoding import EncodingModel
from tympan.models.error_rates import ErrorCounter
from tympan.models.inputs import prepare_features
from tympan.models.loss import Loss, LossTerm, Stat, count_of, with_total
from tympan.models.parts import (
    Augmenter,
    Decoder,
    Encoder,
    Frontend,
    Normalizer,
    Preencoder,
    StepDecoder,
)
from tympan.nn.masks import length_mask


@dataclass(frozen=True)
class _Task:
    """One task of the loss: its weight and its terms, whose weights are relative to the task."""

    name: str
    weight: float
    terms: Sequence[LossTerm]


class StModel(EncodingModel):
    """ESPnet2's `ESPnetSTModel`. The loss is a sum of up to three tasks:

    - translation, weight 1 - asr_weight - mt_weight: `decoder`, with `st_mtlalpha` of CTC (`st_ctc`);
    - recognition, weight asr_weight: `extra_asr_decoder`, with `mtlalpha` of CTC (`ctc`), from `src_text`;
    - translation of text, weight mt_weight squared as in ESPnet2: `extra_mt_encoder` of `src_text`, and `decoder`.

    With `hier_encoder`, recognition uses the first encoder's output and translation the second's. `extra_mt_decoder`
    has weights but is not used, as in ESPnet2. `ignore_id` and `tgt_ignore_id` are accepted but have no effect: the
    lengths define where a text ends.
    """

    searches: tuple[str, ...] = ("joint", "ctc_greedy", "ctc_prefix", "rescore")

    def __init__(
        self,
        *,
        token_list: Sequence[str],
        src_token_list: Sequence[str] | None,
        frontend: Frontend | None,
        specaug: Augmenter | None,
        normalize: Normalizer | None,
        preencoder: Preencoder | None,
        encoder: Encoder,
        hier_encoder: Encoder | None,
        extra_mt_encoder: Encoder | None,
        decoder: Decoder | None,
        extra_asr_decoder: Decoder | None,
        extra_mt_decoder: Decoder | None,
        ctc: Ctc | None,
        st_ctc: Ctc | None,
        asr_weight: float = 0.0,
        mt_weight: float = 0.0,
        mtlalpha: float = 0.0,
        st_mtlalpha: float = 0.0,
        ignore_id: int = -1,
        tgt_ignore_id: int = -1,
        lsm_weight: float = 0.0,
        length_normalized_loss: bool = False,
        report_cer: bool = True,
        report_wer: bool = True,
        report_bleu: bool = True,
        sym_space: str = "<space>",
        sym_blank: str = "<blank>",
        tgt_sym_space: str = "<space>",
        tgt_sym_blank: str = "<blank>",
        extract_feats_in_collect_stats: bool = True,
        ctc_sample_rate: float = 0.0,
        tgt_sym_sos: str = "<sos/eos>",
        tgt_sym_eos: str = "<sos/eos>",
        lang_token_id: int = -1,
    ) -> None:
        super().__init__()
        if ctc_sample_rate > 0:
            raise UserError(
                "model_conf ctc_sample_rate belongs to the multi-decoder, which Tympan does not have; use 0"
            )
        self.token_list = tuple(token_list)
        self.src_token_list = tuple(src_token_list or ())
        self.vocab_size = len(self.token_list)
        self.src_vocab_size = len(self.src_token_list)
        self.sos = _index(self.token_list, tgt_sym_sos, otherwise=self.vocab_size - 1)
        self.eos = _index(self.token_list, tgt_sym_eos, otherwise=self.vocab_size - 1)
        self.blank_id = _index(self.token_list, tgt_sym_blank, otherwise=0)
        self.src_sos = self.src_eos = self.src_vocab_size - 1
        self.src_blank_id = _index(self.src_token_list, sym_blank, otherwise=0)
        self.asr_weight = asr_weight
        self.mt_weight = mt_weight
        self.mtlalpha = mtlalpha
        self.st_mtlalpha = st_mtlalpha
        self.lsm_weight = lsm_weight
        self.length_normalized_loss = length_normalized_loss
        self.report_cer = report_cer
        self.report_wer = report_wer
        self.report_bleu = report_bleu
        self.extract_feats_in_collect_stats = extract_feats_in_collect_stats
        self.prompt = language_prompt(lang_token_id, self.vocab_size)
        self.frontend = frontend
        self.specaug = specaug
        self.normalize = normalize
        self.preencoder = preencoder
        self.encoder = encoder
        self.hier_encoder = hier_encoder
        self.decoder = decoder if st_mtlalpha < 1.0 else None
        self.st_ctc = st_ctc if st_mtlalpha > 0.0 else None
        self.ctc = ctc if asr_weight > 0.0 and mtlalpha > 0.0 else None
        self.extra_asr_decoder = extra_asr_decoder if asr_weight > 0.0 and mtlalpha < 1.0 else None
        self.extra_mt_encoder = extra_mt_encoder if mt_weight > 0.0 else None
        self.extra_mt_decoder = extra_mt_decoder if mt_weight > 0.0 else None
        if isinstance(self.extra_mt_decoder, nn.Module):
            self.extra_mt_decoder.requires_grad_(False)
        self._check_weights()
        self._check_parts(sym_blank, tgt_sym_blank)
        self.error_counter = ErrorCounter(self.src_token_list, sym_space, sym_blank)
        self.bleu_counter = BleuCounter(self.token_list, tgt_sym_space, tgt_sym_blank)

    def _check_weights(self) -> None:
        weights = {
            "asr_weight": self.asr_weight,
            "mt_weight": self.mt_weight,
            "mtlalpha": self.mtlalpha,
            "st_mtlalpha": self.st_mtlalpha,
        }
        for name, value in weights.items():
            if not 0.0 <= value <= 1.0:
                raise UserError(f"model_conf {name} must be between 0 and 1, but it is {value}")
        if self.asr_weight + self.mt_weight >= 1.0:
            raise UserError(
                f"model_conf asr_weight {self.asr_weight} and mt_weight {self.mt_weight} leave no weight for the "
                "translation of speech; their sum must be below 1"
            )

    def _check_parts(self, sym_blank: str, tgt_sym_blank: str) -> None:
        if self.decoder is None and self.st_mtlalpha < 1.0:
            raise UserError(
                f"st_mtlalpha is {self.st_mtlalpha}, so a decoder is needed: choose one with --decoder, or set "
                f"model_conf st_mtlalpha=1 for CTC only"
            )
        if (self.asr_weight > 0 or self.mt_weight > 0) and not self.src_token_list:
            raise UserError("model_conf asr_weight or mt_weight above 0 needs --src_token_list")
        if self.asr_weight > 0 and self.mtlalpha < 1.0 and self.extra_asr_decoder is None:
            raise UserError(
                f"asr_weight is {self.asr_weight} and mtlalpha {self.mtlalpha}, so --extra_asr_decoder is needed; "
                "choose one, or set model_conf mtlalpha=1 for CTC only"
            )
        if self.mt_weight > 0 and (self.extra_mt_encoder is None or self.decoder is None):
            raise UserError("model_conf mt_weight above 0 needs --extra_mt_encoder and a decoder (st_mtlalpha below 1)")
        speech_size = (self.hier_encoder or self.encoder).output_size
        if self.extra_mt_encoder is not None and self.extra_mt_encoder.output_size != speech_size:
            other = "encoder" if self.hier_encoder is None else "hier_encoder"
            raise UserError(
                f"mt_weight above 0: extra_mt_encoder and {other} have one decoder, so they must have the "
                f"same output_size, found {self.extra_mt_encoder.output_size} and {speech_size}"
            )
        if self.mt_weight > 0 and self.src_vocab_size > self.vocab_size:
            raise UserError(
                f"mt_weight above 0: the source vocabulary ({self.src_vocab_size} tokens) must not be larger than the "
                f"target's ({self.vocab_size}): as in ESPnet2, the embedding of extra_mt_encoder has the size of "
                f"the target vocabulary"
            )
        for ctc, tokens, blank, option in (
            (self.st_ctc, self.token_list, tgt_sym_blank, "token_list does not contain tgt_sym_blank"),
            (self.ctc, self.src_token_list, sym_blank, "src_token_list does not contain sym_blank"),
        ):
            if ctc is not None and blank not in tokens:
                raise UserError(
                    f"{option} '{blank}', the CTC blank; add it to the tokens, or set the right name in model_conf"
                )

    def forward(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        src_text: Tensor | None = None,
        src_text_lengths: Tensor | None = None,
        augment_seed: Tensor | None = None,
    ) -> Loss:
        """The loss of a batch of at least one utterance. Text may have any value beyond its lengths.

        `src_text` is needed if `asr_weight` or `mt_weight` is above 0.
        """
        first, encoded = self._encode(speech, speech_lengths, augment_seed)
        stats: dict[str, Stat] = {}
        target = self._target(text, text_lengths)
        tasks = [_Task("st", 1.0 - self.asr_weight - self.mt_weight, self._translate(encoded, target, stats))]
        if self.asr_weight > 0 or self.mt_weight > 0:
            source = self._source(src_text, src_text_lengths)
            if self.asr_weight > 0:
                tasks.append(_Task("asr", self.asr_weight, self._recognize(first, source, stats)))
            if self.mt_weight > 0:
                tasks.append(_Task("mt", self.mt_weight, self._translate_text(source, target, stats)))
        return _sum(tasks, stats, count_of(speech.size(0), encoded.out))

    def encode(self, speech: Tensor, speech_lengths: Tensor, *, augment_seed: Tensor | None = None) -> EncoderOutput:
        """The input of the translation decoder and CTC. SpecAugment only in training."""
        return self._encode(speech, speech_lengths, augment_seed)[1]

    @property
    def has_ctc(self) -> bool:
        """Whether the target language has CTC; `ctc` is for the source language and used only in training."""
        return self.st_ctc is not None

    def ctc_log_posteriors(self, out: Tensor) -> Tensor:
        """Encoder output (..., time, size) -> (..., time, V) of the target language, in at least float32."""
        assert self.st_ctc is not None
        return self.st_ctc.log_softmax(out)

    @property
    def step_decoder(self) -> StepDecoder | None:
        return self.decoder

    @property
    def packs_batches(self) -> bool:
        """Whether padding costs the encoders nothing on a CPU, so that a batch may mix utterances of any length."""
        return super().packs_batches and (self.hier_encoder is None or is_packable(self.hier_encoder))

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames after the last encoder, without running the model."""
        lengths = super().output_lengths(lengths)
        return lengths if self.hier_encoder is None else self.hier_encoder.output_lengths(lengths)

    def frames_needed(self, tokens: Tensor, repeats: Tensor) -> dict[str, Tensor]:
        """Least frames (batch,) after the last encoder for CTC of the target language, with its language token."""
        return super().frames_needed(tokens + len(self.prompt), repeats)

    @property
    def source_side(self) -> SourceSide:
        return SourceSide(self)

    @torch.no_grad()
    def attention_weights(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        src_text: Tensor | None = None,
        src_text_lengths: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Attention weights by layer name, (batch, [heads,] queries, keys), of a forward pass in evaluation mode.

        The recognition decoder is skipped if there is no `src_text`.
        """
        with attention_kept(self) as weights:
            first, encoded = self._encode(speech, speech_lengths, None)
            if self.decoder is not None:
                self._attend(self.decoder, encoded, self._target(text, text_lengths))
            if self.extra_asr_decoder is not None and src_text is not None:
                source = self._source(src_text, src_text_lengths)
                self._attend_source(self.extra_asr_decoder, first, source)
            return weights()

    def _encode(
        self, speech: Tensor, lengths: Tensor, augment_seed: Tensor | None
    ) -> tuple[EncoderOutput, EncoderOutput]:
        """The encoder outputs for recognition and for translation; the same without `hier_encoder`."""
        features, lengths = prepare_features(self, speech, lengths, augment_seed=augment_seed)
        first = self.encoder(features, lengths)
        if self.hier_encoder is None:
            return first, first
        inside = length_mask(first.lengths, first.out.size(1)).unsqueeze(-1)
        return first, self.hier_encoder(first.out.masked_fill(~inside, 0.0), first.lengths)

    def _source(self, src_text: Tensor | None, src_text_lengths: Tensor | None) -> Text:
        if src_text is None or src_text_lengths is None:
            raise UserError(
                f"asr_weight is {self.asr_weight} and mt_weight {self.mt_weight}, so the data must have 'src_text', "
                "the transcript in the source language; give it, or set both weights to 0"
            )
        return Text.cut(src_text, src_text_lengths)

    def _translate(self, encoded: EncoderOutput, target: Text, stats: dict[str, Stat]) -> list[LossTerm]:
        terms = []
        if self.st_ctc is not None:
            term = self._ctc_term(self.st_ctc, encoded, target, blank_id=self.blank_id)
            terms.append(replace(term, weight=self.st_mtlalpha))
            stats["loss_st_ctc"] = Stat(term.total.detach(), term.count)
            if self.report_bleu and not self.training:
                best = self.st_ctc.argmax(encoded.out)
                stats["bleu_ctc"] = self.bleu_counter.count_ctc(best, encoded.lengths, target.ids, target.lengths)
        if self.decoder is not None:
            found = self._attend(self.decoder, encoded, target)
            terms.append(LossTerm(found.total, found.count, 1.0 - self.st_mtlalpha))
            stats |= {"loss_st_att": Stat(found.total.detach(), found.count), "acc": found.accuracy}
            if self.report_bleu and not self.training:
                stats["bleu"] = self.bleu_counter.count_attention(found.best, target.ids, target.lengths)
        return terms

    def _recognize(self, encoded: EncoderOutput, source: Text, stats: dict[str, Stat]) -> list[LossTerm]:
        terms = []
        counts_errors = (self.report_cer or self.report_wer) and not self.training
        if self.ctc is not None:
            term = self._ctc_term(self.ctc, encoded, source, blank_id=self.src_blank_id)
            terms.append(replace(term, weight=self.mtlalpha))
            if counts_errors:
                best = self.ctc.argmax(encoded.out)
                stats["cer_ctc"] = self.error_counter.count_ctc(best, encoded.lengths, source.ids, source.lengths)
        if self.extra_asr_decoder is not None:
            found = self._attend_source(self.extra_asr_decoder, encoded, source)
            terms.append(LossTerm(found.total, found.count, 1.0 - self.mtlalpha))
            stats["acc_asr"] = found.accuracy
            if counts_errors:
                rates = self.error_counter.count_attention(found.best, source.ids, source.lengths)
                reported = {"cer": self.report_cer, "wer": self.report_wer}
                stats |= {name: stat for name, stat in rates.items() if reported[name]}
        return terms

    def _translate_text(self, source: Text, target: Text, stats: dict[str, Stat]) -> list[LossTerm]:
        assert self.extra_mt_encoder is not None
        assert self.decoder is not None
        encoded = self.extra_mt_encoder(source.ids.clamp(min=0), source.lengths)
        found = self._attend(self.decoder, encoded, target)
        stats["acc_mt"] = found.accuracy
        # ESPnet2 applies this weight twice.
        return [LossTerm(found.total, found.count, self.mt_weight)]

    def _ctc_term(self, ctc: Ctc, encoded: EncoderOutput, text: Text, *, blank_id: int) -> LossTerm:
        total = ctc(encoded.out, encoded.lengths, text.ids, text.lengths, blank_id=blank_id).sum()
        return LossTerm(total, count_of(text.ids.size(0), encoded.out))

    def _target(self, text: Tensor, lengths: Tensor) -> Text:
        """The text begins with the language token, if the model has one; also for CTC, unlike in recognition."""
        return Text.cut(text, lengths).after(self.prompt)

    def _attend(self, decoder: Decoder, encoded: EncoderOutput, text: Text) -> Attended:
        return self._attention_loss(decoder, encoded, text, sos=self.sos, eos=self.eos)

    def _attend_source(self, decoder: Decoder, encoded: EncoderOutput, text: Text) -> Attended:
        return self._attention_loss(decoder, encoded, text, sos=self.src_sos, eos=self.src_eos)

    def _attention_loss(self, decoder: Decoder, encoded: EncoderOutput, text: Text, *, sos: int, eos: int) -> Attended:
        return attention_loss(
            decoder,
            encoded,
            text,
            sos=sos,
            eos=eos,
            smoothing=self.lsm_weight,
            is_length_normalized=self.length_normalized_loss,
        )


def _index(tokens: Sequence[str], token: str, *, otherwise: int) -> int:
    return tokens.index(token) if token in tokens else otherwise


def _sum(tasks: Sequence[_Task], stats: dict[str, Stat], utterances: Tensor) -> Loss:
    """The loss of all tasks, and `loss_TASK` of each as a mean over utterances."""
    means = {f"loss_{task.name}": with_total(task.terms, {}, utterances).stats["loss"] for task in tasks}
    terms = [replace(term, weight=task.weight * term.weight) for task in tasks for term in task.terms]
    return with_total(terms, {**means, **stats}, utterances)


@dataclass(frozen=True)
class SourceSide:
    """The frames that the source text needs. Its CTC uses the first encoder only."""

    model: StModel

    def output_lengths(self, lengths: Tensor) -> Tensor:
        return EncodingModel.output_lengths(self.model, lengths)

    def frames_needed(self, tokens: Tensor, repeats: Tensor) -> dict[str, Tensor]:
        return {} if self.model.ctc is None else {"CTC of the source text": tokens + repeats}
