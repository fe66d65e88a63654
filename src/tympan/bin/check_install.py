"""Check the installation: versions, devices, and whether each part of Tympan works on this machine."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import option, parse_args

NEEDED = [
    "torch",
    "numpy",
    "yaml",
    "pydantic",
    "soundfile",
    "soxr",
    "kaldi_native_fbank",
    "kaldiio",
    "sentencepiece",
    "rapidfuzz",
    "safetensors",
    "tensorboard",
    "matplotlib",
    "tqdm",
    "numba",
]
EXTRAS = {
    "torch_npu": "npu: training on Ascend NPUs",
    "distributed": "cluster: run jobs on a Dask cluster",
    "wandb": "wandb: logging to Weights & Biases",
    "espeakng_loader": "demo: speech synthesis for the demo",
    "huggingface_hub": "hub: models from a hub",
}


@dataclass(frozen=True)
class Options:
    ngpu: int = option(0, help="number of accelerators that must be available")
    device: str | None = option(None, help="accelerator type that must be available: cuda, npu, mps")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan check_install", description=__doc__)
    from tympan.recipe.check import machine

    for name, value in machine(Path.cwd()):
        print(f"  {name:<20} {value}")
    failed = [name for name in NEEDED if not _report(name)]
    for name, purpose in EXTRAS.items():
        found = importlib.util.find_spec(name) is not None
        hint = "" if found else f"   (pip install 'tympan[{purpose.partition(':')[0]}]')"
        print(f"  {name:<20} {'installed' if found else 'not installed'}, extra {purpose}{hint}")
    for name, check in (
        ("features", _features),
        ("training step", _training_step),
        ("decoding on a CPU", _frozen_products),
        ("device", lambda: _device(options)),
    ):
        try:
            print(f"  {name:<20} {check()}")
        except Exception as error:
            print(f"  {name:<20} DOES NOT WORK: {type(error).__name__}: {error}")
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "everything that Tympan needs works on this machine")
    return 1 if failed else 0


def _report(name: str) -> bool:
    try:
        module = importlib.import_module(name)
    except Exception as error:
        print(f"  {name:<20} MISSING OR BROKEN: {type(error).__name__}: {error}")
        return False
    try:
        version = importlib.metadata.version({"yaml": "pyyaml"}.get(name, name.replace("_", "-")))
    except importlib.metadata.PackageNotFoundError:
        version = getattr(module, "__version__", "installed")
    print(f"  {name:<20} {version}")
    return True


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
