"""The options of decoding, with their defaults: search, model files, batches and devices.

The commands inherit these classes, and Python code passes instances of them. This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from tympan.config.batches import MOST_PROCESSES
from tympan.config.cast import CastError, cast
from tympan.config.mistakes import Mistakes
from tympan.config.option import choice, not_yet, option, options_of, range_faults
from tympan.config.resolve import Conflict
from tympan.config.signature import REQUIRED
from tympan.decode.espnet2_options import QuantizationOptions, UnsupportedOptions, espnet2_faults
from tympan.decode.search import SEARCHES, find_search
from tympan.decode.transducer_kinds import from_transducer_conf
from tympan.errors import UserError

SEARCH, MODEL, WORK = "search", "model", "computation"
LOG_LEVELS = Literal["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"]
MIN_PIECE_S = 1.0
"""Shorter pieces would split words, and may be too short for one encoder frame."""

KINDS = [find_search(name) for name in SEARCHES.names()]

Options = TypeVar("Options")


class Checked:
    """Base of option classes for Python code. Values are converted and checked like those of a command."""

    def __post_init__(self) -> None:
        mistakes = Mistakes()
        values = {}
        for name, item in options_of(type(self)).items():
            values[name] = getattr(self, name)
            if values[name] is REQUIRED:  # --print_config
                continue
            try:
                value = cast(values[name], item.type)
                if item.extra.registry is not None and value is not None:
                    value = item.extra.registry.canonical(value)
            except (CastError, UserError) as error:
                mistakes.add("", f"{name} {error}" if isinstance(error, CastError) else str(error))
            else:
                object.__setattr__(self, name, value)
        mistakes.check()
        for fault in range_faults(self):
            mistakes.add("", fault)
        for conflict in option_faults(vars(self)):
            mistakes.add("", f"{conflict.names[0]} {conflict.text}")
        mistakes.check()


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Checked):
    """Options of the search, with ESPnet2's names. Each search uses some of them (`SearchKind.uses`)."""

    search: str | None = choice(
        SEARCHES,
        None,
        help=f"search algorithm: {', '.join(f'{kind.name} ({kind.help})' for kind in KINDS)}; null: the first one "
        "that the model offers, which is joint for CTC/attention models",
        group=SEARCH,
    )
    search_conf: dict[str, Any] = option(
        {}, help="options that only the chosen search has, such as max_sym_exp of transducer_greedy", group=SEARCH
    )
    beam_size: int = option(
        20,
        help="beam width: number of hypotheses to keep (search lexicon: number of states)",
        group=SEARCH,
        least=1,
        most=100_000,
    )
    ctc_weight: float = option(
        0.5, help="weight of the CTC score; the attention decoder gets 1 - ctc_weight", group=SEARCH, least=0, most=1
    )
    lm_weight: float = option(1.0, help="weight of the neural language model", group=SEARCH, least=-1e6, most=1e6)
    ngram_weight: float = option(
        0.9, help="weight of the n-gram score, a log10 probability", group=SEARCH, least=-1e6, most=1e6
    )
    ngram_scorer: Literal["full", "part"] = option(
        "full",
        help="tokens that the n-gram scores: full (all tokens) or part (those preselected by decoder and LM)",
        group=SEARCH,
    )
    ngram_scores_end: bool = option(
        False,
        help="score the end of a hypothesis as </s> of the n-gram; false: as an unknown word, as in ESPnet2",
        group=SEARCH,
    )
    penalty: float = option(
        0.0,
        help="bonus added to the score for every token (search lexicon: for every word)",
        group=SEARCH,
        least=-1e6,
        most=1e6,
    )
    maxlenratio: float = option(
        0.0,
        help="maximum output length: a positive value is a fraction of the encoder frames, a negative one a number "
        "of tokens; 0: stop by end detection",
        group=SEARCH,
        least=-1e6,
        most=1e6,
    )
    minlenratio: float = option(
        0.0, help="minimum output length, in the same units as maxlenratio", group=SEARCH, least=-1e6, most=1e6
    )
    normalize_length: bool = option(False, help="rank hypotheses by score divided by length", group=SEARCH)
    lang_prompt_token: str | None = option(
        None,
        help="language and task of a Whisper model, such as '<|zh|> <|transcribe|>', or other tokens of its prompt; "
        "auto: detect the language; null: those of training",
        group=SEARCH,
    )
    nlp_prompt_token: str | None = option(
        None,
        help="text that replaces the task in the prompt of a Whisper model, for models trained with such prompts",
        group=SEARCH,
    )
    lid_prompt: bool = option(
        False,
        help="give a Whisper model no language and task, so that its first token is the language; special tokens are "
        "then part of the text",
        group=SEARCH,
    )
    prompt_token_file: Path | None = option(
        None,
        help="file with one token per line: those that were added to Whisper's tokens in training, which a text prompt "
        "is split at",
        group=SEARCH,
    )
    predict_time: bool = option(
        False, help="let a Whisper model predict the times of sentences (ESPnet2's s2t_inference)", group=SEARCH
    )


