"""Estimate the time and disk space of the stages, from the size of the corpus and a short measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.config.train import TrainConfig
from tympan.data.augment import describe_speeds
from tympan.data.kaldi_dir import read_table
from tympan.recipe.console import in_bytes, in_words
from tympan.recipe.corpus import DATA, Corpus
from tympan.recipe.download import join_url, local_path
from tympan.recipe.options import RecipeOptions
from tympan.recipe.probe import Probe, measure
from tympan.recipe.recipe import Recipe
from tympan.recipe.stored_features import BYTES_PER_SECOND
from tympan.recipe.timing import BUSY, Timing
from tympan.recipe.tokens import Tokens
from tympan.recipe.training_steps import asr_arguments, lm_arguments, parse_quietly
from tympan.runtime.cpu import FAST_BFLOAT16, IN_A_RECIPE, should_advise_bfloat16

if TYPE_CHECKING:
    from tympan.decode.options import DecodeOptions

DISK_BYTES_PER_SECOND = 200e6
"""Assumed disk speed for reading and writing once, in bytes per second. Slow disks reach less."""
UTTERANCES_PER_SECOND = 10_000
"""Speed of stage 2."""
NGRAM_TOKENS_PER_SECOND = 700_000
"""Measured: a 4-gram of 12.5 million tokens in 17.5 s."""
NGRAM_BYTES = 35
"""Bytes per line of the ARPA file."""


@dataclass(frozen=True)
class StageEstimate:
    number: int
    name: str
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Estimate:
    stages: list[StageEstimate]
    memory_bytes: int
    notes: list[str]
    asr: AsrTrainConfig | None = None
    """The training configuration, unless the duration of the data is unknown."""


@dataclass(frozen=True)
class _Amounts:
    """Seconds and tokens to be processed. `changed_s` counts copies at other speeds that are written."""

    all_s: float
    train_s: float
    dev_s: float
    decoded_s: float
    changed_s: float
    lm_tokens: float
    utterances: float
    """Number of utterances in `all_s` and `changed_s`."""


def estimate(recipe: Recipe, search: DecodeOptions, *, stages: range) -> Estimate:
    """Time features, training steps and the `search` on noise, as far as `stages` need them: some seconds."""
    options, corpus = recipe.options, recipe.corpus
    hours, origin = corpus_hours(options, corpus)
    if not hours:
        return Estimate(
            [], 0, ["the duration of the data is not known before stage 0: no estimate of time and disk space"]
        )
    amounts = _amounts(recipe, hours)
    asr = parse_quietly(AsrTrainConfig, asr_arguments(recipe), "asr_train")
    lm = parse_quietly(LmTrainConfig, lm_arguments(recipe), "lm_train") if options.lm_config else None
    probe = measure(recipe, asr=asr, lm=lm, search=search, tokens=token_list_of(recipe.tokens, corpus), stages=stages)
    estimates = [
        _download(corpus, hours, amounts),
        _data(corpus, amounts),
        _features(recipe, amounts, probe),
        StageEstimate(2, "dictionary", amounts.utterances / UTTERANCES_PER_SECOND, _lengths_bytes(amounts)),
        _language_models(options, lm, amounts, probe),
        _training(options, asr, amounts, probe),
        _decoding(options, amounts, probe),
    ]
    memory = 16 * probe.parameters + int(probe.saved_bytes * _largest_batch_s(asr, recipe))
    notes = _notes(recipe, asr, origin, amounts, probe, memory)
    if probe.training.seconds and not options.ngpu and should_advise_bfloat16(asr):
        notes.append(FAST_BFLOAT16 + IN_A_RECIPE)
    return Estimate(estimates, memory if not options.ngpu else 0, notes, asr)


def _amounts(recipe: Recipe, hours: Mapping[str, float]) -> _Amounts:
    train_s, all_s = 3600 * hours.get(recipe.corpus.train, 0.0), 3600 * sum(hours.values())
    changed_s = train_s * (recipe.features.copies - 1)
    return _Amounts(
        all_s=all_s,
        train_s=train_s,
        dev_s=3600 * hours.get(recipe.corpus.dev, 0.0),
        decoded_s=all_s - train_s,
        changed_s=changed_s,
        lm_tokens=_lm_tokens(recipe, train_s),
        utterances=(all_s + changed_s) / recipe.corpus.utterance_s,
    )


def _notes(recipe: Recipe, asr: AsrTrainConfig, origin: str, amounts: _Amounts, probe: Probe, memory: int) -> list[str]:
    train_s = amounts.train_s
    length = in_words(train_s) if train_s < 3600 else f"{train_s / 3600:.1f} hours"
    where = "on this machine" if not recipe.options.ngpu else "on one accelerator (divided by --ngpu below)"
    notes = [f"{length} of training data ({origin}); {_speeds(recipe, asr)}"]
    if probe.parameters:
        notes.append(f"{probe.parameters:,} parameters")
    if probe.training.seconds:
        notes.append(f"{1000 * probe.training.seconds:.1f} ms to train on one second of speech {where}")
        notes.append(f"the largest batch needs about {in_bytes(memory)} of memory")
    if probe.decoding.seconds:
        notes.append(f"{1000 * probe.decoding.seconds:.0f} ms to decode one second of speech on one CPU core")
    busiest = max((probe.training, probe.decoding), key=lambda timing: timing.slowdown)
    if busiest.is_busy:
        notes.append(_describe_slowdown(busiest))
    return [
        *notes,
        "times are estimates for all epochs, measured on random input; stage -1 includes unpacking, but not the "
        "download",
    ]


def _speeds(recipe: Recipe, asr: AsrTrainConfig) -> str:
    """The factors of speed perturbation that are in effect, and how they are used."""
    if recipe.features.copies != 1.0:
        factors = " ".join(f"{factor:g}" for factor in recipe.options.speed_factors)
        return f"speed perturbation: copies at the speeds {factors}, {recipe.features.copies:.2f} times as much data"
    return f"speed perturbation: {describe_speeds(asr.speed_perturb)}"


def _describe_slowdown(timing: Timing) -> str:
    line = (
        f"other programs use the processor: the times below are for an idle machine; at present, the "
        f"recipe takes about {timing.slowdown:.1f} times as long"
    )
    if timing.slowdown_alone is None or timing.slowdown_alone > timing.slowdown / BUSY:
        return line
    return f"{line}; with one thread (export OMP_NUM_THREADS=1) about {timing.slowdown_alone:.1f} times"


def _download(corpus: Corpus, hours: Mapping[str, float], amounts: _Amounts) -> StageEstimate:
    """Time to unpack. The download is not included: the speed of the network is unknown."""
    if not corpus.archives:
        return StageEstimate(-1, "download", 0.0, 0)
    published = sum(corpus.hours.values())
    packed = corpus.archive_bytes * sum(hours.values()) / published if published else 0.0
    unpacked = amounts.all_s * BYTES_PER_SECOND
    return StageEstimate(-1, "download", 2 * (packed + unpacked) / DISK_BYTES_PER_SECOND, int(packed + unpacked))


def _data(corpus: Corpus, amounts: _Amounts) -> StageEstimate:
    seconds = amounts.all_s * BYTES_PER_SECOND / DISK_BYTES_PER_SECOND
    return StageEstimate(0, "data", seconds, int(amounts.all_s / corpus.utterance_s * 300))


def _features(recipe: Recipe, amounts: _Amounts, probe: Probe) -> StageEstimate:
    seconds = amounts.all_s + amounts.changed_s
    written = recipe.features.disk_bytes(seconds, changed_s=amounts.changed_s)
    took = probe.features_s * seconds / recipe.options.jobs + 2 * written / DISK_BYTES_PER_SECOND
    return StageEstimate(1, "features", took, int(written))


def _lengths_bytes(amounts: _Amounts) -> int:
    return int((amounts.all_s + amounts.changed_s) * 300)


def _language_models(
    options: RecipeOptions, lm: LmTrainConfig | None, amounts: _Amounts, probe: Probe
) -> StageEstimate:
    took, stored = 0.0, 0.0
    if lm is not None:
        took = probe.lm_token_s * amounts.lm_tokens * lm.max_epoch
        stored = _experiment_bytes(lm, probe.lm_parameters)
    if options.n_gram:
        took += amounts.lm_tokens / NGRAM_TOKENS_PER_SECOND
        stored += amounts.lm_tokens * options.n_gram * NGRAM_BYTES
    return StageEstimate(3, "lm", took, int(stored))


def _training(options: RecipeOptions, asr: AsrTrainConfig, amounts: _Amounts, probe: Probe) -> StageEstimate:
    devices = max(1, options.ngpu if options.ngpu else options.nproc)
    heard_s = amounts.train_s + amounts.changed_s
    # Validation has no backward pass: a third of the work.
    dev_s = amounts.dev_s / 3
    took = probe.training.seconds / devices * (heard_s + dev_s) * asr.max_epoch
    packed = 4 * probe.parameters + 4 * probe.lm_parameters
    return StageEstimate(4, "train", took, int(_experiment_bytes(asr, probe.parameters) + packed))


def _decoding(options: RecipeOptions, amounts: _Amounts, probe: Probe) -> StageEstimate:
    took = amounts.decoded_s * probe.decoding.seconds / options.jobs
    return StageEstimate(5, "decode", took, int(amounts.decoded_s * 200))


def _experiment_bytes(config: TrainConfig, parameters: int) -> int:
    """Saved models, their averages, and two checkpoints with the optimizer's two values per weight."""
    kept = max(config.keep_nbest_models) * len(config.best_model_criterion) + config.keep_last_models
    models = min(kept, config.max_epoch) + len(config.best_model_criterion) + 2
    return 4 * parameters * (models + 2 * 3)


