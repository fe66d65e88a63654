"""Training steps of the AISHELL Conformer: seconds of audio per second, time of each part, memory, and the fraction of
the machine's matrix-multiply peak.

    python benchmarks/train_step.py --threads 2 --steps 6

12 x 256 encoder (4 heads, feed-forward 2,048, kernel 15), 6-layer decoder, 4,233 tokens, 46.2 million parameters;
batches of 8 utterances of 5 s and 14 characters; SpecAugment, dropout 0.1, Adam, float32. Other jobs on the machine
change every number, so compare ratios of one run.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tympan.config.text import TextConfig
from tympan.models.build import build_asr_model
from tympan.models.hybrid import HybridModel
from tympan.runtime.malloc import keep_freed_memory

RATE = 16000


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    torch.manual_seed(0)
    model = build_asr_model(recipe_config(options)).train()
    model.set_grad_checkpointing(options.grad_checkpointing)
    batch = make_batch(options, model.vocab_size)
    step_flops = count_flops(model, batch)
    run = torch.compile(model) if options.compile else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    clock = PartClock(model)
    for _ in range(options.warmup):
        train_step(run, batch, optimizer, clock)
    peak = matmul_peak()
    clock.parts.clear()
    seconds = [train_step(run, batch, optimizer, clock) for _ in range(options.steps)]
    peak = max(peak, matmul_peak())
    report(options, model, seconds, clock, step_flops, peak)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8, help="utterances")
    parser.add_argument("--duration", type=float, default=5.0, help="seconds per utterance")
    parser.add_argument("--characters", type=int, default=14)
    parser.add_argument("--hop", type=int, default=160, help="hop length in samples; ESPnet2's default is 128")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--grad_checkpointing", action="store_true")
    return parser.parse_args()


def recipe_config(options: argparse.Namespace) -> Any:
    """The part of the recipe's configuration that `build_asr_model` reads."""
    dropout = {"dropout_rate": options.dropout, "positional_dropout_rate": options.dropout}
    return SimpleNamespace(
        token_list=["<blank>", "<unk>", *(f"t{index}" for index in range(4230)), "<sos/eos>"],
        init=None,
        input_size=None,
        postencoder=None,
        postencoder_conf={},
        text=TextConfig(token_list=None, token_type="char"),
        frontend="default",
        frontend_conf={"hop_length": options.hop, "win_length": 400},
        specaug="specaug",
        specaug_conf={"freq_mask_width_range": [0, 30], "time_mask_width_range": [0, 40]},
        normalize="utterance_mvn",
        normalize_conf={},
        preencoder=None,
        preencoder_conf={},
        encoder="conformer",
        encoder_conf={
            "output_size": 256,
            "attention_heads": 4,
            "linear_units": 2048,
            "num_blocks": 12,
            "macaron_style": True,
            "rel_pos_type": "latest",
            "cnn_module_kernel": 15,
            **dropout,
        },
        decoder="transformer",
        decoder_conf={"attention_heads": 4, "linear_units": 2048, "num_blocks": 6, **dropout},
        ctc_conf={},
        model="espnet",
        model_conf={"ctc_weight": 0.3, "lsm_weight": 0.1},
    )


def make_batch(options: argparse.Namespace, vocab_size: int) -> dict[str, Tensor]:
    samples = int(options.duration * RATE)
    return {
        "speech": torch.randn(options.batch, samples) * 0.1,
        "speech_lengths": torch.full((options.batch,), samples),
        "text": torch.randint(2, vocab_size - 1, (options.batch, options.characters)),
        "text_lengths": torch.full((options.batch,), options.characters),
        "augment_seed": torch.arange(options.batch),
    }


@dataclass
class PartClock:
    """Seconds of each part: forward from calls of the modules, backward from when gradients arrive between them."""

    model: HybridModel
    parts: dict[str, list[float]] = field(default_factory=dict)
    _starts: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        encoder = self.model.encoder
        watched = {
            "features": [self.model.frontend, self.model.specaug, self.model.normalize],
            "subsampling": [encoder.embed],
            "encoder blocks": list(encoder.encoders),
            "decoder": [self.model.decoder],
            "ctc": [self.model.ctc],
        }
        for name, modules in watched.items():
            for module in modules:
                if isinstance(module, nn.Module):
                    module.register_forward_pre_hook(lambda *_, name=name: self._begin(name))
                    module.register_forward_hook(lambda *_, name=name: self._end(name))
        encoder.embed.register_forward_hook(lambda m, i, out: self._mark(out.x, "blocks backward done"))
        encoder.register_forward_hook(lambda m, i, out: self._mark(out.out, "heads backward done"))

    def add(self, name: str, seconds: float) -> None:
        self.parts.setdefault(name, []).append(seconds)

    def finish_backward(self, start: float, end: float) -> None:
        heads, blocks = (self._starts.get(name, start) for name in ("heads backward done", "blocks backward done"))
        self.add("decoder and ctc backward", heads - start)
        self.add("encoder blocks backward", blocks - heads)
        self.add("subsampling backward", end - blocks)

    def _begin(self, name: str) -> None:
        self._starts[name] = time.perf_counter()

    def _end(self, name: str) -> None:
        self.add(name, time.perf_counter() - self._starts[name])

    def _mark(self, tensor: Tensor, name: str) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: self._starts.__setitem__(name, time.perf_counter()))


def train_step(model: Any, batch: dict[str, Tensor], optimizer: torch.optim.Optimizer, clock: PartClock) -> float:
    """Seconds of forward, backward and update."""
    start = time.perf_counter()
    loss = model(**batch).value
    forward_end = time.perf_counter()
    loss.backward()
    backward_end = time.perf_counter()
    nn.utils.clip_grad_norm_(clock.model.parameters(), 5.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    end = time.perf_counter()
    clock.finish_backward(forward_end, backward_end)
    clock.add("= forward", forward_end - start)
    clock.add("= backward", backward_end - forward_end)
    clock.add("= clip and update", end - backward_end)
    return end - start


def count_flops(model: HybridModel, batch: dict[str, Tensor]) -> int:
    """Floating-point operations of the products and convolutions of a step, forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(**batch).value.backward()
    model.zero_grad(set_to_none=True)
    return counter.get_total_flops()


def matmul_peak() -> float:
    """Operations per second of a large float32 matrix product: the best of several tries."""
    a, b = torch.randn(1536, 1536), torch.randn(1536, 1536)
    best = float("inf")
    for _ in range(12):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * 1536**3 / best


def report(
    options: argparse.Namespace, model: HybridModel, seconds: list[float], clock: PartClock, flops: int, peak: float
) -> None:
    step = statistics.median(seconds)
    audio = options.batch * options.duration
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters / 1e6:.1f} M parameters, {options.batch} x {options.duration} s, hop {options.hop}, ", end="")
    print(f"{options.threads} threads, dropout {options.dropout}, torch {torch.__version__}")
    print(f"step {step:.3f} s (median of {len(seconds)}; best {min(seconds):.3f}, worst {max(seconds):.3f})")
    print(f"{audio / step:.1f} seconds of audio per second")
    print(f"{flops / 1e12:.3f} TFLOP per step; {flops / step / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s: ", end="")
    print(f"{flops / step / peak:.0%} of the matrix-multiply peak; limit {flops / peak:.2f} s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
    for name, values in clock.parts.items():
        share = sum(values) / len(seconds)
        print(f"  {name:26s} {share:7.3f} s {share / (sum(seconds) / len(seconds)):6.1%}")


if __name__ == "__main__":
    main()
