"""Your own data directories as a corpus, and `tympan recipe new`, which creates a recipe directory for them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tympan.config import parse_args
from tympan.data.audio import is_pipe, split_ark
from tympan.data.folder import read_folder
from tympan.data.hf_dataset import is_dataset, read_dataset
from tympan.data.kaldi_dir import DataDir
from tympan.data.manifest import read_manifest
from tympan.errors import UserError
from tympan.recipe.corpus import LABELS, Corpus, data_files
from tympan.recipe.draft import make_draft
from tympan.recipe.options import NewOptions, RecipeOptions
from tympan.recipe.survey import common_rate, low_rates, several_channels, shared, survey
from tympan.runtime.atomic import atomic_write
from tympan.runtime.child import PYTHON

RUN_SH = """#!/usr/bin/env bash
# Run the recipe on your data, from audio to error rate. See `./run.sh --help`; `./run.sh --check` checks the setup.
cd "$(dirname "$0")" || exit 1
exec "$(command -v tympan || echo {tympan})" recipe custom --config conf/recipe.yaml "$@"
"""


def own_corpus(options: RecipeOptions) -> Corpus:
    """The corpus of --train_dir, --dev_dir and --test_dir."""
    given = {"train": options.train_dir, "dev": options.dev_dir}
    missing = [f"--{name}_dir" for name, path in given.items() if not path]
    if missing:
        wanted = " and ".join(missing)
        raise UserError(f"corpus 'custom' needs {wanted}: a Kaldi-style data directory with wav.scp, text and utt2spk.")
    for path in options.test_dir:
        name = Path(path).name
        name = f"{name}_test" if name in ("train", "dev") else name
        if name in given:
            raise UserError(
                f"--test_dir {given[name]} and {path}: both are named '{name}', so one would overwrite the "
                "results of the other."
            )
        given[name] = path
    paths = {name: Path(path) for name, path in given.items()}
    return Corpus(
        name="custom",
        tests=tuple(name for name in paths if name not in ("train", "dev")),
        directories=paths,
        segmented=frozenset(name for name, path in paths.items() if (path / "segments").exists()),
        sources=lambda data: [file for path in paths.values() for file in data_files(path)],
        prepare=lambda data: {name: _read_with_text(path) for name, path in paths.items()},
        check=partial(_require_directories, options),
    )


def _require_directories(options: RecipeOptions) -> None:
    """Check that the data directories exist and have the files that a recipe needs."""
    mistakes = []
    for name, paths in (("train", [options.train_dir]), ("dev", [options.dev_dir]), ("test", options.test_dir)):
        for path in paths:
            lacking = [file for file in ("wav.scp", *LABELS) if not Path(path, file).is_file()]
            if not Path(path).is_dir():
                mistakes.append(f"--{name}_dir: there is no directory {path}")
            elif lacking:
                mistakes.append(f"--{name}_dir: {path} has no {', '.join(lacking)}; docs/data.md describes these files")
    if mistakes:
        raise UserError("\n".join(mistakes))


def _read_with_text(path: Path) -> DataDir:
    directory = DataDir.read(path)
    without = [utterance for utterance in directory.utterances if not directory.text.get(utterance)]
    if without:
        raise UserError(
            f"{path / 'text'}: {len(without)} utterances have no text, the first is '{without[0]}'. "
            f"`tympan validate_data {path}` lists every fault, `tympan fix_data {path}` drops such utterances."
        )
    return directory


def main(argv: Sequence[str]) -> int:
    """`tympan recipe new`."""
    description = (
        "`tympan recipe new`: create a recipe directory for your own data. `tympan recipe new DIR --like CORPUS` "
        "copies the recipe of a corpus instead."
    )
    options = parse_args(NewOptions, argv, prog="tympan recipe new", description=description)
    for line in new_recipe(options):
        print(line)
    print(
        f"{options.name}/run.sh is ready; its configuration files are in conf/. Start with: {options.name}/run.sh "
        "--check"
    )
    return 0


def new_recipe(options: NewOptions) -> list[str]:
    """Write run.sh and conf/, sized by the data. Returns lines about the data and what was chosen.

    An existing recipe is not changed.
    """
    if (options.name / "run.sh").exists():
        raise UserError(f"{options.name} is already a recipe. Choose another name, or edit its conf/recipe.yaml.")
    if options.lexicon is not None and options.token_type is not None:
        raise UserError("--lexicon makes the phones of the lexicon the tokens: remove --token_type")
    options = _with_data_dirs(options)
    train, dev, *tests = (survey(place) for place in (options.train_dir, options.dev_dir, *options.test_dir))
    train = replace(train, model_rate=common_rate([train, dev, *tests]))
    draft = make_draft(options, train, dev)
    for name, content in draft.files.items():
        _write(options.name / "conf" / name, content)
    _write(options.name / "run.sh", RUN_SH.format(tympan=Path(PYTHON).with_name("tympan")))
    (options.name / "run.sh").chmod(0o755)
    described = [f"{found.path}: {found.describe()}" for found in (train, dev, *tests)]
    warnings = [line for other in (dev, *tests) for line in shared(train, other)]
    warnings += [*low_rates([train, dev, *tests], train.trained_rate), *several_channels([train, dev, *tests])]
    return [*described, *draft.notes, *(f"warning: {line}" for line in dict.fromkeys(warnings))]


def _with_data_dirs(options: NewOptions) -> NewOptions:
    """The options with a data directory in place of every manifest and every folder of recordings.

    A data directory whose paths are relative to the current directory is copied, because run.sh works in another one.
    """

    def data_dir(place: Path, name: str) -> Path:
        target = options.name / "corpus" / name
        if place.is_file():
            data = read_manifest(place)
        elif (place / "dataset_dict.json").is_file():
            raise UserError(
                f"{place} is a dataset of Hugging Face with several splits: name one, such as {place}/train"
            )
        elif is_dataset(place):
            data = read_dataset(place, audio_dir=target / "audio")
        elif place.is_dir() and not (place / "wav.scp").exists():
            data = read_folder(place)
        elif (place / "wav.scp").is_file() and _is_relative_to_here(directory := DataDir.read(place.resolve())):
            data = _absolute(directory)
        else:
            return place
        data.write(target)
        return target

    names = [place.stem if place.stem not in ("train", "dev") else "test" for place in options.test_dir]
    return replace(
        options,
        train_dir=data_dir(options.train_dir, "train"),
        dev_dir=data_dir(options.dev_dir, "dev"),
        test_dir=[data_dir(place, name) for place, name in zip(options.test_dir, names, strict=True)],
    )


def _is_relative_to_here(data: DataDir) -> bool:
    """Whether a recording is found from the current directory only, and not from everywhere."""
    located = data.located().wav.values()
    return any(not is_pipe(path) and not os.path.isabs(path) and os.path.exists(split_ark(path)[0]) for path in located)


def _absolute(data: DataDir) -> DataDir:
    found = {key: path if is_pipe(path) else os.path.abspath(path) for key, path in data.located().wav.items()}
    return DataDir(data.path, {**data.tables, "wav.scp": found})


def _write(path: Path, content: str) -> None:
    with atomic_write(path) as stream:
        stream.write(content)
