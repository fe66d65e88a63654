"""Search hugging_face: the decoder of a text-to-text model, run by `generate` of the package transformers.

Differs from ESPnet2 on purpose: the longest text is not limited to 20 tokens if the model's config.json has no limit.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from tympan.decode.hugging_face_kind import HUGGING_FACE, GenerateOptions
from tympan.decode.load import LoadedModel
from tympan.decode.options import DecodeOptions
from tympan.decode.search import Ended
from tympan.decode.whole import Collected, WholeUtteranceSearch
from tympan.errors import UserError
from tympan.models.pretrained.folder import require_transformers
from tympan.models.pretrained.seq2seq import HuggingFaceDecoder
from tympan.models.speech_model import HasDecoder
from tympan.nn.masks import length_mask

MAX_TOKENS = 512
"""The limit for models without positions, such as T5."""


class HuggingFaceSearch(WholeUtteranceSearch):
    """Needs the whole encoding of an utterance."""

    def __init__(self, decoder: HuggingFaceDecoder, options: GenerateOptions) -> None:
        self.decoder = decoder
        self.generator = decoder.generator()
        self.arguments = generate_arguments(options, decoder.architecture)

    @torch.inference_mode()
    def finish(self, state: Collected) -> list[list[Ended]]:
        encoded = state.joined()
        memory = self.decoder.linear_in(encoded.memory)
        found = self.generator.generate(
            encoder_outputs=require_transformers().modeling_outputs.BaseModelOutput(last_hidden_state=memory),
            attention_mask=length_mask(encoded.lengths.to(memory.device), memory.size(1)).long(),
            decoder_start_token_id=self.generator.config.decoder_start_token_id,
            return_dict_in_generate=True,
            output_scores=True,
            **self.arguments,
        )
        eos = self.generator.config.eos_token_id
        rows = zip(found.sequences.tolist(), self._scores(found), strict=True)
        return [[_ended(ids, score, eos)] for ids, score in rows]

    def _scores(self, found: Any) -> list[float]:
        """The log probability of each text: in a beam search divided by its length, as transformers ranks them."""
        if self.arguments["num_beams"] > 1:
            scores: list[float] = found.sequences_scores.tolist()
            return scores
        each = self.generator.compute_transition_scores(found.sequences, found.scores, normalize_logits=True)
        total: list[float] = each.masked_fill(each.isinf(), 0.0).sum(1).tolist()
        return total


def generate_arguments(options: GenerateOptions, architecture: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `generate`: those of the user, else those of config.json."""
    given = {name: value for name, value in asdict(options).items() if value is not None}
    if "max_length" not in given and "max_new_tokens" not in given:
        positions = architecture.get("max_position_embeddings") or MAX_TOKENS
        given["max_length"] = architecture.get("max_length") or positions
    return {"num_beams": architecture.get("num_beams") or 1, "do_sample": False, **given}


def _ended(ids: list[int], score: float, eos: int) -> Ended:
    """Without the first token, and what follows the end."""
    tokens = ids[1:]
    tokens = tokens[: tokens.index(eos)] if eos in tokens else tokens
    return Ended(tuple(tokens), score, {"decoder": score})


def build_hugging_face(loaded: LoadedModel, options: DecodeOptions) -> HuggingFaceSearch:
    decoder = loaded.model.step_decoder if isinstance(loaded.model, HasDecoder) else None
    if not isinstance(decoder, HuggingFaceDecoder):
        raise UserError("search hugging_face needs a model that was trained with decoder: hugging_face_transformers")
    return HuggingFaceSearch(decoder, HUGGING_FACE.own_options(options.search_conf))
