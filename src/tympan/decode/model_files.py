"""Where the files of a model are: a packed folder, an experiment directory, a model hub, or given one by one."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tympan.config.yaml_text import read_yaml
from tympan.decode.options import ModelFileOptions, read_settings
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
"""How a model's stored features were made; it names their statistics."""


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
    root: Path | None = None
    settings: dict[str, Any] = field(default_factory=dict)

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
        """All files that are missing, in one message."""
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
        """The configuration as it is written."""
        found = read_yaml(self.asr_train_config).value
        return found if isinstance(found, dict) else {}

    def lexicon(self) -> Path | None:
        """The file that the configuration names for the phones of words, where it names one."""
        config = self.config_values()
        name = config.get("g2p")
        if name is None or name in PACKAGES or (self.token_type or config.get("token_type")) != "phn":
            return None
        # Another toolkit's package is no file: building the tokenizer says what there is.
        return self.find(name) if Path(name).suffix or Path(name).is_file() else None

    def symbol(self, name: str, default: str) -> str:
        """A symbol of the configuration's `preprocessor_conf`, such as `space_symbol`."""
        conf = self.config_values().get("preprocessor_conf")
        return str((conf or {}).get(name, default))

    def companions(self) -> dict[str, Path]:
        """What else decides about the results: small files that the configuration names, or that lie beside it."""
        named = self.config_values()
        found = {"lexicon": self.lexicon()}
        for name in ("token_list", "bpemodel", "non_linguistic_symbols"):
            if isinstance(named.get(name), str):
                # A model carries names of files that decoding does not need.
                with contextlib.suppress(UserError):
                    found[f"{name} of the configuration"] = self.find(named[name])
        features = self.asr_train_config.parent / FEATURES_FILE
        if features.is_file():
            found[FEATURES_FILE] = features
            statistics = _read_mapping(features).get("cmvn")
            found["cmvn"] = None if statistics is None else features.parent / statistics
        return {name: path for name, path in found.items() if path is not None and path.is_file()}

    def find(self, path: str) -> Path:
        """A path that a configuration names: as it is, or from the model's folder."""
        folders = [self.asr_train_config.parent] if self.root is None else [self.root, self.asr_train_config.parent]
        for candidate in [*(folder / path for folder in folders), Path(path)]:
            if candidate.exists():
                return candidate
        raise UserError(f"{self.asr_train_config}: it names {path}, which is neither in {folders[0]} nor here")


def find_model(model: str | os.PathLike[str]) -> ModelFiles:
    """The files of a folder or of ESPnet2's zip file; another name is looked up on the model hub."""
    folder = Path(model)
    if folder.is_file() and zipfile.is_zipfile(folder) and folder.suffix != ".pth":
        folder = unpacked(folder)
    if not folder.is_dir():
        if folder.exists():
            raise UserError(
                f"{folder}: a model is a folder (with config.yaml and weights) or a zip file of ESPnet2's; "
                "this is another file"
            )
        folder = download(os.fspath(model))
    if (folder / "meta.yaml").exists():
        return _published(folder)
    config = folder / CONFIG
    if not config.exists():
        raise UserError(f"{folder}: this is no model folder: it has no {CONFIG}. `tympan pack` makes one")
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


def chosen_files(options: ModelFileOptions, *, model: str | os.PathLike[str] | None, flag: str) -> ModelFiles:
    """The files that a command names one by one, over those of a folder; `flag` is the option that names the folder."""
    names = [item.name for item in dataclasses.fields(ModelFileOptions) if item.name != "allow_import"]
    given: dict[str, Any] = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if model is not None:
        return dataclasses.replace(find_model(model), **given)
    if options.asr_model_file is None:
        raise UserError(f"--asr_model_file FILE (with --asr_train_config), or {flag} FOLDER, says which model to use")
    # ESPnet2 finds the configuration beside the weights.
    given.setdefault("asr_train_config", options.asr_model_file.parent / CONFIG)
    if options.lm_file is not None:
        given.setdefault("lm_train_config", options.lm_file.parent / CONFIG)
    return ModelFiles(**given)


def _published(folder: Path) -> ModelFiles:
    """ESPnet2's packed models: meta.yaml names the files below the folder."""
    meta = _read_mapping(folder / "meta.yaml")
    named = {**(meta.get("files") or {}), **(meta.get("yaml_files") or {})}
    for name in ("asr_train_config", "asr_model_file"):
        if not isinstance(named.get(name), str):
            raise UserError(f"{folder / 'meta.yaml'}: names no {name}: this is no packed recogniser")
    files = {item.name: folder / named[item.name] for item in dataclasses.fields(ModelFiles) if item.name in named}
    return ModelFiles(root=folder, **files)


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
        f"{folder}: none of {', '.join(names)} is here ({found}). Give a folder that `tympan pack` made; asr_inference "
        "and pack also take the file itself, as --asr_model_file"
    )


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not readable as YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: must be a mapping of names to values")
    return values


# The model hub. Its package is optional.


def check_name(name: str) -> None:
    """UserError unless this is OWNER/NAME."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")) or name.endswith("/"):
        raise UserError(f"{name}: the name of a model on the hub is OWNER/NAME")


def download(name: str) -> Path:
    """OWNER/NAME of a model hub, into its cache."""
    try:
        check_name(name)
    except UserError:
        raise UserError(f"{name}: no such folder (and OWNER/NAME would be a model of the hub)") from None
    hub = _package(f"{name}: no such folder; to load it from a model hub")
    with _explained(f"{name}: no such folder, and the model hub says"):
        return Path(hub.snapshot_download(name))


def publish(folder: Path, name: str) -> str:
    """Put the folder there as OWNER/NAME, created if it is not there. Returns its address."""
    check_name(name)
    hub = _package("--push_to")
    with _explained(f"{folder} could not be published as {name}, the model hub says"):
        api = hub.HfApi()
        address = str(api.create_repo(name, exist_ok=True))
        api.upload_folder(folder_path=folder, repo_id=name)
    return address


def check_can_publish(name: str) -> None:
    """Before the work of packing: the name, and the package."""
    check_name(name)
    _package("--push_to")


def _package(what: str) -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise UserError(f"{what}: pip install 'tympan[hub]'") from None


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Errors of the hub, and of the network, are reported without a traceback."""
    try:
        yield
    except Exception as error:
        # Any of them: the package's transport, and with it the kind of its errors, changes from release to release.
        raise UserError(f"{what}: {type(error).__name__}: {error}") from error
