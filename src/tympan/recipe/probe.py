"""Measure how fast this machine trains, decodes and computes features, in a few seconds on random data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.errors import UserError
from tympan.recipe.recipe import Recipe
from tympan.recipe.timing import NOTHING, Timing, time_repeatedly

if TYPE_CHECKING:
    import torch

    from tympan.decode.options import DecodeOptions
    from tympan.decode.search import Search
    from tympan.models.lm.model import LanguageModel
    from tympan.models.speech_model import SpeechModel

SAMPLE_S = 5.0
"""Length of the utterances used for training and decoding."""
LM_SENTENCE = 15
LM_SENTENCES = 32
WORDS = 1000


@dataclass(frozen=True)
class Probe:
    """The measurements, per second of speech unless stated otherwise."""

    parameters: int
    training: Timing
    saved_bytes: float
    """Memory kept for the backward pass."""
    decoding: Timing
    """Time on one CPU core."""
    features_s: float
    lm_parameters: int = 0
    lm_token_s: float = 0.0
    """Time to train the LM on one token."""


def measure(
    recipe: Recipe,
    *,
    asr: AsrTrainConfig,
    lm: LmTrainConfig | None,
    search: DecodeOptions,
    tokens: Sequence[str],
    stages: range,
) -> Probe:
    """Train and decode models with these configurations on noise. `tokens` is the token list.

    Only what the `stages` do is measured; the other values are 0.
    """
    features_s = recipe.features.extraction_s() if 1 in stages else 0.0
    if not {3, 4, 5} & set(stages):
        return Probe(parameters=0, training=NOTHING, saved_bytes=0.0, decoding=NOTHING, features_s=features_s)

    import torch

    from tympan.models.build import build_asr_model, build_lm
    from tympan.runtime.device import choose_kind, device_of

    trains = bool({3, 4} & set(stages))
    kind = choose_kind(ngpu=recipe.options.ngpu, device=recipe.options.device) if trains else "cpu"
    device = device_of(kind, local_rank=0)
    model = build_asr_model(replace(asr, token_list=list(tokens)), reads_statistics=False).to(device)
    language_model = None if lm is None else build_lm(replace(lm, token_list=list(tokens))).to(device)
    batch = noise_batch(recipe, tokens, device)
    text_length = batch["text"].size(1)
    training, saved_bytes = NOTHING, 0
    if 4 in stages:
        training, saved_bytes = _time_updates(model, batch, device, use_amp=asr.use_amp)
    parameters = _parameters(model)
    text = torch.randint(2, len(tokens) - 1, (LM_SENTENCES, LM_SENTENCE), device=device)
    sentences = {"text": text, "text_lengths": torch.full((LM_SENTENCES,), LM_SENTENCE, device=device)}
    lm_timing = NOTHING
    if lm is not None and language_model is not None and 3 in stages:
        lm_timing = _time_updates(language_model, sentences, device, use_amp=lm.use_amp)[0]
    # Limit the number of tokens to that of real speech: an untrained model does not predict the end.
    search = replace(search, maxlenratio=-text_length, minlenratio=0.0)
    decoding = _time_decoding(model.cpu(), language_model, search, tokens, batch) if 5 in stages else NOTHING
    spoken_s = len(batch["speech"]) * SAMPLE_S
    return Probe(
        parameters=parameters,
        training=training.per(spoken_s),
        saved_bytes=max(0, saved_bytes - 4 * parameters) / spoken_s,
        decoding=decoding.per(spoken_s),
        features_s=features_s,
        lm_parameters=0 if language_model is None else _parameters(language_model),
        lm_token_s=lm_timing.seconds / (LM_SENTENCES * LM_SENTENCE),
    )


def noise_batch(recipe: Recipe, tokens: Sequence[str], device: torch.device) -> dict[str, torch.Tensor]:
    """Noise as the recipe's features, with random text of a usual length."""
    import torch

    speech = recipe.features.noise(SAMPLE_S, device)
    text_length = int(SAMPLE_S * recipe.corpus.tokens_per_second)
    return {
        "speech": speech,
        "speech_lengths": torch.full((len(speech),), speech.shape[1], device=device),
        "text": torch.randint(2, len(tokens) - 1, (len(speech), text_length), device=device),
        "text_lengths": torch.full((len(speech),), text_length, device=device),
    }


