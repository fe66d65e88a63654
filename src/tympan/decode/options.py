"""The options of decoding, with their defaults: search, model files, batches and devices.

The commands inherit these classes, and Python code passes instances of them. This module does not import torch.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from tympan.config.cast import CastError, cast
from tympan.config.command_line import read_command_line
from tympan.config.espnet1 import translate_espnet1
from tympan.config.mistakes import Mistakes
from tympan.config.option import choice, not_yet, option, options_of, range_faults
from tympan.config.parse import parse_args, read_layer
from tympan.config.registry import is_import
from tympan.config.resolve import Conflict, Layer, Rules, resolve
from tympan.config.signature import REQUIRED
from tympan.decode.espnet2_options import QuantizationOptions, UnsupportedOptions, espnet2_faults
from tympan.decode.search import SEARCHES, SearchKind, find_search
from tympan.decode.transducer_kinds import from_transducer_conf
from tympan.errors import UserError

SEARCH, MODEL, WORK = "search", "model", "computation"
LOG_LEVELS = Literal["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"]
MIN_PIECE_S = 1.0
"""Shorter pieces would split words, and may be too short for one encoder frame."""

WEIGHTED = {"lm_file": "lm_weight", "ngram_file": "ngram_weight"}
"""Language models that a search may use, and the options with their weights."""

KINDS = [find_search(name) for name in SEARCHES.names()]

Options = TypeVar("Options")

logger = logging.getLogger(__name__)


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
        for name, value in {**from_transducer_conf(self.transducer_conf), "transducer_conf": None}.items():
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
    nj: int = option(1, help="number of decoding processes, with one thread each", group=WORK, least=1, most=1024)
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
    yield from espnet2_faults(values)


RULES = Rules(translate=translate_espnet1, check=option_faults)
"""Reads ESPnet1's decoding files, too."""


def parse_inference(argv: Sequence[str], *, description: str | None = None) -> InferenceOptions:
    """The options of `tympan asr_inference`."""
    return parse_args(InferenceOptions, argv, prog="tympan asr_inference", description=description, rules=RULES)


def given_options(schema: type[Any], argv: Sequence[str]) -> set[str]:
    """Names of the options given on a command line and in its --config files, after it was parsed without errors."""
    line = read_command_line(argv, options_of(schema), Mistakes())
    files = [read_layer(Path(path), RULES) for path in line.configs]
    return {*line.values, *(name for layer in files for name in layer.values)}


def check_decode_config(path: Path, arguments: Sequence[str] = ()) -> InferenceOptions:
    """The options of `asr_inference --config PATH ARGUMENTS`, except data, output and model.

    UserError with file and line. Options that the search does not use are logged as a warning.
    """
    given = ["--config", str(path), *arguments]
    required = ["--output_dir", "-", "--data_path_and_name_and_type", "-,speech,sound"]
    with contextlib.redirect_stderr(io.StringIO()):
        options = parse_inference([*required, *given])
    if options.search is not None:
        kind = find_search(options.search)
        kind.own_options(options.search_conf)
        if unused := unused_options(kind, given_options(InferenceOptions, given)):
            logger.warning("%s: %s", path, unused)
    return options


def read_settings(path: Path) -> dict[str, Any]:
    """The checked options of the decode.yaml in a model's folder. Errors name file and line."""
    layer = read_layer(path, RULES)
    options = resolve(DecodeOptions, [layer], rules=RULES)
    # transducer_conf becomes search and search_conf
    names = dict.fromkeys(
        [*layer.values, "search", "search_conf", "nbest"] if "transducer_conf" in layer.values else layer.values
    )
    return {name: getattr(options, name) for name in names if name != "transducer_conf"}


def read_decode_config(path: Path) -> DecodeOptions:
    """The search options in a configuration of asr_inference. Other options are ignored."""
    layer = read_layer(path, RULES)
    known = options_of(DecodeOptions)
    mine = Layer({name: value for name, value in layer.values.items() if name in known}, layer.where)
    options = resolve(DecodeOptions, [mine], rules=RULES)
    resolve(InferenceOptions, [layer], rules=RULES, is_complete=False)
    if options.search is not None and (unused := unused_options(find_search(options.search), set(mine.values))):
        logger.warning("%s: %s", path, unused)
    return options


def merged_options(settings: Mapping[str, Any], given: Mapping[str, Any], *, allow_import: bool) -> DecodeOptions:
    """The options of a model's folder, overridden by the user's. A folder may not choose code to run."""
    named = settings.get("search")
    if named is not None and is_import(named) and "search" not in given and not allow_import:
        raise UserError(
            f"the model's decode.yaml names the search '{named}': using it runs its code. "
            "If you trust it, use --allow_import true"
        )
    return DecodeOptions(**{**settings, **given})


def part_of(options: Any, schema: type[Options]) -> Options:
    """The options of one class among those of a command that inherits it."""
    return schema(**{name: getattr(options, name) for name in options_of(schema)})


def unused_options(kind: SearchKind, given: set[str]) -> str | None:
    """A message about given options that this search does not use."""
    known = [name for name in options_of(DecodeOptions) if name not in ("search", "search_conf", "transducer_conf")]
    # The error message of search lexicon asks for lm_weight 0, so it is allowed.
    ignored = () if kind.takes_lm else ("lm_weight",)
    unused = [name for name in known if name in given and name not in (*kind.uses, *ignored)]
    unused += [name for name, weight in WEIGHTED.items() if name in given and weight not in (*kind.uses, *ignored)]
    return f"search {kind.name} does not use {', '.join(unused)}" if unused else None


def report_idle(kind: SearchKind | None, given: Mapping[str, Any], *, has_lm: bool, has_ngram: bool) -> None:
    """Warn about given options without effect: the search does not use them, or their model is missing.

    `kind` None: the search is not known yet.
    """
    if kind is not None and (unused := unused_options(kind, set(given))):
        logger.warning(unused)
    for name, is_there, model in (
        ("lm_weight", has_lm, "neural language model (asr_inference and pack take one as --lm_file)"),
        ("ngram_weight", has_ngram, "n-gram (asr_inference and pack take one as --ngram_file)"),
    ):
        if given.get(name) and not is_there and (kind is None or name in kind.uses):
            logger.warning("%s %g has no effect: there is no %s", name, given[name], model)


def report_missing_ctc(has_ctc: bool, given: Collection[str], kind: SearchKind) -> None:
    """Warn about a given ctc_weight if the model has no CTC."""
    if not has_ctc and "ctc_weight" in given and "ctc_weight" in kind.uses:
        logger.warning("ctc_weight has no effect: the model was trained without CTC")
