"""Measure what `frontend_conf cache_dir` saves: CPU time of a frozen encoder's features, computed and from the cache.

usage: python benchmarks/frozen_encoder.py [--upstream wavlm_base] [--utterances 8] [--seconds 5]

The weights are random, which does not change the time. No files are downloaded.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from tympan.models.pretrained.s3prl import RATE, S3prlFrontend


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upstream", default="wavlm_base")
    parser.add_argument("--utterances", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    samples = int(options.seconds * RATE)
    speech = [0.1 * torch.randn(1, samples) for _ in range(options.utterances)]
    for is_multilayer in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            frontend = S3prlFrontend(
                frontend_conf={"upstream": options.upstream}, multilayer_feature=is_multilayer, cache_dir=folder
            )
            frontend.upstream.requires_grad_(False)
            passes = [timed(frontend, speech) for _ in range(2)]
            size = sum(path.stat().st_size for path in Path(folder).rglob("*.npy"))
        hours = options.utterances * options.seconds / 3600
        name = "all layers" if is_multilayer else "last layer"
        print(
            f"{options.upstream}, {name}: {passes[0] / hours / 3600:.3f} s of CPU per second of speech computed, "
            f"{passes[1] / hours / 3600:.4f} from the cache ({passes[0] / passes[1]:.0f} times as fast), "
            f"{size / hours / 3600 / 1e6:.2f} MB per second of speech"
        )


def timed(frontend: S3prlFrontend, speech: list[torch.Tensor]) -> float:
    """CPU seconds of one pass over the utterances, of all threads."""
    start = time.process_time()
    for item in speech:
        frontend(item, torch.tensor([item.size(1)]))
    return time.process_time() - start


if __name__ == "__main__":
    main()
