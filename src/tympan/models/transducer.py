"""The transducer (Graves 2012): from speech and text to a loss, and to an encoding.

Encoder and prediction network meet in the joint network; the loss sums over all alignments
(`tympan.models.transducer_loss`). CTC and an attention decoder can be auxiliary losses.

Shapes: speech (batch, samples[, channels]) or features (batch, frames, size); text (batch, length).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from torch import Tensor, nn

from tympan.config import choices
from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.abilities import TextAlignment
from tympan.models.attention import Text, attention_kept, attention_loss
from tympan.models.ctc import Ctc, find_blank
from tympan.models.ctc_terms import ctc_terms
from tympan.models.decoder.prediction import PredictionNetwork
from tympan.models.encoder.output import EncoderOutput
from tympan.models.encoding import EncodingModel
from tympan.models.error_rates import ErrorCounter
from tympan.models.initialize import initialize
from tympan.models.inputs import build_inputs, with_encoder
from tympan.models.joint_network import JointNetwork
from tympan.models.loss import Loss, LossTerm, Stat, count_of, with_total
from tympan.models.parts import (
    Augmenter,
    Decoder,
    Encoder,
    Frontend,
    Normalizer,
    Preencoder,
)
from tympan.models.transducer_greedy import TransducerParts, greedy_accept, greedy_start
from tympan.models.transducer_lattice import Lattice
from tympan.models.transducer_loss import transducer_loss, transducer_scores
from tympan.models.transducer_pruned import SimpleJoint, likely_band, simple_loss
from tympan.nn.masks import length_mask

if TYPE_CHECKING:
    from tympan.config.asr import AsrTrainConfig

MAX_SYMBOLS = 30
"""Maximum number of tokens per frame in the greedy search of validation."""


def build_transducer(config: AsrTrainConfig, *, reads_statistics: bool = True) -> nn.Module:
    """Build the model of a configuration whose decoder is a prediction network."""
    if config.postencoder is not None:
        raise UserError(f"postencoder {config.postencoder} is for models with an attention decoder or CTC; use null")
    inputs, encoder = with_encoder(config, build_inputs(config, reads_statistics=reads_statistics))
    assert isinstance(config.token_list, list), "the caller reads a file of tokens"
    assert config.decoder is not None, "the family is chosen by its decoder"
    vocab_size = len(config.token_list)
    decoder: PredictionNetwork = choices.DECODERS.build(config.decoder, config.decoder_conf, vocab_size=vocab_size)
    model: nn.Module = choices.ASR_MODELS.build(
        # ESPnet2 calls all its models 'espnet'
        "transducer" if config.model == "espnet" else config.model,
        config.model_conf,
        token_list=config.token_list,
        frontend=inputs.frontend,
        specaug=inputs.specaug,
        normalize=inputs.normalize,
        preencoder=inputs.preencoder,
        encoder=encoder,
        decoder=decoder,
        joint_network=choices.JOINT_NETWORKS.build(
            "joint",
            config.joint_net_conf,
            vocab_size=vocab_size,
            encoder_size=encoder.output_size,
            decoder_size=decoder.output_size,
        ),
        ctc=choices.CTCS.build("ctc", config.ctc_conf, vocab_size=vocab_size, encoder_output_size=encoder.output_size),
    )
    initialize(model, config.init)
    return model


class TransducerModel(EncodingModel):
    """`model: espnet` or `transducer` with `decoder: transducer` or `stateless`.

    The keys of ESPnet2 that belong to the attention decoder (`lsm_weight`, `length_normalized_loss`) have an effect
    with `attention_weight` above 0 only; `lang_token_id` has none. `cer_transducer` and `wer_transducer` are those of a
    greedy search.
    """

    searches: tuple[str, ...] = (
        "transducer_greedy",
        "transducer_default",
        "transducer_tsd",
        "transducer_alsd",
        "transducer_nsc",
        "transducer_maes",
        "ctc_greedy",
        "ctc_prefix",
    )

    def __init__(
        self,
        *,
        token_list: Sequence[str],
        frontend: Frontend | None,
        specaug: Augmenter | None,
        normalize: Normalizer | None,
        preencoder: Preencoder | None,
        encoder: Encoder,
        decoder: PredictionNetwork,
        joint_network: JointNetwork,
        ctc: Ctc | None,
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
        fastemit_lambda: Annotated[float, Range(0, 1)] = 0.0,
        rnnt_type: Literal["full", "pruned"] = "full",
        prune_range: Annotated[int, Range(2, 1_000)] = 5,
        simple_loss_weight: Annotated[float, Range(0, 1)] = 0.5,
        tdt_sigma: Annotated[float, Range(0, 1)] = 0.02,
        attention_weight: Annotated[float, Range(0, 1)] = 0.0,
        attention_decoder: str = "transformer",
        attention_decoder_conf: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if aux_ctc:
            raise UserError("model_conf aux_ctc is not supported; remove it")
        self.token_list = tuple(token_list)
        self.vocab_size = len(token_list)
        self.blank_id = find_blank(self.token_list, sym_blank)
        self.sos = self.token_list.index(sym_sos) if sym_sos in token_list else self.vocab_size - 1
        self.eos = self.token_list.index(sym_eos) if sym_eos in token_list else self.vocab_size - 1
        self.big_blanks = self._find_big_blanks(transducer_multi_blank_durations)
        self.sigma = transducer_multi_blank_sigma if self.big_blanks else tdt_sigma if joint_network.durations else 0.0
        self.fastemit_lambda = fastemit_lambda
        self.prune_range = prune_range
        self.simple_loss_weight = simple_loss_weight
        self.attention_weight = attention_weight
        self.lsm_weight = lsm_weight
        self.length_normalized_loss = length_normalized_loss
        self.ctc_weight = ctc_weight
        self.interctc_weight = interctc_weight
        self.report_cer = report_cer
        self.report_wer = report_wer
        self.extract_feats_in_collect_stats = extract_feats_in_collect_stats
        self.frontend = frontend
        self.specaug = specaug
        self.normalize = normalize
        self.preencoder = preencoder
        self.encoder = encoder
        self.condition_encoder(self.vocab_size)
        self.decoder = decoder
        self.joint_network = joint_network
        if joint_network.durations and self.big_blanks:
            raise UserError(
                "joint_net_conf tdt_durations and model_conf transducer_multi_blank_durations can't be used "
                "together; remove one of them"
            )
        if rnnt_type == "pruned" and (joint_network.durations or self.big_blanks):
            raise UserError(
                "model_conf rnnt_type pruned can't be used with tdt_durations or transducer_multi_blank_durations; "
                "use rnnt_type full"
            )
        sizes = {"encoder_size": encoder.output_size, "decoder_size": decoder.output_size}
        self.simple_joint = SimpleJoint(vocab_size=self.vocab_size, **sizes) if rnnt_type == "pruned" else None
        self.att_decoder: Decoder | None = None
        if attention_weight > 0:
            decoders = choices.DECODERS.for_option("attention_decoder")
            self.att_decoder = decoders.build(
                decoders.registered(attention_decoder),
                attention_decoder_conf,
                vocab_size=self.vocab_size,
                encoder_output_size=encoder.output_size,
            )
        self.ctc = ctc if ctc_weight > 0.0 else None
        self.require_ctc(interctc_weight)
        self.error_counter = ErrorCounter(self.token_list, sym_space, sym_blank)

    def _find_big_blanks(self, durations: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """(token id, duration) of each big blank."""
        missing = [f"<blank{duration}>" for duration in durations if f"<blank{duration}>" not in self.token_list]
        if missing or 1 in durations:
            raise UserError(
                f"model_conf transducer_multi_blank_durations is {list(durations)}, but "
                + (
                    f"the token list does not contain {', '.join(missing)}"
                    if missing
                    else "duration 1 is that of the standard blank; remove it"
                )
            )
        return tuple((self.token_list.index(f"<blank{duration}>"), duration) for duration in durations)

    def forward(
        self,
        speech: Tensor,
        speech_lengths: Tensor,
        text: Tensor,
        text_lengths: Tensor,
        augment_seed: Tensor | None = None,
    ) -> Loss:
        """The loss of a batch of at least one utterance. Text may have any value beyond its lengths."""
        encoded = self.encode(speech, speech_lengths, augment_seed=augment_seed)
        given = Text.cut(text, text_lengths)
        is_counted = (self.report_cer or self.report_wer) and not self.training
        count = count_of(speech.size(0), encoded.out)
        terms, stats = self._transducer_terms(encoded, given, count)
        if self.ctc is not None:
            more_terms, more_stats = ctc_terms(
                self.ctc,
                encoded,
                given,
                weight=self.ctc_weight,
                inner_weight=self.interctc_weight,
                blank_id=self.blank_id,
                counter=self.error_counter if is_counted else None,
            )
            terms += more_terms
            stats |= more_stats
        if self.att_decoder is not None:
            found = attention_loss(
                self.att_decoder,
                encoded,
                given,
                sos=self.sos,
                eos=self.eos,
                smoothing=self.lsm_weight,
                is_length_normalized=self.length_normalized_loss,
            )
            terms.append(LossTerm(found.total, found.count, self.attention_weight))
            stats |= {"loss_att": Stat(found.total.detach(), found.count), "acc": found.accuracy}
        if is_counted:
            stats |= self._error_rates(encoded, given)
        return with_total(terms, stats, count)

    def _transducer_terms(
        self, encoded: EncoderOutput, text: Text, count: Tensor
    ) -> tuple[list[LossTerm], dict[str, Stat]]:
        before = nn.functional.pad(text.ids, (1, 0), value=self.blank_id)
        predictions = self.decoder(before.masked_fill(before < 0, self.blank_id))
        terms, lattice = [], Lattice.of(encoded.lengths, text.lengths)
        stats: dict[str, Stat] = {}
        if self.simple_joint is not None:
            scores = self.simple_joint(encoded.out, predictions, text.ids, lattice=lattice, blank_id=self.blank_id)
            simple = simple_loss(scores, lattice, fastemit_lambda=self.fastemit_lambda).sum()
            terms.append(LossTerm(simple, count, self.simple_loss_weight))
            stats["loss_simple"] = Stat(simple.detach(), count)
            lattice = likely_band(scores, lattice, prune_range=self.prune_range)
        total = transducer_loss(
            self.joint_network,
            self.joint_network.project_frames(encoded.out),
            self.joint_network.project_predictions(predictions),
            encoded.lengths,
            text.ids,
            text.lengths,
            blank_id=self.blank_id,
            big_blanks=self.big_blanks,
            durations=self.joint_network.durations,
            sigma=self.sigma,
            fastemit_lambda=self.fastemit_lambda,
            lattice=lattice,
        ).sum()
        return [LossTerm(total, count), *terms], {"loss_transducer": Stat(total.detach(), count), **stats}

    @torch.no_grad()
    def _error_rates(self, encoded: EncoderOutput, text: Text) -> dict[str, Stat]:
        parts, frames = self.transducer_parts, self.joint_network.project_frames(encoded.out)
        state = greedy_start(parts, frames)
        found = greedy_accept(parts, state, frames, encoded.lengths, max_symbols=MAX_SYMBOLS).texts
        rates = self.error_counter.count_texts(found, text.ids, text.lengths)
        reported = {"cer": self.report_cer, "wer": self.report_wer}
        return {f"{name}_transducer": stat for name, stat in rates.items() if reported[name]}

    def frames_needed(self, tokens: Tensor, repeats: Tensor) -> dict[str, Tensor]:
        """Least encoder frames (batch,) of each loss: here one for the last blank, and those that the tokens take."""
        shortest = min(self.joint_network.durations, default=0)
        return {"the transducer": tokens * shortest + 1, **super().frames_needed(tokens, repeats)}

    @property
    def transducer_parts(self) -> TransducerParts:
        """The parts that a search uses."""
        return TransducerParts(
            self.decoder, self.joint_network, self.blank_id, {self.blank_id: 1, **dict(self.big_blanks)}
        )

    @torch.no_grad()
    def expect_tokens(self, out: Tensor, lengths: Tensor, *, tokens: int) -> None:
        """Set the blank's bias so that the greedy search emits about so many tokens for each encoder output.

        The prediction no longer has an influence, so that a frame emits either nothing or `MAX_SYMBOLS` tokens.
        """
        parts, joint = self.transducer_parts, self.joint_network
        joint.lin_dec.weight.zero_()
        frames = joint.project_frames(out)[length_mask(lengths, out.size(1))]
        log_probs = parts.log_probs(frames, joint.project_predictions(out.new_zeros(joint.lin_dec.in_features)))
        others = log_probs.index_fill(1, torch.tensor(list(parts.durations), device=out.device), float("-inf"))
        margin = others.amax(1) - log_probs[:, self.blank_id]
        emitting = max(1, round(tokens * len(out) / MAX_SYMBOLS))
        # Between the last frame that emits and the next one
        joint.lin_out.bias[self.blank_id] += margin.topk(min(emitting + 1, len(margin))).values[-2:].mean()

    @torch.inference_mode()
    def align_text(self, out: Tensor, text: Sequence[int]) -> TextAlignment | None:
        """The best path through the lattice of encoder output (frames, size) and token ids."""
        from tympan.models.transducer_recursion import best_paths  # imports numba

        ids = torch.tensor([text], dtype=torch.long, device=out.device)
        lattice = Lattice.of(torch.tensor([len(out)], device=out.device), torch.tensor([len(text)], device=out.device))
        before = nn.functional.pad(ids, (1, 0), value=self.blank_id)
        joint, durations = self.joint_network, self.joint_network.durations
        scores, arcs = transducer_scores(
            joint,
            joint.project_frames(out.unsqueeze(0)),
            joint.project_predictions(self.decoder(before)),
            lattice,
            ids,
            blanks=[(self.blank_id, 1), *self.big_blanks],
            durations=durations,
        )
        total, taken = best_paths(scores, lattice, arcs)
        if not bool(total.isfinite()):
            return None
        emits = taken >= len(arcs.blanks)
        arc = taken[emits]
        start = lattice.frame.cpu()[emits]
        end = start + torch.tensor(arcs.tokens)[arc - len(arcs.blanks)].clamp(min=1)
        probability = scores.cpu()[emits].gather(1, arc.unsqueeze(1)).squeeze(1).exp().clamp(max=1.0)
        spans = zip(start.tolist(), end.tolist(), probability.tolist(), strict=True)
        return TextAlignment(tuple(spans), float(total))

    @torch.no_grad()
    def attention_weights(
        self, speech: Tensor, speech_lengths: Tensor, text: Tensor, text_lengths: Tensor
    ) -> dict[str, Tensor]:
        """Attention weights of the encoder by layer name, (batch, heads, queries, keys)."""
        with attention_kept(self) as weights:
            self.encode(speech, speech_lengths)
            return weights()
