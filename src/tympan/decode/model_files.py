"""Find the files of a model: in a packed folder, an experiment directory, on a model hub, or given one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tympan.config.yaml_text import read_mapping, read_yaml
from tympan.decode.adapter_file import find_adapter
from tympan.decode.hub import download
from tympan.decode.options import ModelFileOptions
from tympan.decode.published import PublishedModel, find_published
from tympan.decode.settings import read_settings
from tympan.decode.zipped import unpacked
from tympan.errors import UserError
from tympan.text.phonemes import PACKAGES

CONFIG = "config.yaml"
SETTINGS = "decode.yaml"
WEIGHTS = (
    "model.safetensors",
    "model.pth",
    "valid.acc.ave.pth",
    "valid.acc.best.pth",
    "valid.*.ave.pth",
    "valid.*.best.pth",
)
NGRAMS = ("ngram.*", "ngram")
FEATURES_FILE = "features.yaml"
"""Describes how a model's stored features were made, and names the file with their statistics."""


@dataclass(frozen=True)
class ModelFiles:
    """`root` is where relative paths inside the configurations are looked for first."""

    asr_train_config: Path
    asr_model_file: Path
    lm_train_config: Path | None = None
    lm_file: Path | None = None
    ngram_file: Path | None = None
    token_type: str | None = None
    bpemodel: Path | None = None
    adapter: Path | None = None
    """Adapters to apply to the model: a file, or a folder that contains it."""
    root: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    published: PublishedModel | None = None
    """A model as others publish it, which has no config.yaml."""

    @property
    def paths(self) -> dict[str, Path | None]:
        """The files by the names of their options."""
        return {
            "asr_train_config": self.asr_train_config,
            "asr_model_file": self.asr_model_file,
            "lm_train_config": self.lm_train_config,
            "lm_file": self.lm_file,
            "ngram_file": self.ngram_file,
            "bpemodel": self.bpemodel,
        }

    def check(self) -> None:
        """UserError that lists every missing file."""
        missing = [
            f"--{name} {path}: no such file"
            for name, path in self.paths.items()
            if path is not None and not path.is_file()
        ]
        if (self.lm_train_config is None) != (self.lm_file is None):
            missing.append("a language model needs both --lm_train_config and --lm_file")
        if missing:
            raise UserError("\n".join(missing))

    def config_values(self) -> dict[str, Any]:
        """The values of the configuration file."""
        if self.published is not None:
            return self.published.values
        found = read_yaml(self.asr_train_config).value
        return found if isinstance(found, dict) else {}

    def lexicon(self) -> Path | None:
        """The lexicon file that the configuration names as g2p, if any."""
        config = self.config_values()
        name = None if config.get("g2p") is None else str(config["g2p"])
        if name is None or name in PACKAGES or (self.token_type or config.get("token_type")) != "phn":
            return None
        # A g2p package of another toolkit is not a file. Building the tokenizer reports the known ones.
        return self.find(name) if Path(name).suffix or Path(name).is_file() else None

    def symbol(self, name: str, default: str) -> str:
        """A symbol of the configuration's `preprocessor_conf`, such as `space_symbol`."""
        conf = self.config_values().get("preprocessor_conf")
        return str((conf or {}).get(name, default))

    def companions(self) -> dict[str, Path]:
        """Other files that the results depend on: small files named by the configuration or stored beside it."""
        named = self.config_values()
        found = {"lexicon": self.lexicon()}
        for name in ("token_list", "bpemodel", "non_linguistic_symbols"):
            if isinstance(named.get(name), str):
                # A configuration also names files that decoding does not need.
                with contextlib.suppress(UserError):
                    found[f"{name} of the configuration"] = self.find(named[name])
        features = self.asr_train_config.parent / FEATURES_FILE
        if features.is_file():
            found[FEATURES_FILE] = features
            statistics = read_mapping(features).get("cmvn")
            found["cmvn"] = None if statistics is None else features.parent / str(statistics)
        found["adapter"] = None if self.adapter is None else find_adapter(self.adapter)
        return {name: path for name, path in found.items() if path is not None and path.is_file()}

    def find(self, path: str) -> Path:
        """A path in the configuration, looked up in the model's folder or as it is."""
        folder = self.asr_train_config.parent
        packed = [] if self.root is None else [below(self.root, path), self.root / path]
        for candidate in [*packed, folder / path, Path(path)]:
            if candidate.exists():
                return candidate
        raise UserError(
            f"{self.asr_train_config}: refers to {path}, which is neither in {self.root or folder} nor in the current "
            "directory"
        )


