"""What the stages will take: disk from the corpus's hours, time from a few seconds of the real work on this machine."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tympan.recipe.corpus import DATA, Corpus
from tympan.recipe.download import join_url, local_path
from tympan.recipe.feature_steps import feature_options, feature_size
from tympan.recipe.options import RecipeOptions
from tympan.recipe.token_steps import token_list
from tympan.recipe.training_steps import asr_arguments, parse_quietly

BYTES_A_SECOND = 32_000  # 16 kHz, 16 bit
FLAC_SHARE = 0.55  # of the size of wav, on speech
FRAMES_A_SECOND = 100
VOCABULARY = {"aishell": 4233, "an4": 30}
TOKENS_A_SECOND = 3.2  # AISHELL: 14.4 characters in 4.5 s
LONGEST_S = 15.0
SAMPLE_S = 5.0
"""Length of the utterances that the training step is timed on."""


@dataclass(frozen=True)
class StageEstimate:
    number: int
    name: str
    seconds: float | None
    """None where nothing was measured."""
    bytes: int


@dataclass(frozen=True)
class Estimate:
    stages: list[StageEstimate]
    memory_bytes: int
    notes: list[str]


def estimate(options: RecipeOptions, corpus: Corpus) -> Estimate:
    """Takes some seconds: features of a few seconds of noise and two training steps are run and timed."""
    from tympan.config.asr import AsrTrainConfig

    hours, whence = corpus_hours(options, corpus)
    if not hours:
        return Estimate([], 0, ["the length of the data is not known before stage 0: no estimate of time and disk"])
    train_s, all_s = 3600 * hours.get(corpus.train, 0.0), 3600 * sum(hours.values())
    copies = sum(1 / speed for speed in options.speed_factors) if options.is_perturbed else 1.0
    config = parse_quietly(AsrTrainConfig, asr_arguments(options, corpus), "asr_train")
    step = _time_training(config, options)
    trained_s = train_s * (copies if options.is_perturbed else 1.0)
    feature_s = all_s + train_s * (copies - 1)
    stages = [
        StageEstimate(-1, "download", None, int(all_s * BYTES_A_SECOND + _archive_bytes(options, corpus, hours))),
        StageEstimate(0, "data", None, int(all_s / 4 * 300)),
        _features_estimate(options, feature_s, train_s * (copies - 1)),
        StageEstimate(2, "dictionary", None, int(feature_s * 300)),
        StageEstimate(3, "lm", None, 200_000_000),
        StageEstimate(
            4,
            "train",
            step.seconds_a_second * trained_s * config.max_epoch,
            step.parameters * 4 * (options.n_average + 13),
        ),
        StageEstimate(5, "decode", None, int(all_s * 200)),
    ]
    memory = 16 * step.parameters + int(step.saved_bytes_a_second * _largest_batch_s(config, options))
    where = "on this machine" if not options.ngpu else "on one accelerator, divided by --ngpu"
    notes = [
        f"{hours.get(corpus.train, 0):.1f} hours of training data ({whence}), {copies:.2f} times with its copies",
        f"{step.parameters:,} parameters; {1000 * step.seconds_a_second:.1f} ms to learn a second of speech {where}",
        f"the largest batch needs about {memory / 1e9:.1f} GB of memory",
    ]
    return Estimate(stages, memory if not options.ngpu else 0, notes)


def corpus_hours(options: RecipeOptions, corpus: Corpus) -> tuple[Mapping[str, float], str]:
    """Hours by set: counted if stage 0 is done, else as published, scaled to the archive's size."""
    counted = {name: _hours(DATA / name) for name in (corpus.train, *corpus.decoded()) if (DATA / name).is_dir()}
    if counted.get(corpus.train):
        return counted, "counted"
    archives = [*Path(options.data).glob("*.tgz"), *Path(options.data).glob("*.tar.gz")]
    source = join_url(options.data_url, "archive") if options.data_url else ""
    if not archives and source.startswith("file:"):
        archives = list(local_path(source).parent.glob("*.t*gz"))
    size = sum(path.stat().st_size for path in archives)
    if size and corpus.archive_bytes:
        share = size / corpus.archive_bytes
        return {name: hours * share for name, hours in corpus.hours.items()}, "from the size of the archives"
    return corpus.hours, "as published"


@dataclass(frozen=True)
class _Step:
    parameters: int
    seconds_a_second: float
    saved_bytes_a_second: float