@dataclass(frozen=True, kw_only=True)
class DecodeOptions(SearchOptions):
    """All options that the hypotheses depend on, besides the model: the contents of decode.yaml."""

    nbest: int = option(1, help="number of hypotheses per utterance to write", group=SEARCH, least=1, most=100_000)
    transducer_conf: dict[str, Any] | None = option(
        None, help="search and search_conf of a transducer in ESPnet2's form: search_type and its options", group=SEARCH
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transducer_conf is None:
            return
        if self.search is not None:
            raise UserError("transducer_conf and search exclude each other: give search_conf instead")
        for name, value in {
            **from_transducer_conf(self.transducer_conf, beam_size=self.beam_size),
            "transducer_conf": None,
        }.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class PieceOptions(Checked):
    """How a recording is read and cut."""

    channel: int | None = option(
        None,
        help="channel of multi-channel recordings to decode, counted from 0; null: the --channel of training, else the "
        "mean of all channels (ESPnet2 uses the first)",
        group=WORK,
        least=0,
    )
    max_piece_s: float = option(
        30.0, help="maximum length in seconds; longer recordings are split at pauses; 0: never split", group=WORK
    )


@dataclass(frozen=True, kw_only=True)
class BatchLimits(PieceOptions):
    """How recordings are read, cut and put into batches."""

    batch_size: int = option(
        16,
        help="number of utterances to decode together; does not change the result; 0 or 1: one by one",
        group=WORK,
        least=0,
    )
    max_batch_s: float = option(
        240.0, help="maximum duration of a batch in seconds of audio, including padding", group=WORK
    )


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    allow_import: bool = option(
        False,
        help="allow configurations with Python classes outside Tympan (package.module:Class), whose code is then run",
        group=MODEL,
    )


@dataclass(frozen=True, kw_only=True)
class AdapterOptions:
    adapter: Path | None = option(
        None,
        help="adapters to apply to the model: a file saved with save_strategy adapter_only, or its folder",
        group=MODEL,
    )


@dataclass(frozen=True, kw_only=True)
class DecodeDeviceOptions:
    """One device."""

    ngpu: int = option(0, help="number of accelerators to use; 0: the CPU", group=WORK, least=0, most=1)
    device: Literal["cpu", "cuda", "npu", "mps"] | None = option(
        None, help="device type; null: the available accelerator if ngpu is 1, else the CPU", group=WORK
    )


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions:
    dtype: Literal["float16", "bfloat16", "float32", "float64"] = option(
        "float32", help="data type of weights and computation", group=WORK
    )


@dataclass(frozen=True, kw_only=True)
class ModelFileOptions(AdapterOptions, ImportOptions):
    """The files of a model, one by one."""

    asr_train_config: Path | None = option(
        None,
        help="config.yaml of the recognizer (Tympan or ESPnet2); null: next to asr_model_file",
        group=MODEL,
    )
    asr_model_file: Path | None = option(None, help="weights of the recognizer (.pth or .safetensors)", group=MODEL)
    lm_train_config: Path | None = option(
        None, help="config.yaml of a neural language model; null: next to lm_file", group=MODEL
    )
    lm_file: Path | None = option(None, help="weights of the neural language model", group=MODEL)
    ngram_file: Path | None = option(
        None, help="n-gram language model: an ARPA file, or a binary file of ngram_train or KenLM", group=MODEL
    )
    bpemodel: Path | None = option(None, help="sentencepiece model; null: the one in the config", group=MODEL)


@dataclass(frozen=True, kw_only=True)
class SpeechDataOptions:
    """The input of a decode and the directory of its results."""

    output_dir: Path = option(
        help="output directory for the results; if it contains those of an interrupted run, decoding continues"
    )
    data_path_and_name_and_type: list[tuple[str, str, str]] = option(
        help="input file as PATH,speech,TYPE, such as data/test/wav.scp,speech,sound"
    )
    key_file: Path | None = option(None, help="decode only the utterances whose ids are in this file")
    log_level: LOG_LEVELS = option("INFO", help="logging level")
    seed: int = option(
        0,
        help="accepted for ESPnet2 compatibility; has no effect because decoding is deterministic",
        least=0,
        most=2**32 - 1,
    )


@dataclass(frozen=True, kw_only=True)
class WorkOptions(PrecisionOptions, DecodeDeviceOptions, BatchLimits, DecodeOptions):
    """Options for decoding a data directory, common to all tasks."""

    model_tag: str | None = option(
        None,
        help="packed model folder, or OWNER/NAME on a model hub, instead of single files; "
        "its decode.yaml sets the defaults",
        group=MODEL,
    )
    token_type: Literal["char", "bpe", "word", "phn", "whisper_en", "whisper_multilingual", "hugging_face"] | None = (
        option(None, help="token type; null: the one in the config", group=MODEL)
    )

    num_workers: int = option(1, help="number of threads that read recordings; 0 is the same as 1", group=WORK, least=0)
    nj: int = option(
        1, help="number of decoding processes, with one thread each", group=WORK, least=1, most=MOST_PROCESSES
    )
    executor: Literal["local", "dask"] = option(
        "local", help="where the nj processes run: local (this machine) or dask (a Dask cluster)", group=WORK
    )
    dask_address: str | None = option(None, help="address of the Dask scheduler, for executor dask", group=WORK)
    resume: bool = option(True, help="continue an interrupted run in output_dir; false: start from scratch", group=WORK)
    allow_pipes: bool = option(False, help="run the commands of wav.scp lines that end with '|'", group=WORK)

    allow_variable_data_keys: bool = not_yet(False, instead="the data name must be speech")


@dataclass(frozen=True, kw_only=True)
class InferenceOptions(UnsupportedOptions, QuantizationOptions, WorkOptions, ModelFileOptions, SpeechDataOptions):
    """The options of `tympan asr_inference`. The help shows the last class first."""

    multi_asr: bool = option(
        False,
        help="expect a model of several speakers (model: pit_espnet); such a model always gives the text of each "
        "speaker, so the option is not needed",
        group=MODEL,
    )
    time_sync: bool = option(False, help="the same as --search time_sync, as in ESPnet2", group=SEARCH)
    hugging_face_decoder: bool = option(False, help="the same as --search hugging_face, as in ESPnet2", group=SEARCH)
    hugging_face_decoder_conf: dict[str, Any] = option(
        {}, help="the same as search_conf of search hugging_face, as in ESPnet2", group=SEARCH
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time_sync and self.search is None:
            object.__setattr__(self, "search", "time_sync")
        if self.hugging_face_decoder and self.search is None:
            object.__setattr__(self, "search", "hugging_face")
            object.__setattr__(self, "search_conf", {**self.hugging_face_decoder_conf, **self.search_conf})


def option_faults(values: Mapping[str, Any]) -> Iterator[Conflict]:
    """Checks of options beyond their declared ranges."""
    yield from espnet2_faults(values)
    for name, value in values.items():
        if name in ("max_batch_s", "max_piece_s"):
            continue
        if isinstance(value, float) and not math.isfinite(value):
            yield Conflict((name,), f"must be a finite number, found {value}")
    if not values.get("max_batch_s", 1.0) > 0:
        yield Conflict(("max_batch_s",), f"must be a positive number of seconds, found {values['max_batch_s']}")
    piece_s = values.get("max_piece_s", 0.0)
    if piece_s != 0 and not MIN_PIECE_S <= piece_s < math.inf:
        text = f"must be {MIN_PIECE_S:g} or more seconds, or 0 (never cut), found {piece_s}"
        yield Conflict(("max_piece_s",), text)
    prompts = [name for name in ("lang_prompt_token", "nlp_prompt_token", "lid_prompt") if values.get(name)]
    if len(prompts) > 1:
        yield Conflict(tuple(prompts), f"{' and '.join(prompts)} exclude each other: give one of them")


def part_of(options: Any, schema: type[Options]) -> Options:
    """The options of one class among those of a command that inherits it."""
    return schema(**{name: getattr(options, name) for name in options_of(schema)})