def corpus_hours(options: RecipeOptions, corpus: Corpus) -> tuple[Mapping[str, float], str]:
    """Hours by set: counted in the data directories, else as published, scaled to the size of the archive."""
    places = corpus.directories or {name: DATA / name for name in (corpus.train, *corpus.decoded())}
    counted = {name: _hours(place) for name, place in places.items() if place.is_dir()}
    if counted.get(corpus.train):
        return counted, "counted now"
    archives = [*Path(options.data).glob("*.tgz"), *Path(options.data).glob("*.tar.gz")]
    source = join_url(options.data_url, "archive") if options.data_url else ""
    if not archives and source.startswith("file:"):
        archives = list(local_path(source).parent.glob("*.t*gz"))
    size = sum(path.stat().st_size for path in archives)
    if size and corpus.archive_bytes:
        share = size / corpus.archive_bytes
        return {name: hours * share for name, hours in corpus.hours.items()}, "from the size of the archives"
    return corpus.hours, "as published"


def _largest_batch_s(config: AsrTrainConfig, recipe: Recipe) -> float:
    """Seconds of speech, including padding, in the largest batch on one device."""
    steps_per_second = recipe.features.steps_per_second
    if config.batch_type in ("numel", "length", "bucket"):
        dim = 1 if config.batch_type == "length" else recipe.features.step_dim
        return config.batch_bins / dim / steps_per_second
    is_folded = config.fold_length and config.batch_type == "folded"
    longest_s = config.fold_length[0] / steps_per_second if is_folded else recipe.corpus.longest_s
    return config.batch_size * longest_s


def _lm_tokens(recipe: Recipe, train_s: float) -> float:
    """Number of tokens in the LM text: from a sample of the text if it exists, else from the duration."""
    text = DATA / recipe.corpus.train / "text"
    if not text.is_file() or not recipe.tokens.is_ready:
        return train_s * recipe.corpus.tokens_per_second
    tokenizer, sentences = recipe.tokens.tokenizer(), list(read_table(text).values())
    chosen = sentences[:: max(1, len(sentences) // 1000)]
    return sum(len(tokenizer.text2tokens(sentence)) + 1 for sentence in chosen) * len(sentences) / max(1, len(chosen))


def token_list_of(tokens: Tokens, corpus: Corpus) -> list[str]:
    """The tokens, or placeholders in the expected number."""
    if tokens.token_list.is_file():
        return tokens.token_list.read_text(encoding="utf-8").split("\n")[:-1]
    made_up = (f"token{number}" for number in range(tokens.expected_size(corpus) - 3))
    return ["<blank>", "<unk>", *made_up, "<sos/eos>"]


def _hours(directory: Path) -> float:
    """Duration from the headers of a sample of the recordings: reading all of them would take minutes."""
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
