"""Read the options of decoding from commands and configuration files, and report those without effect.

This module does not import torch.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tympan.config.command_line import read_command_line
from tympan.config.espnet1 import translate_espnet1
from tympan.config.mistakes import Mistakes
from tympan.config.option import options_of
from tympan.config.parse import parse_args, read_layer
from tympan.config.registry import is_import
from tympan.config.resolve import Layer, Rules, resolve
from tympan.decode.options import DecodeOptions, InferenceOptions, option_faults
from tympan.decode.search import SearchKind, find_search
from tympan.errors import UserError

WEIGHTED = {"lm_file": "lm_weight", "ngram_file": "ngram_weight"}
"""Language models that a search may use, and the options with their weights."""

logger = logging.getLogger(__name__)

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
