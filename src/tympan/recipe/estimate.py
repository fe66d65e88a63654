"""What the stages will take: disk and time from the corpus's hours and a few seconds of the real work here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tympan.data.kaldi_dir import read_table
from tympan.recipe.amounts import in_bytes, in_words
from tympan.recipe.corpus import DATA, Corpus
from tympan.recipe.download import join_url, local_path
from tympan.recipe.feature_steps import feature_options, feature_size
from tympan.recipe.options import RecipeOptions
from tympan.recipe.probe import FRAMES_A_SECOND, TOKENS_A_SECOND, Probe, measure
from tympan.recipe.token_steps import token_list, tokenizer_for
from tympan.recipe.training_steps import asr_arguments, lm_arguments, parse_quietly

BYTES_A_SECOND = 32_000  # 16 kHz, 16 bit
FLAC_SHARE = 0.55  # of the size of wav, on speech
PHONES = 100
VOCABULARY = {"aishell": 4233, "an4": 30}
LONGEST_S = 15.0
UTTERANCE_S = 4.5
DISK_BYTES_A_SECOND = 200e6  # reading and writing once; a slow disk has less
UTTERANCES_A_SECOND = 10_000  # of stage 2
NGRAM_TOKENS_A_SECOND = 700_000  # 4-gram of 12.5 million tokens in 17.5 s
NGRAM_BYTES = 35  # a line of ARPA


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


@dataclass(frozen=True)
class _Corpus:
    """Seconds and tokens of what is to come."""

    all_s: float
    train_s: float
    decoded_s: float
    changed_s: float
    """Of copies at other speeds that are written."""
    lm_tokens: float


def estimate(options: RecipeOptions, corpus: Corpus, search: dict[str, Any]) -> Estimate:
    """Takes some seconds: features, training steps and a search are run on noise and timed. `search` decodes."""
    from tympan.config.asr import AsrTrainConfig
    from tympan.config.lm import LmTrainConfig

    hours, whence = corpus_hours(options, corpus)
    if not hours:
        return Estimate([], 0, ["the length of the data is not known before stage 0: no estimate of time and disk"])
    train_s, all_s = 3600 * hours.get(corpus.train, 0.0), 3600 * sum(hours.values())
    copies = sum(1 / speed for speed in options.speed_factors) if options.is_perturbed else 1.0
    amounts = _Corpus(all_s, train_s, all_s - train_s, train_s * (copies - 1), _tokens_of(options, corpus, train_s))
    asr = parse_quietly(AsrTrainConfig, asr_arguments(options, corpus), "asr_train")
    lm = None
    if options.lm_config:
        lm = parse_quietly(LmTrainConfig, lm_arguments(options, corpus), "lm_train")
    probe = measure(options, asr=asr, lm=lm, search=search, tokens=_tokens(options))
    stages = [
        _download(options, corpus, hours, amounts),
        StageEstimate(0, "data", all_s * BYTES_A_SECOND / DISK_BYTES_A_SECOND, int(all_s / UTTERANCE_S * 300)),
        _features(options, amounts, probe),
        _dictionary(amounts),
        _language_models(options, lm, amounts, probe),
        _training(options, asr, amounts, probe),
        StageEstimate(5, "decode", amounts.decoded_s * probe.decoding_s / options.jobs, int(amounts.decoded_s * 200)),
    ]
    memory = 16 * probe.parameters + int(probe.saved_bytes * _largest_batch_s(asr, options))
    length = in_words(train_s) if train_s < 3600 else f"{train_s / 3600:.1f} hours"
    where = "on this machine" if not options.ngpu else "on one accelerator, divided by --ngpu"
    notes = [
        f"{length} of training data ({whence}), {copies:.2f} times with its copies",
        f"{probe.parameters:,} parameters; {1000 * probe.training_s:.1f} ms to learn a second of speech {where}, "
        f"{1000 * probe.decoding_s:.0f} ms to decode one on a core",
        f"the largest batch needs about {in_bytes(memory)} of memory",
        "times are estimates, measured just now on noise, for all epochs; of stage -1 unpacking, not the network",
    ]
    return Estimate(stages, memory if not options.ngpu else 0, notes)


def _download(options: RecipeOptions, corpus: Corpus, hours: Mapping[str, float], amounts: _Corpus) -> StageEstimate:
    """Unpacking: how fast the network is, nobody knows."""
    packed, unpacked = _archive_bytes(options, corpus, hours), amounts.all_s * BYTES_A_SECOND
    if options.corpus == "custom":
        return StageEstimate(-1, "download", 0.0, 0)
    return StageEstimate(-1, "download", 2 * (packed + unpacked) / DISK_BYTES_A_SECOND, int(packed + unpacked))


def _features(options: RecipeOptions, amounts: _Corpus, probe: Probe) -> StageEstimate:
    if options.feats_type == "raw":
        return StageEstimate(1, "features", 0.0, 0)
    seconds = amounts.all_s + amounts.changed_s
    stored = seconds * FRAMES_A_SECOND * 4 * (feature_options(options).dim + feature_size(options))
    written = stored + amounts.changed_s * BYTES_A_SECOND * FLAC_SHARE
    took = probe.features_s * seconds / options.jobs + 2 * written / DISK_BYTES_A_SECOND
    return StageEstimate(1, "features", took, int(written))


def _dictionary(amounts: _Corpus) -> StageEstimate:
    seconds = amounts.all_s + amounts.changed_s
    return StageEstimate(2, "dictionary", seconds / UTTERANCE_S / UTTERANCES_A_SECOND, int(seconds * 300))


def _language_models(options: RecipeOptions, lm: Any | None, amounts: _Corpus, probe: Probe) -> StageEstimate:
    took, stored = 0.0, 0.0
    if lm is not None:
        took = probe.lm_token_s * amounts.lm_tokens * lm.max_epoch
        stored = _experiment_bytes(lm, probe.lm_parameters)
    if options.n_gram:
        took += amounts.lm_tokens / NGRAM_TOKENS_A_SECOND
        stored += amounts.lm_tokens * options.n_gram * NGRAM_BYTES
    return StageEstimate(3, "lm", took, int(stored))


def _training(options: RecipeOptions, asr: Any, amounts: _Corpus, probe: Probe) -> StageEstimate:
    devices = max(1, options.ngpu if options.ngpu else options.nproc)
    heard_s = amounts.train_s + amounts.changed_s
    took = probe.training_s / devices * heard_s * asr.max_epoch
    packed = 4 * probe.parameters + 4 * probe.lm_parameters
    return StageEstimate(4, "train", took, int(_experiment_bytes(asr, probe.parameters) + packed))


def _experiment_bytes(config: Any, parameters: int) -> int:
    """Models that stay, averages of them, and two checkpoints with the optimiser's two values for each weight."""
    kept = max(config.keep_nbest_models) * len(config.best_model_criterion) + config.keep_last_models
    models = min(kept, config.max_epoch) + len(config.best_model_criterion) + 2
    return 4 * parameters * (models + 2 * 3)


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


def _tokens_of(options: RecipeOptions, corpus: Corpus, train_s: float) -> float:
    """Tokens of the LM's text: counted if they are there, else as many as AISHELL has in so much speech."""
    text = DATA / corpus.train / "text"
    is_ready = token_list(options).is_file() or options.token_type != "bpe"
    if not text.is_file() or not is_ready:
        return train_s * TOKENS_A_SECOND
    tokenizer, sentences = tokenizer_for(options), list(read_table(text).values())
    chosen = sentences[:: max(1, len(sentences) // 1000)]
    return sum(len(tokenizer.text2tokens(sentence)) + 1 for sentence in chosen) * len(sentences) / max(1, len(chosen))


def _tokens(options: RecipeOptions) -> list[str]:
    path = token_list(options)
    if path.is_file():
        return path.read_text(encoding="utf-8").split("\n")[:-1]
    size = options.nbpe if options.token_type == "bpe" else VOCABULARY.get(options.corpus, 1000)
    if options.token_type == "phn":
        size = PHONES
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