def _time_training(config: Any, options: RecipeOptions) -> _Step:
    """Forward and backward of two utterances: seconds, and bytes kept for backward, for a second of speech."""
    import torch

    from tympan.models.build import build_asr_model
    from tympan.runtime.device import choose_kind, device_of, synchronize

    tokens = _tokens(options)
    device = device_of(choose_kind(ngpu=options.ngpu, device=options.device), local_rank=0)
    model = build_asr_model(replace(config, token_list=tokens), reads_statistics=False).to(device)
    if options.feats_type == "raw":
        speech = torch.randn(2, int(SAMPLE_S * 16_000), device=device)
    else:
        speech = torch.randn(2, int(SAMPLE_S * FRAMES_A_SECOND), feature_size(options), device=device)
    text = torch.randint(2, len(tokens) - 1, (2, int(SAMPLE_S * TOKENS_A_SECOND)), device=device)
    batch = {
        "speech": speech,
        "speech_lengths": torch.full((2,), speech.shape[1], device=device),
        "text": text,
        "text_lengths": torch.full((2,), text.shape[1], device=device),
    }
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    for _ in range(2):
        kept.clear()
        began = time.monotonic()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = sum(term.total / term.count.clamp(min=1) for term in model(**batch).terms)
        loss.backward()
        synchronize(device)
        took = time.monotonic() - began
    parameters = sum(parameter.numel() for parameter in model.parameters())
    saved = max(0, sum(kept.values()) - 4 * parameters)
    share = max(1, options.ngpu if options.ngpu else options.nproc)
    return _Step(parameters, took / (2 * SAMPLE_S) / share, saved / (2 * SAMPLE_S))


def _features_estimate(options: RecipeOptions, seconds: float, changed_s: float) -> StageEstimate:
    if options.feats_type == "raw":
        return StageEstimate(1, "features", 0.0, 0)
    import numpy as np

    from tympan.data.audio import Audio
    from tympan.features.extractor import compute_features

    wanted = feature_options(options)
    rate = int(wanted.frame.sample_frequency)
    audio = Audio(np.random.default_rng(0).normal(0, 0.01, 10 * rate).astype(np.float32), rate)
    for _ in range(2):
        began = time.monotonic()
        compute_features(audio, wanted, utterance="noise")
        took = (time.monotonic() - began) / 10
    stored = seconds * FRAMES_A_SECOND * 4 * (wanted.dim + feature_size(options))
    return StageEstimate(
        1, "features", took * seconds / options.jobs, int(stored + changed_s * BYTES_A_SECOND * FLAC_SHARE)
    )


def _largest_batch_s(config: Any, options: RecipeOptions) -> float:
    """Seconds of speech, padding too, that the largest batch may hold on one device."""
    steps_a_second = 16_000 if options.feats_type == "raw" else FRAMES_A_SECOND
    if config.batch_type in ("numel", "length", "bucket"):
        dim = 1 if config.batch_type == "length" or options.feats_type == "raw" else feature_size(options)
        return float(config.batch_bins / dim / steps_a_second)
    longest = (
        config.fold_length[0] / steps_a_second if config.fold_length and config.batch_type == "folded" else LONGEST_S
    )
    return float(config.batch_size * longest)


def _tokens(options: RecipeOptions) -> list[str]:
    path = token_list(options)
    if path.is_file():
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    size = options.nbpe if options.token_type == "bpe" else VOCABULARY.get(options.corpus, 1000)
    return ["<blank>", "<unk>", *(f"token{number}" for number in range(size - 3)), "<sos/eos>"]


def _archive_bytes(options: RecipeOptions, corpus: Corpus, hours: Mapping[str, float]) -> float:
    published = sum(corpus.hours.values())
    return corpus.archive_bytes * sum(hours.values()) / published if published else 0.0


def _hours(directory: Path) -> float:
    """From the headers of a sample of the recordings: a whole corpus would take minutes."""
    from tympan.data.audio import audio_info
    from tympan.data.kaldi_dir import DataDir

    data = DataDir.read(directory)
    if data.segments:
        return sum((segment.end_s or 0.0) - segment.start_s for segment in data.segments.values()) / 3600
    sources = list(data.wav.values())
    chosen = sources[:: max(1, len(sources) // 200)]
    infos = [audio_info(source, base=directory) for source in chosen if not source.endswith("|")]
    if not infos:
        return 0.0
    return sum(info.frames / info.rate for info in infos) / len(infos) * len(sources) / 3600
