"""The packages that Tympan imports, and what to do if one is missing or broken."""

from __future__ import annotations

import importlib
import importlib.util
from types import TracebackType
from typing import Any

from tympan.errors import UserError

NEEDED = {
    "torch": "torch",
    "numpy": "numpy",
    "yaml": "pyyaml",
    "pydantic": "pydantic",
    "soundfile": "soundfile",
    "soxr": "soxr",
    "kaldi_native_fbank": "kaldi-native-fbank",
    "kaldiio": "kaldiio",
    "sentencepiece": "sentencepiece",
    "rapidfuzz": "rapidfuzz",
    "safetensors": "safetensors",
    "tensorboard": "tensorboard",
    "matplotlib": "matplotlib",
    "tqdm": "tqdm",
    "numba": "numba",
}
"""Import name -> PyPI name of the packages that `pip install tympan` installs."""

EXTRAS = {
    "torch_npu": "npu",
    "distributed": "cluster",
    "dask_jobqueue": "cluster",
    "wandb": "wandb",
    "espeakng_loader": "demo",
    "huggingface_hub": "hub",
    "transformers": "hf",
    "datasets": "datasets",
    "tokenizers": "hf",
    "sacrebleu": "st",
    "kenlm": "kenlm",
    "h5py": "hdf5",
}
"""Import name -> name of the extra, as in `pip install 'tympan[hub]'`."""

FAILED_EXTENSION = "Failed to load the backend extension"
"""How torch's message begins if TORCH_DEVICE_BACKEND_AUTOLOAD is 1 and a package for a device is broken."""


def install_command(package: str, *, again: bool = False) -> str:
    """Return the command that installs a package, given its import name. `again` replaces a broken installation."""
    if again:  # of an extra that is installed already, pip would install nothing
        return f"pip install --force-reinstall --no-deps {NEEDED.get(package) or package.replace('_', '-')}"
    extra = f"'tympan[{EXTRAS[package]}]'" if package in EXTRAS else package
    return f"pip install {NEEDED.get(package, extra)}"


def import_optional(package: str, purpose: str) -> Any:
    """An optional package that `purpose` needs. UserError if it is missing or can't be imported."""
    try:
        return importlib.import_module(package)
    except Exception as error:  # a package may raise anything while it is imported
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package:
            raise UserError(f"{purpose} needs the package {package}: {install_command(package)}") from None
        raise UserError(f"{purpose}: {describe_import_error(error, package)}") from None


def import_fault(package: str) -> str | None:
    """Return why a package can't be imported and how to fix it, or None if it can be imported."""
    try:
        importlib.import_module(package)
    except Exception as error:  # a package may raise anything while it is imported
        return describe_import_error(error, package)
    return None


def describe_import_error(error: BaseException, package: str | None = None) -> str | None:
    """Return a message for a package that is missing or broken, or None if the error has another cause.

    `package` is the package that was imported. If it is None, it is taken from the traceback.
    """
    package = package or _imported_package(error.__traceback__)
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing == "tympan" or not (missing or package):
        return None
    if missing and package in (None, missing):
        return f"the package '{missing}' is not installed: {install_command(missing)}"
    assert package is not None
    if missing:
        return f"the package '{package}' needs '{missing}', which is not installed: {install_command(missing)}"
    return describe_broken(package, error)


def describe_broken(package: str, error: BaseException) -> str:
    """One message for a package that is installed and can't be imported."""
    reason = " ".join(str(error).split()) or "no reason given"
    if reason.startswith(FAILED_EXTENSION):
        return f"torch can't be imported: {reason} Unset the variable: Tympan then loads the extension where needed."
    return (
        f"the package '{package}' is installed, but can't be imported ({type(error).__name__}: {reason}). "
        f"Install it again: {install_command(package, again=True)}"
    )


def _imported_package(trace: TracebackType | None) -> str | None:
    """Return the package of NEEDED or EXTRAS that Tympan was importing, or None if the error has another cause."""
    found = None
    while trace is not None:
        code, module = trace.tb_frame.f_code, str(trace.tb_frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if package == "tympan":
            found = None
        elif found is None and code.co_name == "<module>" and package in (*NEEDED, *EXTRAS):
            found = package
        trace = trace.tb_next
    return found