def find_model(model: str | os.PathLike[str]) -> ModelFiles:
    """The files of a folder or of ESPnet2's zip file; another name is looked up on the model hub."""
    folder = Path(model)
    if folder.suffix == ".pt" and folder.is_file() and (whisper := find_published(folder)) is not None:
        return _published_files(whisper)
    if folder.is_file() and zipfile.is_zipfile(folder) and folder.suffix != ".pth":
        folder = unpacked(folder)
    if not folder.is_dir():
        if folder.exists():
            raise UserError(
                f"{folder}: a model must be a folder (with config.yaml and weights) or a zip file packed by "
                f"ESPnet2; this file is neither"
            )
        folder = download(os.fspath(model), weights=WEIGHTS)
    if (published := find_published(folder)) is not None:
        return _published_files(published)
    if (folder / "meta.yaml").exists():
        return _packed_by_espnet2(folder)
    config = folder / CONFIG
    if not config.exists():
        raise UserError(f"{folder}: not a model folder: it has no {CONFIG}. Use `tympan pack` to make a model folder")
    lm = folder / "lm"
    return ModelFiles(
        asr_train_config=config,
        asr_model_file=_first(folder, WEIGHTS),
        lm_train_config=lm / CONFIG if lm.is_dir() else None,
        lm_file=_first(lm, WEIGHTS) if lm.is_dir() else None,
        ngram_file=_ngram(folder),
        root=folder,
        settings=read_settings(folder / SETTINGS) if (folder / SETTINGS).exists() else {},
    )


def _published_files(model: PublishedModel) -> ModelFiles:
    path = model.path / "config.json" if model.path.is_dir() else model.path
    weights = _first(model.path, (*WEIGHTS[:1], "*.safetensors", "pytorch_model*.bin")) if model.path.is_dir() else path
    return ModelFiles(
        asr_train_config=path, asr_model_file=weights, root=path.parent, settings=model.settings, published=model
    )


def chosen_files(options: ModelFileOptions, *, model: str | os.PathLike[str] | None, flag: str) -> ModelFiles:
    """The files of a folder, overridden by files given one by one. `flag` is the option that names the folder."""
    names = [item.name for item in dataclasses.fields(ModelFileOptions) if item.name != "allow_import"]
    given: dict[str, Any] = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if model is not None:
        return dataclasses.replace(find_model(model), **given)
    if options.asr_model_file is None:
        raise UserError(f"no model given: use --asr_model_file FILE (with --asr_train_config), or {flag} FOLDER")
    # ESPnet2 finds the configuration beside the weights.
    given.setdefault("asr_train_config", options.asr_model_file.parent / CONFIG)
    if options.lm_file is not None:
        given.setdefault("lm_train_config", options.lm_file.parent / CONFIG)
    return ModelFiles(**given)


def _packed_by_espnet2(folder: Path) -> ModelFiles:
    """ESPnet2's packed models: meta.yaml names the files below the folder."""
    meta = read_mapping(folder / "meta.yaml")
    named: dict[str, Any] = {}
    for key in ("files", "yaml_files"):
        found = meta.get(key) or {}
        if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
            raise UserError(f"{folder / 'meta.yaml'}: damaged: '{key}' must be a mapping of names to files")
        named |= found
    for name in ("asr_train_config", "asr_model_file"):
        if name not in named:
            raise UserError(f"{folder / 'meta.yaml'}: has no entry '{name}', so it is not a packed recognizer")
    files: dict[str, Any] = {}
    for name in [item.name for item in dataclasses.fields(ModelFiles) if item.name in named]:
        if ".." in Path(named[name]).parts:
            raise UserError(f"{folder / 'meta.yaml'}: {name}: '{named[name]}' is outside of the model")
        files[name] = below(folder, named[name])
    return ModelFiles(root=folder, **files)


def below(folder: Path, path: str) -> Path:
    """The file of a packed model. ESPnet2 packs absolute paths without their root."""
    return folder / Path(path).relative_to(Path(path).anchor)


def _ngram(folder: Path) -> Path | None:
    found = (path for name in NGRAMS for path in sorted(folder.glob(name)) if path.is_file())
    return next(found, None)


def _first(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        for path in sorted(folder.glob(name)):
            return path
    others = sorted(path.name for path in folder.glob("*.pth"))
    found = f"found {', '.join(others)}" if others else "there are no weights"
    raise UserError(
        f"{folder}: contains none of {', '.join(names)} ({found}). Give a folder that `tympan pack` created; "
        f"asr_inference and pack also accept a weights file as --asr_model_file"
    )
