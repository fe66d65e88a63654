"""Convert an ESPnet1 configuration (training, language model, decoding, SpecAugment) to Tympan's options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, parse_args
from tympan.config.espnet1 import translation_of
from tympan.config.yaml_text import dump_yaml, not_a_mapping, read_yaml
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write


@dataclass(frozen=True)
class Options:
    """The options of `tympan convert_config`."""

    old: Path = argument(help="YAML file of ESPnet1 to convert")
    new: Path | None = argument(None, help="output file (default: the terminal)")


def main(argv: Sequence[str] | None = None) -> int:
    """Print or write the converted file. Notes about converted keys go to stderr."""
    options = parse_args(Options, argv, prog="tympan convert_config", description=__doc__)
    document = read_yaml(options.old)
    if not isinstance(document.value, dict):
        raise UserError(not_a_mapping(document))
    translation = translation_of(document)
    if translation is None:
        raise UserError(
            f"{options.old}: not an ESPnet1 configuration. An ESPnet2 configuration can be passed to --config as it is"
        )
    for note in translation.notes:
        print(f"tympan: note: {note}", file=sys.stderr)
    text = dump_yaml(translation.document.value)
    if options.new is None:
        print(text, end="")
    else:
        with atomic_write(options.new) as stream:
            stream.write(text)
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
