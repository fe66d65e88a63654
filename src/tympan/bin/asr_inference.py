"""Recognise the utterances of a data directory: batched joint search, ESPnet2's options and output tree."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tympan.config import option, parse_args
from tympan.config.option import not_yet
from tympan.errors import UserError

MODEL, SEARCH, WORK = "model", "search", "work"

logger = logging.getLogger(__name__)

_LENGTHS = ("maxlenratio", "minlenratio")
_CTC_ALONE = ("ctc_weight", "lm_weight", "ngram_weight", "penalty", "normalize_length", *_LENGTHS)
UNUSED = {"ctc_greedy": ("beam_size", "nbest", *_CTC_ALONE), "ctc_prefix": _CTC_ALONE, "rescore": _LENGTHS}
"""Settings that a search has no use for."""


@dataclass(frozen=True)
class Options:
    output_dir: Path = option(help="results go here; an interrupted decode goes on")
    data_path_and_name_and_type: list[tuple[str, str, str]] = option(
        help="PATH,speech,TYPE such as data/test/wav.scp,speech,sound"
    )
    key_file: Path | None = option(None, help="decode the utterances of this file alone")
    log_level: Literal["CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG", "NOTSET"] = option(
        "INFO", help="how much is told"
    )
    seed: int = option(0, help="accepted as ESPnet2 does; nothing here is random")

    asr_train_config: Path | None = option(None, help="config.yaml of the recogniser, ESPnet2's too", group=MODEL)
    asr_model_file: Path | None = option(None, help="its weights (.pth or .safetensors)", group=MODEL)
    lm_train_config: Path | None = option(None, help="config.yaml of a neural language model", group=MODEL)
    lm_file: Path | None = option(None, help="its weights", group=MODEL)
    ngram_file: Path | None = option(None, help="n-gram: ARPA, or Tympan's binary file", group=MODEL)
    model_tag: str | None = option(
        None, help="instead of the above: a packed folder, or OWNER/NAME on a hub, with its settings", group=MODEL
    )
    token_type: Literal["char", "bpe", "word", "phn"] | None = option(None, help="instead of the config's", group=MODEL)
    bpemodel: Path | None = option(None, help="instead of the config's", group=MODEL)
    allow_import: bool = option(False, help="allow a config to name a class of yours, and run its code", group=MODEL)

    search: Literal["joint", "ctc_greedy", "ctc_prefix", "rescore", "lexicon"] = option(
        "joint",
        help="joint; CTC alone, the best path or the best texts; those, rescored by all the others; words of a lexicon",
        group=SEARCH,
    )
    beam_size: int = option(20, help="hypotheses kept", group=SEARCH)
    nbest: int = option(1, help="hypotheses written", group=SEARCH)
    ctc_weight: float = option(0.5, help="of CTC; the decoder has the rest", group=SEARCH)
    lm_weight: float = option(1.0, help="of the neural language model", group=SEARCH)
    ngram_weight: float = option(0.9, help="of the n-gram (log10)", group=SEARCH)
    ngram_scorer: Literal["full", "part"] = option("full", help="before or after pre-selection", group=SEARCH)
    ngram_scores_end: bool = option(
        False, help="the n-gram knows the end as </s>; false: an unknown word, as with ESPnet2", group=SEARCH
    )
    penalty: float = option(0.0, help="added for every token; for every word with search lexicon", group=SEARCH)
    maxlenratio: float = option(
        0.0, help="0: end detection; positive: share of the frames; negative: that many tokens", group=SEARCH
    )
    minlenratio: float = option(0.0, help="likewise, for the shortest", group=SEARCH)
    normalize_length: bool = option(False, help="rank by score a token", group=SEARCH)

    batch_size: int = option(16, help="utterances decoded together; the result is the same for any", group=WORK)
    max_batch_s: float = option(240.0, help="bound on memory: padded seconds in a batch", group=WORK)
    max_piece_s: float = option(60.0, help="longer recordings are cut at pauses; 0: never", group=WORK)
    ngpu: int = option(0, help="accelerators: 0 or 1", group=WORK)
    device: Literal["cpu", "cuda", "npu", "mps"] | None = option(None, help="kind of accelerator", group=WORK)
    dtype: Literal["float16", "bfloat16", "float32", "float64"] = option("float32", help="number format", group=WORK)
    num_workers: int = option(1, help="threads that read recordings", group=WORK)
    nj: int = option(1, help="processes, one thread each", group=WORK)
    executor: Literal["local", "dask"] = option("local", help="where they run", group=WORK)
    dask_address: str | None = option(None, help="of the Dask scheduler", group=WORK)
    resume: bool = option(True, help="go on with an interrupted decode; false begins again", group=WORK)
    allow_pipes: bool = option(False, help="run the commands that a wav.scp ends with '|'", group=WORK)

    allow_variable_data_keys: bool = not_yet(False, instead="the data name is speech")
    word_lm_train_config: str | None = not_yet(None, instead="use a language model over the same tokens")
    word_lm_file: str | None = not_yet(None, instead="use a language model over the same tokens")
    enh_s2t_task: bool = not_yet(False, instead="leave it out")
    multi_asr: bool = not_yet(False, instead="leave it out")
    quantize_asr_model: bool = not_yet(False, instead="use --dtype bfloat16")
    quantize_lm: bool = not_yet(False, instead="use --dtype bfloat16")
    quantize_modules: list[str] = not_yet(["Linear"], instead="leave it out")
    quantize_dtype: str = not_yet("qint8", instead="leave it out")
    streaming: bool = not_yet(False, instead="leave it out")
    hugging_face_decoder: bool = not_yet(False, instead="leave it out")
    hugging_face_decoder_conf: dict[str, Any] = not_yet({}, instead="leave it out")
    transducer_conf: dict[str, Any] | None = not_yet(None, instead="it belongs to the transducer")
    time_sync: bool = not_yet(False, instead="use --search ctc_prefix or rescore")
    lang_prompt_token: str | None = not_yet(None, instead="leave it out")
    nlp_prompt_token: str | None = not_yet(None, instead="leave it out")
    prompt_token_file: str | None = not_yet(None, instead="leave it out")
    partial_ar: bool = not_yet(False, instead="leave it out")
    threshold_probability: float = not_yet(0.99, instead="it belongs to partial_ar")
    max_seq_len: int = not_yet(5, instead="it belongs to partial_ar")
    max_mask_parallel: int = not_yet(-1, instead="it belongs to partial_ar")


def main(argv: Sequence[str] | None = None) -> int:
    from tympan.config.espnet1 import translate_espnet1
    from tympan.config.resolve import Rules

    parse = partial(
        parse_args,
        Options,
        prog="tympan asr_inference",
        description=__doc__,
        rules=Rules(translate=translate_espnet1),
    )
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parse(arguments)
    _settings(options)
    packed = _packed_settings(options)
    if packed is not None:
        # What the folder brings comes first, and what is said here wins.
        options = parse(["--config", str(packed), *arguments])

    from tympan.decode.session import Work, decode_data, read_sources
    from tympan.runtime.log import setup_logging

    setup_logging(options.log_level, options.output_dir / "logdir" / "asr_inference.log")
    spec = _spec(options)
    _tell_unused(options, spec.files)
    sources = read_sources(options.data_path_and_name_and_type, key_file=options.key_file)
    work = Work(nj=options.nj, executor=options.executor, dask_address=options.dask_address, resume=options.resume)
    summary = decode_data(sources, spec, options.output_dir, work)
    speed = f"RTF {summary.elapsed_s / summary.audio_s:.3f}, " if summary.audio_s else ""
    print(
        f"{summary.decoded} of {len(sources)} utterances decoded "
        f"({speed}{summary.audio_s:.0f} s of audio in {summary.elapsed_s:.0f} s): {options.output_dir / 'text'}"
    )
    return report_failures(summary.failures, options.output_dir / "failed")


def report_failures(failures: Sequence[Any], listed_in: Path) -> int:
    """Name the first few on stderr; the exit code says that there were some."""
    for failure in failures[:10]:
        print(f"tympan: not decoded: {failure.id}: {failure.error}", file=sys.stderr)
    if failures:
        print(f"tympan: {len(failures)} utterances were not decoded: {listed_in}", file=sys.stderr)
    return 1 if failures else 0


def _packed_settings(options: Options) -> Path | None:
    """decode.yaml of a folder that `tympan pack` made."""
    if options.model_tag is None:
        return None
    from tympan.decode.model_files import SETTINGS, find_model

    files = find_model(options.model_tag)
    return files.root / SETTINGS if files.settings and files.root is not None else None


def _spec(options: Options) -> Any:
    from tympan.decode.recognizer import BatchLimits
    from tympan.decode.task import DecodeSpec
    from tympan.runtime.device import choose_kind

    if options.ngpu > 1:
        raise UserError("--ngpu is 0 or 1 here; run several decodes with --key_file for several accelerators")
    settings = _settings(options)
    for name in ("batch_size", "nj", "num_workers"):
        if getattr(options, name) < (0 if name == "num_workers" else 1):
            raise UserError(f"--{name} must be at least {0 if name == 'num_workers' else 1}")
    spec = DecodeSpec(
        files=_files(options),
        settings=settings,
        limits=BatchLimits(options.batch_size, options.max_batch_s, options.max_piece_s),
        device=choose_kind(ngpu=options.ngpu, device=options.device),
        dtype=options.dtype,
        allow_import=options.allow_import,
        allow_pipes=options.allow_pipes,
        num_workers=options.num_workers,
    )
    spec.files.check()
    return spec


def _tell_unused(options: Options, files: Any) -> None:
    """ESPnet2 takes these, too; whoever gives them believes that they do something."""
    usual = {item.name: item.default for item in fields(Options)}
    for name, file, kind in (
        ("lm_weight", files.lm_file, "neural language model (--lm_file)"),
        ("ngram_weight", files.ngram_file, "n-gram (--ngram_file)"),
    ):
        value = getattr(options, name)
        if file is None and value not in (0.0, usual[name]):
            logger.warning("--%s %g changes nothing: there is no %s", name, value, kind)
    given = [f"--{name}" for name in UNUSED.get(options.search, ()) if getattr(options, name) != usual[name]]
    if given:
        logger.warning("search %s does not use %s", options.search, ", ".join(given))


def _settings(options: Options) -> Any:
    from tympan.decode.settings import DecodeSettings

    return DecodeSettings(**{item.name: getattr(options, item.name) for item in fields(DecodeSettings)})


def _files(options: Options) -> Any:
    import dataclasses

    from tympan.decode.model_files import ModelFiles, find_model

    names = ("asr_train_config", "asr_model_file", "lm_train_config", "lm_file", "ngram_file", "bpemodel", "token_type")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.model_tag is not None:
        return dataclasses.replace(find_model(options.model_tag), **given)
    if "asr_model_file" not in given:
        raise UserError(
            "--asr_model_file FILE (with --asr_train_config), or --model_tag FOLDER, says which model to use"
        )
    if "asr_train_config" not in given:
        # ESPnet2 finds the configuration beside the weights.
        given["asr_train_config"] = options.asr_model_file.parent / "config.yaml"  # type: ignore[union-attr]
    if "lm_file" in given and "lm_train_config" not in given:
        given["lm_train_config"] = options.lm_file.parent / "config.yaml"  # type: ignore[union-attr]
    return ModelFiles(**given)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
