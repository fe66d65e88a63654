"""Check the installation: versions, devices, and whether each part of Tympan works on this machine."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import option, parse_args
from tympan.errors import UserError
from tympan.runtime import ascend
from tympan.runtime.packages import EXTRAS, NEEDED, describe_import_error, import_fault, install_command

PURPOSES = {
    "torch_npu": "training on Ascend NPUs",
    "distributed": "run jobs on a Dask cluster",
    "dask_jobqueue": "Dask clusters of Slurm, PBS or SGE",
    "wandb": "logging to Weights & Biases",
    "espeakng_loader": "speech synthesis for the demo",
    "huggingface_hub": "models from a hub",
    "transformers": "pretrained speech encoders",
    "tokenizers": "tokens of pretrained models",
    "datasets": "datasets of Hugging Face",
    "sacrebleu": "BLEU and chrF of translations",
    "kenlm": "binary n-grams of KenLM",
    "h5py": "data type hdf5",
}


@dataclass(frozen=True)
class Options:
    ngpu: int = option(0, help="number of accelerators that must be available", least=0)
    device: str | None = option(None, help="accelerator type that must be available: cuda, npu, mps")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan check_install", description=__doc__)
    failed = [name for name in NEEDED if not _report(name)]
    for name, purpose in PURPOSES.items():
        print(f"  {name:<20} {_extra(name)}, extra {EXTRAS[name]}: {purpose}")
    if ascend.is_worth_a_report(options.device):
        for part in ascend.parts():
            print(f"  {'Ascend: ' + part.name:<20} {part}")
    for name, check in (
        ("machine", _machine),
        ("features", _features),
        ("training step", _training_step),
        ("decoding on a CPU", _frozen_products),
        ("device", lambda: _device(options)),
    ):
        try:
            print(f"  {name:<20} {check()}")
        except UserError as error:
            print(f"  {name:<20} DOES NOT WORK: {error}")
            failed.append(name)
        except Exception as error:
            reason = describe_import_error(error) or f"{type(error).__name__}: {error}"
            print(f"  {name:<20} DOES NOT WORK: {reason}")
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "everything that Tympan needs works on this machine")
    return 1 if failed else 0


def _report(name: str) -> bool:
    if (fault := import_fault(name)) is not None:
        print(f"  {name:<20} MISSING OR BROKEN: {fault}")
        return False
    try:
        version = importlib.metadata.version(NEEDED[name])
    except importlib.metadata.PackageNotFoundError:
        version = "installed"
    print(f"  {name:<20} {version}")
    return True


def _extra(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        return f"not installed ({install_command(name)})"
    if name == "torch_npu":
        return "installed" if ascend.load() is None else "BROKEN (see Ascend below)"
    fault = import_fault(name)
    return "installed" if fault is None else f"BROKEN: {fault}"


def _machine() -> str:
    from tympan.recipe.check import machine
    from tympan.runtime.cpu import FAST_BFLOAT16, IN_A_RECIPE, has_fast_bfloat16

    lines = [f"{name}: {value}" for name, value in machine(Path.cwd())]
    if has_fast_bfloat16():
        lines.append(FAST_BFLOAT16 + IN_A_RECIPE)
    return f"\n  {'':<20} ".join(lines)


def _features() -> str:
    import numpy as np

    from tympan.data.audio import Audio
    from tympan.features.extractor import FeatureOptions, compute_features

    samples = np.sin(np.arange(16_000) * 2 * np.pi * 150 / 16_000).astype(np.float32) * 0.1
    features = compute_features(Audio(samples, 16_000), FeatureOptions(), utterance="tone")
    return f"{features.shape[0]} frames of {features.shape[1]} values from one second of audio"


def _training_step() -> str:
    import torch

    layer = torch.nn.Linear(4, 2)
    log_probs = layer(torch.randn(5, 1, 4)).log_softmax(-1)
    loss = torch.nn.functional.ctc_loss(log_probs, torch.tensor([[1]]), torch.tensor([5]), torch.tensor([1]))
    torch.autograd.backward(loss)
    return "CTC forward and backward"


def _frozen_products() -> str:
    from tympan.nn.frozen import can_freeze

    return (
        "with oneDNN matrix products"
        if can_freeze()
        else "works, but slower: this torch build lacks oneDNN matrix products"
    )


def _device(options: Options) -> str:
    from tympan.runtime.device import choose_kind, describe, device_of

    return describe(device_of(choose_kind(ngpu=options.ngpu, device=options.device), local_rank=0))


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
