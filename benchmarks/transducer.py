"""CPU time and peak memory of whole training steps: CTC and attention, the full and the pruned transducer loss.

usage: python benchmarks/transducer.py [--threads N] [--repeats N]

All models have the encoder of benchmarks/train_step.py (12 x 256, 125 frames from 5 s of audio, batch 8). `aishell` has
15 of 4,233 tokens per utterance, `bpe` 40 of 500. `ctc_attention` has a Transformer decoder (6 x 256, 2,048 units), the
transducers have an LSTM of 256 units and no auxiliary loss. A step is forward, backward, clipping and Adam.
Each model is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from argparse import Namespace
from typing import Any

import torch
from train_step import make_batch, recipe_config

from tympan.models.build import build_asr_model
from tympan.runtime.malloc import keep_freed_memory

SIZES = {"aishell": (15, 4233), "bpe": (40, 500)}
TRANSDUCER = {
    "model": "transducer",
    "decoder": "transducer",
    "decoder_conf": {"hidden_size": 256},
    "joint_net_conf": {"joint_space_size": 256},
}
KINDS: dict[str, dict[str, Any]] = {
    "ctc_attention": {},
    "full": {**TRANSDUCER, "model_conf": {"ctc_weight": 0.0}},
    "pruned": {**TRANSDUCER, "model_conf": {"ctc_weight": 0.0, "rnnt_type": "pruned"}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "KIND"), help="measure only this, in this process")
    options = parser.parse_args()
    if options.one:
        torch.set_num_threads(options.threads)
        print(*measure(*options.one, repeats=options.repeats))
        return
    for size in SIZES:
        base = 0.0
        for kind in KINDS:
            line = [sys.executable, __file__, "--one", size, kind]
            line += ["--threads", str(options.threads), "--repeats", str(options.repeats)]
            found = subprocess.run(line, check=True, capture_output=True, text=True).stdout.split()
            seconds, peak = float(found[0]), float(found[1])
            base = base or seconds
            print(
                f"{size:8} {kind:14} {seconds:6.2f} s of CPU time, {seconds / base:.2f} times ctc_attention, "
                f"peak {peak:5.0f} MB",
                flush=True,
            )


def measure(size: str, kind: str, *, repeats: int) -> tuple[float, float]:
    """The smallest CPU time in seconds of the repeats after a first step, and the peak memory of the process in MB."""
    characters, vocab = SIZES[size]
    keep_freed_memory()
    torch.manual_seed(0)
    options = Namespace(hop=160, dropout=0.1, batch=8, duration=5.04, characters=characters)
    config = recipe_config(options)
    config.token_list = [*config.token_list[: vocab - 1], "<sos/eos>"]
    config.joint_net_conf = {}
    vars(config).update(KINDS[kind])
    model = build_asr_model(config).train()
    assert int(model.output_lengths(torch.tensor([int(5.04 * 16000)]))) == 125
    batch = make_batch(options, vocab)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    times = []
    for _ in range(repeats + 1):
        start = time.process_time()
        optimizer.zero_grad()
        model(**batch).value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        times.append(time.process_time() - start)
    return min(times[1:]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
