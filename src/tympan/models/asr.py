"""The hybrid CTC/attention model (Watanabe et al. 2017): from speech and text to a loss, and to an encoding.

Shapes: speech (batch, samples[, channels]) or features (batch, frames, size); text (batch, length).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.models.ctc import Ctc
from tympan.models.encoder.output import EncoderOutput
from tympan.models.encoder.packed import is_packable
from tympan.models.error_rates import ErrorCounter
from tympan.models.label_smoothing import smoothed_loss
from tympan.models.loss import Loss, LossTerm, Stat
from tympan.nn.full_precision import full_precision
from tympan.nn.masks import length_mask


class AsrModel(nn.Module):
    """`model: espnet`. Frontend, SpecAugment, normalisation, (preencoder,) encoder, then CTC and decoder.

    `autocast_frontend` is accepted and changes nothing: features are always made in float32.
    """

    def __init__(
        self,
        *,
        token_list: Sequence[str],
        frontend: nn.Module | None,
        specaug: nn.Module | None,
        normalize: nn.Module | None,
        preencoder: nn.Module | None,
        encoder: nn.Module,
        decoder: nn.Module | None,
        ctc: nn.Module | None,
        aux_ctc: dict[str, Any] | None = None,
        ctc_weight: float = 0.5,
        interctc_weight: float = 0.0,
        ignore_id: int = -1,
        lsm_weight: float = 0.0,
        length_normalized_loss: bool = False,
        report_cer: bool = True,
        report_wer: bool = True,
        sym_space: str = "<space>",
        sym_blank: str = "<blank>",
        transducer_multi_blank_durations: Sequence[int] = (),
        transducer_multi_blank_sigma: float = 0.05,
        sym_sos: str = "<sos/eos>",
        sym_eos: str = "<sos/eos>",
        autocast_frontend: bool = False,
        extract_feats_in_collect_stats: bool = True,
        lang_token_id: int = -1,
    ) -> None:
        super().__init__()
        if aux_ctc:
            raise UserError("model_conf aux_ctc is not supported; leave it out")
        if transducer_multi_blank_durations:
            raise UserError("model_conf transducer_multi_blank_durations needs a transducer, which Tympan has not yet")
        self.token_list = tuple(token_list)
        self.vocab_size = len(token_list)
        if sym_blank not in token_list:
            raise UserError(f"the token list has no blank '{sym_blank}', which CTC needs (model_conf sym_blank)")
        self.blank_id = self.token_list.index(sym_blank)
        self.sos = self.token_list.index(sym_sos) if sym_sos in token_list else self.vocab_size - 1
        self.eos = self.token_list.index(sym_eos) if sym_eos in token_list else self.vocab_size - 1
        self.ignore_id = ignore_id
        self.ctc_weight = ctc_weight
        self.interctc_weight = interctc_weight
        self.lsm_weight = lsm_weight
        self.length_normalized_loss = length_normalized_loss
        self.report_cer = report_cer
        self.report_wer = report_wer
        self.extract_feats_in_collect_stats = extract_feats_in_collect_stats
        self.lang_token_id = None if lang_token_id == -1 else lang_token_id
        self.frontend = frontend
        self.specaug = specaug
        self.normalize = normalize
        self.preencoder = preencoder
        self.encoder = encoder
        if getattr(encoder, "interctc_use_conditioning", False):
            encoder.conditioning_layer = nn.Linear(self.vocab_size, encoder.output_size)  # type: ignore[arg-type]
        self.decoder = decoder if ctc_weight < 1.0 else None
        assert ctc is None or isinstance(ctc, Ctc)
        self.ctc = ctc if ctc_weight > 0.0 else None
        self._check_weights()
        self.error_counter = ErrorCounter(self.token_list, sym_space, sym_blank)

    def _check_weights(self) -> None:
        if not 0.0 <= self.ctc_weight <= 1.0:
            raise UserError(f"model_conf ctc_weight must lie between 0 and 1, but it is {self.ctc_weight}")
        if not 0.0 <= self.interctc_weight < 1.0:
            raise UserError(f"model_conf interctc_weight must lie in [0, 1), but it is {self.interctc_weight}")
        if self.decoder is None and self.ctc_weight < 1.0:
            raise UserError(
                f"ctc_weight is {self.ctc_weight}, so a decoder is needed; choose one, or set model_conf ctc_weight=1.0"
            )
        uses_ctc_inside = self.interctc_weight > 0 or getattr(self.encoder, "interctc_use_conditioning", False)
        if self.ctc is None and uses_ctc_inside:
            raise UserError("intermediate CTC needs model_conf ctc_weight above 0")

    def forward(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        augment_seed: Tensor | None = None,
    ) -> Loss:
        """The loss of a batch. Text beyond its lengths may be anything.

        A batch of no utterances gives totals and counts of 0 that depend on every parameter, so that gradient
        exchange and synchronised batch normalisation find the same partners on all ranks.
        """
        if speech.size(0) == 0:
            return self._empty_loss(speech, text)
        encoded = self.encode(speech, speech_lengths, augment_seed=augment_seed)
        text = text.masked_fill(~length_mask(text_lengths, text.size(1)), -1)
        terms: list[LossTerm] = []
        stats: dict[str, Stat] = {}
        if self.ctc is not None:
            self._add_ctc_terms(encoded, text, text_lengths, terms, stats)
        if self.decoder is not None:
            self._add_attention_term(encoded, text, text_lengths, terms, stats)
        return _with_total(terms, stats, _count(speech.size(0), encoded.out))

    def encode(self, speech: Tensor, speech_lengths: Tensor, *, augment_seed: Tensor | None = None) -> EncoderOutput:
        """Features and encoder. SpecAugment only while training: from `augment_seed` (batch,), or torch's generator."""
        with full_precision(speech):
            features, lengths = self._extract_features(speech, speech_lengths)
            if self.specaug is not None and self.training:
                features = self.specaug(features, lengths, augment_seed)
            if self.normalize is not None:
                features = self.normalize(features, lengths)
        if features.is_floating_point():
            features = features.to(next(self.encoder.parameters()).dtype)
        if self.preencoder is not None:
            features = self.preencoder(features)
        if getattr(self.encoder, "interctc_use_conditioning", False):
            encoded: EncoderOutput = self.encoder(features, lengths, self.ctc)
        else:
            encoded = self.encoder(features, lengths)
        return encoded

    @property
    def has_ctc(self) -> bool:
        return self.ctc is not None

    @property
    def packs_batches(self) -> bool:
        """Whether padding costs the encoder nothing on a CPU, so that utterances of any length go together."""
        return is_packable(self.encoder)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Encoder frames for so many samples (or feature frames), without running anything."""
        if self.frontend is not None:
            lengths = self.frontend.output_lengths(lengths)  # type: ignore[operator]
        return self.encoder.output_lengths(lengths)  # type: ignore[operator, no-any-return]

    def collect_feats(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        text: Tensor | None = None,
        text_lengths: Tensor | None = None,
        augment_seed: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Features before normalisation, for `--collect_stats`."""
        if not self.extract_feats_in_collect_stats:
            return {"feats": speech, "feats_lengths": speech_lengths}
        features, lengths = self._extract_features(speech, speech_lengths)
        return {"feats": features, "feats_lengths": lengths}

    def set_grad_checkpointing(self, is_on: bool) -> None:
        """Compute inner values of the blocks again in the backward pass, to save memory."""
        for part in (self.encoder, self.decoder):
            if part is not None and hasattr(part, "grad_checkpointing"):
                part.grad_checkpointing = is_on  # type: ignore[assignment]

    @torch.no_grad()
    def attention_weights(
        self, speech: Tensor, speech_lengths: Tensor, text: Tensor, text_lengths: Tensor
    ) -> dict[str, Tensor]:
        """By layer name: the attention of every layer, (batch, [heads,] queries, keys), of a forward in evaluation."""
        keepers = {name: module for name, module in self.named_modules() if hasattr(module, "keep_weights")}
        was_training = self.training
        self.eval()
        try:
            for module in keepers.values():
                module.keep_weights = True  # type: ignore[assignment]
            encoded = self.encode(speech, speech_lengths)
            if self.decoder is not None:
                ys_in, _, ys_lengths = self._add_sos_eos(*self._add_language(text, text_lengths))
                self.decoder(encoded.out, encoded.lengths, ys_in, ys_lengths)
            return {name: module.weights for name, module in keepers.items() if module.weights is not None}  # type: ignore[misc]
        finally:
            for module in keepers.values():
                module.keep_weights = False  # type: ignore[assignment]
                module.weights = None  # type: ignore[assignment]
            self.train(was_training)

    def _extract_features(self, speech: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        if self.frontend is None:
            return speech, lengths
        features, lengths = self.frontend(speech, lengths)
        return features, lengths

    def _add_ctc_terms(
        self, encoded: EncoderOutput, text: Tensor, text_lengths: Tensor, terms: list[LossTerm], stats: dict[str, Stat]
    ) -> None:
        assert self.ctc is not None
        layers = encoded.intermediate if self.interctc_weight > 0 else ()
        inner_weight = self.interctc_weight if layers else 0.0
        outputs = [("ctc", encoded.out, 1.0 - inner_weight)]
        outputs += [(f"interctc_layer{number}", out, inner_weight / len(layers)) for number, out in layers]
        count = _count(text.size(0), encoded.out)
        for name, out, weight in outputs:
            total = self.ctc(out, encoded.lengths, text, text_lengths, blank_id=self.blank_id).sum()
            terms.append(LossTerm(total, count, self.ctc_weight * weight))
            stats[f"loss_{name}"] = Stat(total.detach(), count)
            if (self.report_cer or self.report_wer) and not self.training:
                best = self.ctc.argmax(out)
                cer_name = name.replace("ctc", "cer_ctc") if name == "ctc" else f"cer_{name}"
                stats[cer_name] = self.error_counter.count_ctc(best, encoded.lengths, text, text_lengths)

    def _add_attention_term(
        self, encoded: EncoderOutput, text: Tensor, text_lengths: Tensor, terms: list[LossTerm], stats: dict[str, Stat]
    ) -> None:
        assert self.decoder is not None
        text, text_lengths = self._add_language(text, text_lengths)
        ys_in, ys_out, ys_lengths = self._add_sos_eos(text, text_lengths)
        logits = self.decoder(encoded.out, encoded.lengths, ys_in, ys_lengths)
        mask = length_mask(ys_lengths, ys_in.size(1))
        tokens = mask.sum().float()
        total = smoothed_loss(logits, ys_out, mask, smoothing=self.lsm_weight)
        count = tokens if self.length_normalized_loss else _count(text.size(0), logits)
        terms.append(LossTerm(total, count, 1.0 - self.ctc_weight))
        stats["loss_att"] = Stat(total.detach(), count)
        best = logits.detach().argmax(-1)
        stats["acc"] = Stat(((best == ys_out) & mask).sum().float(), tokens)
        if not self.training and (self.report_cer or self.report_wer):
            rates = self.error_counter.count_attention(best, text, text_lengths)
            reported = {"cer": self.report_cer, "wer": self.report_wer}
            stats.update({name: stat for name, stat in rates.items() if reported[name]})

    def _add_language(self, text: Tensor, text_lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's text begins with the language token, if the model has one."""
        if self.lang_token_id is None:
            return text, text_lengths
        return nn.functional.pad(text, (1, 0), value=self.lang_token_id), text_lengths + 1

    def _add_sos_eos(self, text: Tensor, text_lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Decoder input (sos first), target (eos last), and their lengths. Inputs beyond them are eos, targets -1."""
        inside = length_mask(text_lengths, text.size(1))
        sos = torch.full((text.size(0), 1), self.sos, dtype=text.dtype, device=text.device)
        ys_in = torch.cat([sos, text.masked_fill(~inside, self.eos)], dim=1)
        ys_out = nn.functional.pad(text.masked_fill(~inside, -1), (0, 1), value=-1)
        ys_out = ys_out.scatter(1, text_lengths.unsqueeze(1), self.eos)
        return ys_in, ys_out, text_lengths + 1

    def _empty_loss(self, speech: Tensor, text: Tensor) -> Loss:
        """The whole model on one utterance of length 0, with its results multiplied by 0."""
        speech = speech.new_zeros(1, *(max(size, 64) for size in speech.shape[1:2]), *speech.shape[2:])
        lengths = text.new_zeros(1)
        seed = None if self.specaug is None else lengths
        encoded = self.encode(speech, lengths, augment_seed=seed)
        zero = encoded.out.sum() * 0.0
        for _, out in encoded.intermediate:
            zero = zero + out.sum() * 0.0
        none = _count(0, encoded.out)
        terms: list[LossTerm] = []
        stats: dict[str, Stat] = {}
        if self.ctc is not None:
            total = (zero + self.ctc.ctc_lo(encoded.out).sum() * 0.0).float()
            layers = encoded.intermediate if self.interctc_weight > 0 else ()
            names = ["ctc", *(f"interctc_layer{number}" for number, _ in layers)]
            terms += [LossTerm(total, none, self.ctc_weight) for _ in names]
            stats |= {f"loss_{name}": Stat(none, none) for name in names}
        if self.decoder is not None:
            ys_in = text.new_full((1, 2), self.sos)
            logits = self.decoder(encoded.out, encoded.lengths, ys_in, lengths + 2)
            terms.append(LossTerm((zero + logits.sum() * 0.0).float(), none, 1.0 - self.ctc_weight))
            stats |= {"loss_att": Stat(none, none), "acc": Stat(none, none)}
        return _with_total(terms, stats, none)


def _with_total(terms: list[LossTerm], stats: Mapping[str, Stat], utterances: Tensor) -> Loss:
    """Adds `loss`: the weighted sum of the terms, as a mean over utterances."""
    with torch.no_grad():
        parts = [term.weight * term.total / term.count.clamp(min=1.0) for term in terms]
        total = torch.stack(parts).sum() * utterances
    return Loss(tuple(terms), {"loss": Stat(total, utterances), **stats})


def _count(number: int, like: Tensor) -> Tensor:
    return torch.tensor(float(number), device=like.device)
