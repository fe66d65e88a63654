"""`tympan recipe new`: a recipe directory for one's own data, without writing shell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tympan.config import argument, option, parse_args
from tympan.errors import UserError
from tympan.runtime.atomic import atomic_write

CONF = Path(__file__).parent / "conf"

RUN_SH = """#!/usr/bin/env bash
# Your data from audio to error rate. `./run.sh --help` lists the options, `./run.sh --check` looks before it works.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo {tympan})" recipe custom --config conf/recipe.yaml "$@"
"""

RECIPE_YAML = """# What run.sh passes to `tympan recipe custom`; options on its command line come after and win.
train_dir: {train_dir}
dev_dir: {dev_dir}
test_dir: {test_dir}
token_type: {token_type}
nbpe: {nbpe}
ngpu: {ngpu}
"""

PHONES_YAML = """lexicon: conf/lexicon.txt
feats_type: raw
lm_config: ""
"""


@dataclass(frozen=True)
class Options:
    name: Path = argument(help="directory to make, such as egs/mine/asr1")
    train_dir: Path = option(help="Kaldi-style data directory to train on")
    dev_dir: Path = option(help="data directory to choose by")
    test_dir: list[Path] = option([], help="data directories to decode besides; may be repeated")
    token_type: Literal["char", "bpe", "word"] = option("char", help="kind of tokens")
    lexicon: Path | None = option(None, help="how words are said, WORD P1 P2 ... a line: tokens are its phones then")
    nbpe: int = option(100, help="tokens to make with token_type bpe")
    ngpu: int = option(0, help="accelerators to train with; 0 is the CPU")


def main(argv: Sequence[str]) -> int:
    options = parse_args(Options, argv, prog="tympan recipe new", description=__doc__)
    new_recipe(options)
    print(f"{options.name}/run.sh is ready; conf/ holds what you may change. Begin with: {options.name}/run.sh --check")
    return 0


def new_recipe(options: Options) -> None:
    """Write run.sh and conf/. An existing recipe is not touched."""
    import sys

    from tympan.data.kaldi_dir import DataDir
    from tympan.text.lexicon import read_lexicon

    if options.lexicon is not None and options.token_type != "char":
        raise UserError("--lexicon makes phones the tokens: leave out --token_type")
    if (options.name / "run.sh").exists():
        raise UserError(f"{options.name} is a recipe already. Choose another name, or change its conf/recipe.yaml.")
    for directory in (options.train_dir, options.dev_dir, *options.test_dir):
        if not DataDir.read(directory).text:
            raise UserError(f"{directory}: it has no text; a recipe needs transcripts for every set.")
    values = {
        "train_dir": options.train_dir.resolve(),
        "dev_dir": options.dev_dir.resolve(),
        "test_dir": [str(place.resolve()) for place in options.test_dir],
        "token_type": options.token_type if options.lexicon is None else "phn",
        "nbpe": options.nbpe,
        "ngpu": options.ngpu,
    }
    recipe_yaml, kind = RECIPE_YAML.format(**values), "new"
    if options.lexicon is not None:
        read_lexicon(options.lexicon)
        _write(options.name / "conf" / "lexicon.txt", options.lexicon.read_text(encoding="utf-8"))
        recipe_yaml, kind = recipe_yaml + PHONES_YAML, "new_phones"
    _write(options.name / "conf" / "recipe.yaml", recipe_yaml)
    for source in [*CONF.glob(f"{kind}/*.yaml"), *CONF.glob("*.conf"), CONF / "specaug.yaml"]:
        _write(options.name / "conf" / source.name, source.read_text(encoding="utf-8"))
    _write(options.name / "run.sh", RUN_SH.format(tympan=Path(sys.executable).with_name("tympan")))
    (options.name / "run.sh").chmod(0o755)


def _write(path: Path, content: str) -> None:
    with atomic_write(path) as stream:
        stream.write(content)
