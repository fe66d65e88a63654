"""Recognize the utterances of a data directory (ESPnet2's asr_inference)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.decode.espnet2_options import QuantizationOptions
from tympan.decode.options import BatchLimits, DecodeOptions, InferenceOptions, part_of
from tympan.decode.search import find_search
from tympan.decode.settings import given_options, merged_options, parse_inference, report_idle

if TYPE_CHECKING:
    from tympan.decode.journal import Result
    from tympan.decode.session import DecodeSpec


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_inference(arguments, partial(parse_inference, description=__doc__), name="asr_inference")


def run_inference(arguments: Sequence[str], parse: Callable[[Sequence[str]], InferenceOptions], *, name: str) -> int:
    """Decode with the options of the command line. `name` is the name of the command, for its log."""
    options = parse(arguments)
    packed = _packed_options(options)
    if packed is not None:
        # Options of the model folder come first, so that the command line overrides them.
        options = parse(["--config", str(packed), *arguments])

    from tympan.decode.session import Work, decode_data, read_utterances
    from tympan.runtime.log import setup_logging

    setup_logging(options.log_level, options.output_dir / "logdir" / f"{name}.log")
    spec = _spec(options, given=given_options(InferenceOptions, arguments))
    _report_idle(options, spec)
    utterances = read_utterances(options.data_path_and_name_and_type, key_file=options.key_file)
    work = Work(nj=options.nj, executor=options.executor, dask_address=options.dask_address, resume=options.resume)
    summary = decode_data(utterances, spec, options.output_dir, work)
    speed = f"RTF {summary.elapsed_s / summary.audio_s:.3f}, " if summary.audio_s else ""
    print(
        f"{summary.decoded} of {len(utterances)} utterances decoded "
        f"({speed}{summary.audio_s:.0f} s of audio in {summary.elapsed_s:.0f} s): {', '.join(map(str, summary.texts))}"
    )
    return report_failures(summary.failures, options.output_dir / "failed")


def report_failures(failures: Sequence[Result], listed_in: Path) -> int:
    """Print the first few to stderr; the exit code reports that some failed."""
    for failure in failures[:10]:
        print(f"tympan: not decoded: {failure.id}: {failure.error}", file=sys.stderr)
    if failures:
        print(f"tympan: {len(failures)} utterances were not decoded: {listed_in}", file=sys.stderr)
    return 1 if failures else 0


def _packed_options(options: InferenceOptions) -> Path | None:
    """decode.yaml of a folder that `tympan pack` made."""
    if options.model_tag is None:
        return None
    from tympan.decode.model_files import SETTINGS, find_model

    files = find_model(options.model_tag)
    given = {} if options.search is None else {"search": options.search}
    merged_options(files.settings, given, allow_import=options.allow_import)
    return files.root / SETTINGS if files.settings and files.root is not None else None


def _spec(options: InferenceOptions, *, given: set[str]) -> DecodeSpec:
    from tympan.decode.model_files import chosen_files
    from tympan.decode.session import DecodeSpec
    from tympan.runtime.device import choose_kind

    files = chosen_files(options, model=options.model_tag, flag="--model_tag")
    quantization, limits = part_of(options, QuantizationOptions), part_of(options, BatchLimits)
    if quantization.is_quantized:
        # The scale of a quantized layer's input is that of a whole batch.
        limits = replace(limits, batch_size=1)
    spec = DecodeSpec(
        files=files if options.token_type is None else replace(files, token_type=options.token_type),
        options=part_of(options, DecodeOptions),
        limits=limits,
        device=choose_kind(ngpu=options.ngpu, device=options.device),
        dtype=options.dtype,
        allow_import=options.allow_import,
        allow_pipes=options.allow_pipes,
        num_workers=options.num_workers,
        quantization=quantization,
        multi_asr=options.multi_asr,
        given=tuple(sorted(given)),
    )
    spec.files.check()
    return spec


def _report_idle(options: InferenceOptions, spec: DecodeSpec) -> None:
    """Done once here: otherwise each of several processes would do it."""
    kind = None if options.search is None else find_search(options.search)
    given = {name: value for name, value in vars(options).items() if name in spec.given}
    report_idle(kind, given, has_lm=spec.files.lm_file is not None, has_ngram=spec.files.ngram_file is not None)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
