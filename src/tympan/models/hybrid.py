"""The hybrid CTC/attention model (Watanabe et al. 2017): from speech and text to a loss, and to an encoding.

Shapes: speech (batch, samples[, channels]) or features (batch, frames, size); text (batch, length).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tympan.config import choices
from tympan.errors import UserError
from tympan.models.attention import Attended, Text, attention_kept, attention_loss, language_prompt
from tympan.models.ctc import Ctc, find_blank
from tympan.models.ctc_terms import ctc_terms
from tympan.models.decoder.linear import LinearDecoder
from tympan.models.encoder.output import EncoderOutput
from tympan.models.encoding import EncodingModel
from tympan.models.error_rates import ErrorCounter
from tympan.models.initialize import initialize
from tympan.models.inputs import build_inputs, with_encoder
from tympan.models.loss import Loss, LossTerm, Stat, count_of, with_total
from tympan.models.parts import (
    Augmenter,
    Decoder,
    Encoder,
    Frontend,
    Normalizer,
    Postencoder,
    Preencoder,
    StepDecoder,
    TakesAudio,
)
from tympan.text.whisper import prompt_tokens

if TYPE_CHECKING:
    from tympan.config.asr import AsrTrainConfig
    from tympan.config.text import TextConfig


def build_hybrid(config: AsrTrainConfig, *, reads_statistics: bool = True) -> nn.Module:
    """Build the model of `config`, with the class of its option `model` and the initialization of `init`."""
    inputs, encoder = with_encoder(config, build_inputs(config, reads_statistics=reads_statistics))
    assert isinstance(config.token_list, list), "the caller reads a file of tokens"
    postencoder: Postencoder | None = None
    if config.postencoder is not None:
        conf = config.postencoder_conf
        postencoder = choices.POSTENCODERS.build(config.postencoder, conf, input_size=encoder.output_size)
    size = encoder.output_size if postencoder is None else postencoder.output_size
    sizes = {"vocab_size": len(config.token_list), "encoder_output_size": size}
    decoder = None
    if config.decoder is not None:
        decoder = choices.DECODERS.build(config.decoder, config.decoder_conf, **sizes)
    model: nn.Module = choices.ASR_MODELS.build(
        config.model,
        config.model_conf,
        token_list=config.token_list,
        frontend=inputs.frontend,
        specaug=inputs.specaug,
        normalize=inputs.normalize,
        preencoder=inputs.preencoder,
        encoder=encoder,
        decoder=decoder,
        ctc=choices.CTCS.build("ctc", config.ctc_conf, **sizes),
        # Only where they are used, so that a user's class need not take them
        **_prompt(config.text, config.token_list),
        **({} if postencoder is None else {"postencoder": postencoder}),
    )
    initialize(model, config.init)
    return model


def _prompt(text: TextConfig, token_list: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The parameter `prompt` of a model with a prompt."""
    prompt = prompt_tokens(text.token_type, text.whisper_language, text.whisper_task)
    missing = [token for token in prompt if token not in token_list]
    if missing:
        raise UserError(
            f"the token list does not contain '{missing[0]}', which the text of Whisper's decoder begins with; check "
            "preprocessor_conf whisper_language, and use the token list of the Whisper model"
        )
    return {"prompt": tuple(map(list(token_list).index, prompt))} if prompt else {}


