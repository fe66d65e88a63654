"""Speed of feature extraction: seconds of audio per second on one core.

python benchmarks/features.py [--seconds N] [--data_dir DIR] [--repeats N]

Without --data_dir the audio is synthetic (voiced and unvoiced segments). The time is the CPU time of one process, the
best of the repeats. Kaldi's tools were measured on the same kind of machine (docs/data.md).
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

RATE = 16000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="seconds of audio to process")
    parser.add_argument("--data_dir", type=Path, default=None, help="take recordings from this data directory")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # before numpy is imported, so that only one core is used
    recordings = read_recordings(args.data_dir, args.seconds) if args.data_dir else make_recordings(args.seconds)
    seconds = sum(map(len, recordings)) / RATE
    print(f"{len(recordings)} recordings, {seconds:.0f} s of audio, {seconds / len(recordings):.1f} s each\n")
    print(f"{'what':<36}{'CPU s':>9}{'audio s / CPU s':>17}")
    for name, work in workloads(recordings).items():
        work()  # compiles and fills caches
        best = min(cpu_seconds(work) for _ in range(args.repeats))
        print(f"{name:<36}{best:>9.3f}{seconds / best:>17.0f}")


def workloads(recordings: list[np.ndarray]) -> dict[str, Callable[[], object]]:
    import numpy as np
    import torch

    from tympan.data.audio import Audio, resample
    from tympan.features.extractor import FeatureOptions, compute_features
    from tympan.features.fbank import FbankOptions, MfccOptions, fbank, mfcc
    from tympan.features.frontend import DefaultFrontend
    from tympan.features.pitch import PitchOptions, pitch
    from tympan.features.pitch_post import PitchPostOptions, process_pitch

    torch.set_num_threads(1)
    raw = [pitch(samples, PitchOptions()) for samples in recordings]
    frontend = DefaultFrontend(fs=RATE, hop_length=160)
    tensors = [torch.from_numpy(samples)[None] for samples in recordings]
    rng = np.random.default_rng(0)

    def log_mel() -> None:
        with torch.no_grad():
            for tensor in tensors:
                frontend(tensor, torch.tensor([tensor.shape[1]]))

    def each(function: Callable[[np.ndarray], object]) -> Callable[[], object]:
        return lambda: [function(samples) for samples in recordings]

    return {
        "fbank 80, dither": each(lambda x: fbank(x, FbankOptions(), rng=rng)),
        "fbank 80, no dither": each(lambda x: fbank(x, FbankOptions(dither=0.0))),
        "MFCC 13, no dither": each(lambda x: mfcc(x, MfccOptions(dither=0.0))),
        "pitch": each(lambda x: pitch(x, PitchOptions())),
        "pitch post-processing": lambda: [process_pitch(frames, PitchPostOptions(), rng=rng) for frames in raw],
        "fbank + pitch, 83 dimensions": each(
            lambda x: compute_features(Audio(x, RATE), FeatureOptions(), utterance="benchmark")
        ),
        "log-mel (in the model), hop 160": log_mel,
        "speed perturbation 0.9": each(lambda x: resample(x, 0.9, 1.0)),
    }


def cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def read_recordings(directory: Path, seconds: float) -> list[np.ndarray]:
    from tympan.data.audio import read_audio
    from tympan.data.kaldi_dir import DataDir

    chosen: list[np.ndarray] = []
    for _, source, segment in DataDir.read(directory).parts():
        if sum(map(len, chosen)) >= seconds * RATE:
            break
        chosen.append(read_audio(source, rate=RATE, channel=0, start_s=segment.start_s, end_s=segment.end_s).samples)
    return chosen


def make_recordings(seconds: float) -> list[np.ndarray]:
    """Ten-second recordings: a gliding tone with harmonics and noise, alternating every 0.3 s."""
    import numpy as np

    rng = np.random.default_rng(0)
    recordings = []
    for _ in range(max(1, round(seconds / 10))):
        hertz = np.repeat(rng.uniform(90, 300, 34), round(0.3 * RATE))[: 10 * RATE]
        phase = 2 * np.pi * np.cumsum(hertz) / RATE
        voiced = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 8))
        turns = np.fromiter(itertools.cycle((1.0, 0.0)), float, 34).repeat(round(0.3 * RATE))[: 10 * RATE]
        recordings.append((0.1 * voiced * turns + 0.01 * rng.standard_normal(10 * RATE)).astype(np.float32))
    return recordings


if __name__ == "__main__":
    main()
