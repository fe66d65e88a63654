"""Pack a model into a folder that can be moved, published and loaded by name."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True)
class Options:
    output_dir: Path = argument(help="the folder to write")
    model: Path | None = option(None, help="an experiment directory or folder to pack, instead of single files")
    asr_train_config: Path | None = option(None, help="config.yaml of the recogniser")
    asr_model_file: Path | None = option(None, help="its weights")
    lm_train_config: Path | None = option(None, help="config.yaml of a neural language model")
    lm_file: Path | None = option(None, help="its weights")
    ngram_file: Path | None = option(None, help="n-gram")
    bpemodel: Path | None = option(None, help="instead of the config's")
    decode_config: Path | None = option(
        None, help="YAML with decode settings (beam_size, ctc_weight, ...) to bring along (default: those of --model)"
    )
    push_to: str | None = option(
        None, help="OWNER/NAME on the model hub to publish the folder as, packed now or before (needs tympan[hub])"
    )
    allow_import: bool = option(False, help="allow a config to name a class of yours, and run its code")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan pack", description=__doc__)

    from tympan.decode.hub import check_can_publish, publish

    if options.push_to is not None:
        check_can_publish(options.push_to)
    folder = options.output_dir
    if not _is_packed_already(options):
        _pack(options)
    if options.push_to is not None:
        print(f"published: {publish(folder, options.push_to)}")
    return 0


def _is_packed_already(options: Options) -> bool:
    """`tympan pack FOLDER --push_to NAME` publishes a folder that was packed before."""
    sources = (options.model, options.asr_train_config, options.asr_model_file)
    return options.push_to is not None and not any(sources) and (options.output_dir / "config.yaml").exists()


def _pack(options: Options) -> None:
    from tympan.decode.pack import pack_model

    folder = pack_model(
        _files(options),
        options.output_dir,
        settings=_settings(options.decode_config),
        allow_import=options.allow_import,
    )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{folder}: {size / 1e6:.1f} MB. Try: tympan transcribe {shlex.quote(str(folder))} AUDIO")


def _files(options: Options) -> Any:
    from tympan.decode.model_files import ModelFiles, find_model

    names = ("asr_train_config", "asr_model_file", "lm_train_config", "lm_file", "ngram_file", "bpemodel")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.model is not None:
        return dataclasses.replace(find_model(options.model), **given)
    if "asr_train_config" not in given or "asr_model_file" not in given:
        raise UserError("--model EXPERIMENT, or --asr_train_config FILE and --asr_model_file FILE, say what to pack")
    return ModelFiles(**given)


def _settings(path: Path | None) -> Any:
    """Decode settings of a YAML file; keys of asr_inference that are no settings of the search are left out."""
    if path is None:
        return None
    from tympan.bin.asr_inference import Options as InferenceOptions
    from tympan.config.espnet1 import translate_espnet1
    from tympan.config.parse import read_layer
    from tympan.config.resolve import Rules, resolve
    from tympan.decode.settings import DecodeSettings

    rules = Rules(translate=translate_espnet1)
    inference = resolve(InferenceOptions, [read_layer(path, rules)], rules=rules, is_complete=False)
    return DecodeSettings(**{item.name: getattr(inference, item.name) for item in dataclasses.fields(DecodeSettings)})


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