def _time_updates(
    model: torch.nn.Module, batch: Mapping[str, torch.Tensor], device: torch.device, *, use_amp: bool
) -> tuple[Timing, int]:
    """Time of an update, and the bytes kept between its forward and backward pass."""
    import torch

    from tympan.runtime.device import synchronize

    kept: dict[int, int] = {}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def update() -> None:
        kept.clear()
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast(device.type, dtype=torch.bfloat16, enabled=use_amp),
        ):
            loss = sum(term.total / term.count.clamp(min=1) for term in model(**batch).terms)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        synchronize(device)

    update()  # the first one allocates memory
    return time_repeatedly(update, on_cpu=device.type == "cpu"), sum(kept.values())


def _time_decoding(
    model: torch.nn.Module,
    lm: LanguageModel | None,
    options: DecodeOptions,
    tokens: Sequence[str],
    batch: Mapping[str, torch.Tensor],
) -> Timing:
    """Time that the encoder and the search take on the CPU for the batch."""
    import torch

    from tympan.decode.search import Encoded, run_search
    from tympan.models.abilities import ExpectsTokens
    from tympan.models.speech_model import SpeechModel

    if not isinstance(model, SpeechModel):
        raise UserError("decoding is not supported for the model class of the training configuration")
    model.eval()
    search = _search(model, None if lm is None else lm.cpu().eval(), options, tokens)
    speech, lengths = batch["speech"].cpu(), batch["speech_lengths"].cpu()
    if isinstance(model, ExpectsTokens):
        with torch.inference_mode():
            encoded = model.encode(speech, lengths)
        model.expect_tokens(encoded.out, encoded.lengths, tokens=batch["text"].size(1))

    def decode() -> None:
        with torch.inference_mode():
            encoded = model.encode(speech, lengths)
            log_probs = model.ctc_log_posteriors(encoded.out) if model.has_ctc else None
            run_search(search, Encoded(memory=encoded.out, lengths=encoded.lengths, log_probs=log_probs))

    return time_repeatedly(decode, on_cpu=True, max_threads=1)


def _search(model: SpeechModel, lm: LanguageModel | None, options: DecodeOptions, tokens: Sequence[str]) -> Search[Any]:
    """The search of these options; for a lexicon search, over made-up words of three phones."""
    import torch

    from tympan.config.text import TextConfig
    from tympan.decode.lexicon_search import load_lexicon_search
    from tympan.decode.load import LoadedModel
    from tympan.decode.search import find_search
    from tympan.decode.speech_input import SpeechInput
    from tympan.text.codec import build_codec
    from tympan.text.lexicon import Lexicon

    codec = build_codec(TextConfig(token_list=list(tokens), token_type="word"))
    cpu = torch.device("cpu")
    kind = find_search(options.search or model.searches[0])
    if "lexicon" in kind.needs:
        phones = tokens[2:-1]
        said = (tuple(phones[number * step % len(phones)] for step in (1, 3, 7)) for number in range(WORDS))
        lexicon = Lexicon({f"word{number}": (phones,) for number, phones in enumerate(said)}, "made up")
        return load_lexicon_search(lexicon, codec.vocabulary, None, options, cpu)
    speech_input = SpeechInput(rate=16000, frame_shift_s=0.04)
    loaded = LoadedModel(model=model, codec=codec, input=speech_input, device=cpu, dtype=torch.float32, lm=lm)
    return kind.build(loaded, options)


def _parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