class HybridModel(EncodingModel):
    """`model: espnet`. Frontend, SpecAugment, normalization, (preencoder,) encoder, then CTC and decoder.

    `aux_ctc` maps layers of intermediate CTC to data names: these layers learn that text instead of `text`.
    `autocast_frontend` is accepted but has no effect: features are always computed in float32.
    """

    searches: tuple[str, ...] = ("joint", "ctc_greedy", "ctc_prefix", "rescore", "time_sync", "lexicon", "hugging_face")

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
        ctc: Ctc | None,
        aux_ctc: dict[str, str] | None = None,
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
        prompt: Sequence[int] = (),
        postencoder: Postencoder | None = None,
    ) -> None:
        super().__init__()
        if transducer_multi_blank_durations:
            raise UserError("model_conf transducer_multi_blank_durations needs decoder: transducer; remove it")
        self.token_list = tuple(token_list)
        self.vocab_size = len(token_list)
        self.blank_id = find_blank(self.token_list, sym_blank)
        self.sos = self.token_list.index(sym_sos) if sym_sos in token_list else self.vocab_size - 1
        self.eos = self.token_list.index(sym_eos) if sym_eos in token_list else self.vocab_size - 1
        self.ignore_id = ignore_id
        self.ctc_weight = ctc_weight
        self.interctc_weight = interctc_weight
        self.aux_ctc = {int(layer): name for layer, name in (aux_ctc or {}).items()}
        self.lsm_weight = lsm_weight
        self.length_normalized_loss = length_normalized_loss
        self.report_cer = report_cer
        self.report_wer = report_wer
        self.extract_feats_in_collect_stats = extract_feats_in_collect_stats
        self.prompt = (*language_prompt(lang_token_id, self.vocab_size), *prompt)
        self.frontend = frontend
        self.specaug = specaug
        self.normalize = normalize
        self.preencoder = preencoder
        self.encoder = encoder
        self.postencoder = postencoder
        self.condition_encoder(self.vocab_size)
        self.decoder = decoder if ctc_weight < 1.0 else None
        self.ctc = ctc if ctc_weight > 0.0 else None
        self._check_weights()
        self.error_counter = ErrorCounter(self.token_list, sym_space, sym_blank)

    def _check_weights(self) -> None:
        if not 0.0 <= self.ctc_weight <= 1.0:
            raise UserError(f"model_conf ctc_weight must be between 0 and 1, but it is {self.ctc_weight}")
        if not 0.0 <= self.interctc_weight < 1.0:
            raise UserError(
                f"model_conf interctc_weight must be at least 0 and below 1, but it is {self.interctc_weight}"
            )
        if self.decoder is None and self.ctc_weight < 1.0:
            raise UserError(
                f"ctc_weight is {self.ctc_weight}, so a decoder is needed: choose one with --decoder, or set "
                f"model_conf ctc_weight=1.0"
            )
        if self.ctc is not None and isinstance(self.decoder, LinearDecoder):
            raise UserError(
                f"decoder: linear_decoder needs model_conf ctc_weight=0.0, because CTC has no use for a single class; "
                f"found {self.ctc_weight}"
            )
        self.require_ctc(self.interctc_weight)

    def forward(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        augment_seed: Tensor | None = None,
        **others: Tensor,
    ) -> Loss:
        """The loss of a batch of at least one utterance. Text may have any value beyond its lengths.

        `others` contains the texts of auxiliary CTC tasks, NAME and NAME_lengths.
        """
        encoded = self.encode(speech, speech_lengths, augment_seed=augment_seed)
        inner_texts = {layer: Text.cut(others[name], others[f"{name}_lengths"]) for layer, name in self.aux_ctc.items()}
        return self._loss(encoded, Text.cut(text, text_lengths), inner_texts=inner_texts, seeds=augment_seed)

    def _loss(
        self,
        encoded: EncoderOutput,
        given: Text,
        *,
        inner_texts: Mapping[int, Text] | None = None,
        seeds: Tensor | None = None,
    ) -> Loss:
        """The loss of encoded utterances with the text of each."""
        terms: list[LossTerm] = []
        stats: dict[str, Stat] = {}
        if self.ctc is not None:
            is_counted = (self.report_cer or self.report_wer) and not self.training
            terms, stats = ctc_terms(
                self.ctc,
                encoded,
                given,
                weight=self.ctc_weight,
                inner_weight=self.interctc_weight,
                inner_texts=inner_texts,
                blank_id=self.blank_id,
                counter=self.error_counter if is_counted else None,
            )
        if self.decoder is not None:
            self._add_attention_term(encoded, given, terms, stats, seeds)
        return with_total(terms, stats, count_of(given.ids.size(0), encoded.out))

    def encode(self, speech: Tensor, speech_lengths: Tensor, *, augment_seed: Tensor | None = None) -> EncoderOutput:
        """Features, encoder and postencoder."""
        encoded = super().encode(speech, speech_lengths, augment_seed=augment_seed)
        if self.postencoder is None:
            return encoded
        out, lengths = self.postencoder(encoded.out, encoded.lengths)
        return EncoderOutput(out, lengths, encoded.intermediate)

    @property
    def step_decoder(self) -> StepDecoder | None:
        return self.decoder

    @property
    def max_samples(self) -> int | None:
        """Longer audio is cut; None: no limit."""
        return self.encoder.max_samples if isinstance(self.encoder, TakesAudio) else None

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Number of frames after the postencoder, without running the model."""
        lengths = super().output_lengths(lengths)
        return lengths if self.postencoder is None else self.postencoder.output_lengths(lengths)

    @torch.no_grad()
    def attention_weights(
        self, speech: Tensor, speech_lengths: Tensor, text: Tensor, text_lengths: Tensor
    ) -> dict[str, Tensor]:
        """Attention weights by layer name, (batch, [heads,] queries, keys), of a forward pass in evaluation mode."""
        with attention_kept(self) as weights:
            encoded = self.encode(speech, speech_lengths)
            if self.decoder is not None:
                self._attend(encoded, Text.cut(text, text_lengths).after(self.prompt))
            return weights()

    def _add_attention_term(
        self, encoded: EncoderOutput, text: Text, terms: list[LossTerm], stats: dict[str, Stat], seeds: Tensor | None
    ) -> None:
        """`seeds` (batch,) are for models whose decoder's loss is random."""
        # The decoder's text begins with the tokens of language and task, if the model has them; CTC's does not
        text = text.after(self.prompt)
        found = self._attend(encoded, text)
        terms.append(LossTerm(found.total, found.count, 1.0 - self.ctc_weight))
        stats["loss_att"] = Stat(found.total.detach(), found.count)
        stats["acc"] = found.accuracy
        if not self.training and (self.report_cer or self.report_wer):
            rates = self.error_counter.count_attention(found.best, text.ids, text.lengths)
            reported = {"cer": self.report_cer, "wer": self.report_wer}
            stats.update({name: stat for name, stat in rates.items() if reported[name]})

    def _attend(self, encoded: EncoderOutput, text: Text) -> Attended:
        assert self.decoder is not None
        if isinstance(self.decoder, LinearDecoder):
            return self.decoder.attend(encoded, text, eos=self.eos, smoothing=self.lsm_weight)
        return attention_loss(
            self.decoder,
            encoded,
            text,
            sos=self.sos,
            eos=self.eos,
            smoothing=self.lsm_weight,
            is_length_normalized=self.length_normalized_loss,
        )
