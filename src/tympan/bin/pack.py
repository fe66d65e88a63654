"""Pack a model into a self-contained folder that can be moved, published and loaded."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, option, parse_args
from tympan.decode.options import ModelFileOptions
from tympan.decode.settings import read_decode_config
from tympan.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options(ModelFileOptions):
    output_dir: Path = argument(help="output folder; with --outpath, the word asr")
    model: Path | None = option(
        None, help="experiment directory or packed model folder to pack, instead of single files"
    )
    decode_config: Path | None = option(
        None, help="YAML file of decoding options (beam_size, ctc_weight, ...) to pack instead of those of --model"
    )
    outpath: Path | None = option(
        None, help="write a zip file as ESPnet2's `pack asr` does, which both toolkits read, instead of a folder"
    )
    merge: bool = option(
        True,
        help="merge LoRA adapters into the weights; false: pack only the adapters, for the option --adapter of other "
        "commands",
    )
    push_to: str | None = option(
        None,
        help="publish the folder as OWNER/NAME on the Hugging Face hub; without a model, OUTPUT_DIR is a folder "
        "that was packed before (needs tympan[hub])",
    )
    # The last field, because it hides the function of its name.
    option: list[Path] = option([], help="with --outpath: another file or folder to pack; may be repeated")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan pack", description=__doc__)

    from tympan.decode.hub import check_can_publish, publish

    if options.push_to is not None:
        check_can_publish(options.push_to)
    if options.outpath is not None or options.option:
        return _pack_zip(options)
    folder = options.output_dir
    if not _is_packed_already(options):
        _pack(options)
    if options.push_to is not None:
        print(f"published: {publish(folder, options.push_to)}")
    return 0


def _pack_zip(options: Options) -> int:
    """`pack asr --asr_train_config FILE --asr_model_file FILE --option FILE --outpath FILE`, as asr.sh calls it."""
    if options.outpath is None:
        raise UserError("--option: is for --outpath; a packed folder contains what the model needs by itself")
    if str(options.output_dir) != "asr" or options.model is not None or options.push_to is not None:
        raise UserError("--outpath: is written as in ESPnet2: tympan pack asr --asr_train_config FILE --outpath FILE")
    from tympan.decode.pack_zip import pack_zip

    names = ("asr_train_config", "asr_model_file", "lm_train_config", "lm_file")
    files = {name: path for name in names if (path := getattr(options, name)) is not None}
    missing = [f"--{name}" for name in names[:2] if name not in files]
    if missing:
        raise UserError(f"{', '.join(missing)} must be given with --outpath")
    more = [path for path in (options.bpemodel, options.ngram_file) if path is not None]
    print(f"{pack_zip(files, [*options.option, *more], options.outpath)}")
    return 0


def _is_packed_already(options: Options) -> bool:
    """`tympan pack FOLDER --push_to NAME` publishes a folder that was packed before."""
    sources = (options.model, options.asr_train_config, options.asr_model_file)
    return options.push_to is not None and not any(sources) and (options.output_dir / "config.yaml").exists()


def _pack(options: Options) -> None:
    from tympan.decode.model_files import chosen_files
    from tympan.decode.pack import pack_adapter, pack_model

    files = chosen_files(options, model=options.model, flag="--model")
    if not options.merge:
        folder = pack_adapter(files, options.output_dir, allow_import=options.allow_import)
        print(f"{folder}: adapters. Try: tympan transcribe MODEL AUDIO --adapter {shlex.quote(str(folder))}")
        return
    folder = pack_model(
        files,
        options.output_dir,
        options=None if options.decode_config is None else read_decode_config(options.decode_config),
        allow_import=options.allow_import,
    )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB. Try: tympan transcribe {shlex.quote(str(folder))} AUDIO")


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
