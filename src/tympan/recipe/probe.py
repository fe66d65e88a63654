"""A few seconds of the real work on made-up data: how fast this machine trains, decodes and makes features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tympan.recipe.feature_steps import feature_options, feature_size
from tympan.recipe.options import RecipeOptions

FRAMES_A_SECOND = 100
TOKENS_A_SECOND = 3.2  # AISHELL: 14.4 characters in 4.5 s
SAMPLE_S = 5.0
"""Length of the utterances that are trained on and decoded."""
LM_SENTENCE = 15
LM_SENTENCES = 32
WORDS = 1000
PASSES = 3
"""The first warms up, and a busy machine disturbs some."""


@dataclass(frozen=True)
class Probe:
    """What was measured, for a second of speech unless it says otherwise."""

    parameters: int
    training_s: float
    saved_bytes: float
    """Kept for the backward pass."""
    decoding_s: float
    """On one CPU core."""
    features_s: float
    lm_parameters: int = 0
    lm_token_s: float = 0.0
    """To learn one token."""


def measure(
    options: RecipeOptions, *, asr: Any, lm: Any | None, search: dict[str, Any], tokens: Sequence[str]
) -> Probe:
    """`asr` and `lm` are training configurations, `search` the options of asr_inference."""
    import torch

    from tympan.models.build import build_asr_model, build_lm
    from tympan.runtime.device import choose_kind, device_of

    device = device_of(choose_kind(ngpu=options.ngpu, device=options.device), local_rank=0)
    model = build_asr_model(replace(asr, token_list=list(tokens)), reads_statistics=False).to(device)
    language_model = None if lm is None else build_lm(replace(lm, token_list=list(tokens))).to(device)
    batch = _speech_batch(options, len(tokens), device)
    training_s, saved_bytes = _time_updates(model, batch, device)
    parameters = _parameters(model)
    text = torch.randint(2, len(tokens) - 1, (LM_SENTENCES, LM_SENTENCE), device=device)
    sentences = {"text": text, "text_lengths": torch.full((LM_SENTENCES,), LM_SENTENCE, device=device)}
    lm_s = 0.0 if language_model is None else _time_updates(language_model, sentences, device)[0]
    return Probe(
        parameters=parameters,
        training_s=training_s / (2 * SAMPLE_S),
        saved_bytes=max(0, saved_bytes - 4 * parameters) / (2 * SAMPLE_S),
        decoding_s=_time_decoding(model.cpu(), language_model, search, tokens, batch),
        features_s=_time_features(options),
        lm_parameters=0 if language_model is None else _parameters(language_model),
        lm_token_s=lm_s / (LM_SENTENCES * LM_SENTENCE),
    )


def _speech_batch(options: RecipeOptions, vocab_size: int, device: Any) -> dict[str, Any]:
    import torch

    if options.feats_type == "raw":
        speech = torch.randn(2, int(SAMPLE_S * 16_000), device=device)
    else:
        speech = torch.randn(2, int(SAMPLE_S * FRAMES_A_SECOND), feature_size(options), device=device)
    text = torch.randint(2, vocab_size - 1, (2, int(SAMPLE_S * TOKENS_A_SECOND)), device=device)
    return {
        "speech": speech,
        "speech_lengths": torch.full((2,), speech.shape[1], device=device),
        "text": text,
        "text_lengths": torch.full((2,), text.shape[1], device=device),
    }


def _time_updates(model: Any, batch: dict[str, Any], device: Any) -> tuple[float, int]:
    """Seconds of a forward and backward pass, the best of some, and the bytes that it keeps between them."""
    import torch

    from tympan.runtime.device import synchronize

    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    times = []
    for _ in range(PASSES):
        kept.clear()
        began = time.monotonic()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = sum(term.total / term.count.clamp(min=1) for term in model(**batch).terms)
        loss.backward()
        synchronize(device)
        times.append(time.monotonic() - began)
    return min(times), sum(kept.values())


def _time_decoding(
    model: Any, lm: Any | None, search: dict[str, Any], tokens: Sequence[str], batch: dict[str, Any]
) -> float:
    """The real search on the CPU, ended after as many tokens as so much speech has: an untrained model never ends."""
    import dataclasses

    import torch

    from tympan.decode.scorer import Encoded
    from tympan.decode.searcher import Searcher
    from tympan.decode.settings import DecodeSettings

    known = {item.name for item in dataclasses.fields(DecodeSettings)}
    settings = DecodeSettings(**{name: value for name, value in search.items() if name in known})
    searcher = Searcher(
        model.eval(),
        replace(settings, maxlenratio=-int(SAMPLE_S * TOKENS_A_SECOND), minlenratio=0.0),
        lm=None if lm is None else lm.cpu().eval(),
        lexicon_search=_made_up_words(tokens, settings) if settings.search == "lexicon" else None,
    )
    speech, lengths = batch["speech"].cpu(), batch["speech_lengths"].cpu()
    began = time.monotonic()
    with torch.inference_mode():
        encoded = model.encode(speech, lengths)
        log_probs = None if model.ctc is None else model.ctc.log_softmax(encoded.out)
        searcher(Encoded(memory=encoded.out, lengths=encoded.lengths, log_probs=log_probs))
    return (time.monotonic() - began) / (2 * SAMPLE_S)


def _made_up_words(tokens: Sequence[str], settings: Any) -> Any:
    """A search for words of three phones."""
    import torch

    from tympan.decode.lexicon_search import load_lexicon_search
    from tympan.text.lexicon import Lexicon
    from tympan.text.vocabulary import Vocabulary

    phones = tokens[2:-1]
    said = (tuple(phones[number * step % len(phones)] for step in (1, 3, 7)) for number in range(WORDS))
    lexicon = Lexicon({f"word{number}": (phones,) for number, phones in enumerate(said)}, "made up")
    return load_lexicon_search(lexicon, Vocabulary(tokens), None, settings, torch.device("cpu"))


def _time_features(options: RecipeOptions) -> float:
    """On one core; nothing for raw audio, whose features are made in training."""
    if options.feats_type == "raw":
        return 0.0
    import numpy as np

    from tympan.data.audio import Audio
    from tympan.features.extractor import compute_features

    wanted = feature_options(options)
    rate = int(wanted.frame.sample_frequency)
    audio = Audio(np.random.default_rng(0).normal(0, 0.01, 10 * rate).astype(np.float32), rate)
    times = []
    for _ in range(PASSES):
        began = time.monotonic()
        compute_features(audio, wanted, utterance="noise")
        times.append((time.monotonic() - began) / 10)
    return min(times)


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
