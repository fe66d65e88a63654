"""Recognizers as others publish them, without a config.yaml: Whisper, and CTC models of `transformers`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tympan.decode.ctc_folder import CtcFolder
from tympan.decode.whisper_folder import find_whisper
from tympan.errors import UserError
from tympan.files import explained

if TYPE_CHECKING:
    from torch import Tensor

_KIND = "a published model"


class PublishedModel(Protocol):
    """Such a model, as Tympan would have written it."""

    @property
    def path(self) -> Path:
        """The folder, or the file with everything."""
        ...

    @property
    def values(self) -> dict[str, Any]:
        """The options of the model and its tokens, as in config.yaml."""
        ...

    @property
    def settings(self) -> dict[str, Any]:
        """The options of decoding."""
        ...

    def weights(self) -> dict[str, Tensor]:
        """The weights in Tympan's names."""
        ...


@dataclass(frozen=True)
class _Explained:
    """Whatever reading the files of a model raises becomes one message that names it."""

    model: PublishedModel

    @property
    def path(self) -> Path:
        return self.model.path

    @property
    def values(self) -> dict[str, Any]:
        with explained(self.path, _KIND):
            return self.model.values

    @property
    def settings(self) -> dict[str, Any]:
        with explained(self.path, _KIND):
            return self.model.settings

    def weights(self) -> dict[str, Tensor]:
        with explained(self.path, _KIND):
            return self.model.weights()


def find_published(path: Path) -> PublishedModel | None:
    """The model in a `.pt` file or in a folder without config.yaml and meta.yaml; None if there is none."""
    with explained(path, _KIND):
        found = _find(path)
    return None if found is None else _Explained(found)


def _find(path: Path) -> PublishedModel | None:
    if (whisper := find_whisper(path)) is not None:
        return whisper
    is_other = (path / "config.yaml").exists() or (path / "meta.yaml").exists()
    if is_other or not (path / "config.json").is_file():
        return None
    return _ctc_folder(path)


def _ctc_folder(path: Path) -> CtcFolder:
    from tympan.models.pretrained.folder import read_architecture
    from tympan.models.pretrained.speech_encoder import FAMILIES

    architecture = read_architecture(path)
    family = architecture["model_type"]
    if family not in FAMILIES:
        raise UserError(
            f"{path}: not a speech recognizer that Tympan supports: model_type is '{family}', expected whisper, "
            f"{', '.join(FAMILIES)}"
        )
    names = [str(name) for name in architecture.get("architectures") or []]
    if names and not any(name.endswith("ForCTC") for name in names):
        raise UserError(
            f"{path}: a {names[0]} has no output layer for tokens, so it is not a recognizer yet. Train one with "
            f"`tympan asr_train --frontend huggingface --frontend_conf model={path}`"
        )
    return CtcFolder(path, architecture)
