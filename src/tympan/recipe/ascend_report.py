"""What a report from an Ascend card should contain: versions, settings, the speed and operators of a few steps."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections import Counter, deque
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import tympan
from tympan.config.asr import AsrTrainConfig
from tympan.config.read import parse_training
from tympan.data.batch import Batch
from tympan.errors import UserError
from tympan.files import open_file, read_bytes, status_of
from tympan.models.build import build_asr_model
from tympan.runtime import ascend
from tympan.runtime.comm import Solo
from tympan.runtime.device import describe, prepare_environment, synchronize
from tympan.runtime.operators import OperatorTrace, Signature
from tympan.runtime.precision import choose_precision
from tympan.runtime.seed import set_all_seeds
from tympan.training.manifest import read_manifest
from tympan.training.reporter import EpochReporter
from tympan.training.session import build_updater
from tympan.training.update import Updater

VOCAB_SIZE, FEATURES, TOKENS = 4233, 83, 16
"""Of AISHELL: characters, filterbanks with pitch, tokens of a sentence."""
LOG_LINES = 100
_SIZES = "output_size: 256, attention_heads: 4, linear_units: 2048"
_BLOCKS = "macaron_style: true, use_cnn_module: true, cnn_module_kernel: 15, rel_pos_type: latest"


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Versions, the parts that Ascend needs with their problems, and the variables that are set."""
    return {
        "tympan": tympan.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "device": describe(device),
        "ascend": {part.name: {"found": part.found, "problem": part.problem} for part in ascend.parts()},
        "environment": prepare_environment(device.type, os.environ),
    }


def experiment_facts(directory: Path) -> dict[str, Any]:
    """The settings and results of a training run: its configuration, manifest and the end of its log."""
    if not directory.is_dir():
        raise UserError(f"--exp {directory}: there is no such directory")
    log, config = directory / "train.log", directory / "config.yaml"
    return {
        "directory": str(directory),
        "manifest": read_manifest(directory),
        "config": read_bytes(config).decode("utf-8", errors="replace") if status_of(config) else None,
        "log": _ends_of(log) if status_of(log) else [],
    }


def _ends_of(log: Path) -> list[str]:
    """The first and the last lines. A log may be large."""
    with open_file(log) as stream:
        first = list(islice(stream, LOG_LINES))
        last: deque[bytes] = deque(maxlen=LOG_LINES)
        others = 0
        for line in stream:
            last.append(line)
            others += 1
    middle = [b"..."] if others > LOG_LINES else []
    return [line.decode("utf-8", errors="replace").rstrip("\r\n") for line in [*first, *middle, *last]]


def trial_facts(
    device: torch.device, *, steps: int, batch_size: int, frames: int, blocks: int, train_dtype: str
) -> dict[str, Any]:
    """Train a Conformer with AISHELL's sizes for some steps on random features: times, operators and shapes."""
    updater = _updater(device, blocks=blocks, train_dtype=train_dtype)
    updater.parallel.model.train()
    reporter = EpochReporter("train", 1, comm=Solo())
    batch = _batch(batch_size, frames)
    seconds = [_timed(updater, batch, reporter, device) for _ in range(steps)]
    traces = [_traced(updater, batch, reporter, device) for _ in range(2)]
    steady = seconds[1:] or seconds
    return {
        "train_dtype": train_dtype,
        "batch_size": batch_size,
        "frames": frames,
        "blocks": blocks,
        "seconds": [round(value, 4) for value in seconds],
        "frames_per_second": round(batch_size * frames * len(steady) / sum(steady), 1),
        "loss": reporter.means()["loss"],
        "operators": _operators(traces[0]),
        "synchronizations": traces[1].synchronizations(),
        "new_shapes_in_the_second_step": len(traces[1].signatures() - traces[0].signatures()),
    }


def _updater(device: torch.device, *, blocks: int, train_dtype: str) -> Updater:
    tokens = ["<blank>", "<unk>", *(f"t{index}" for index in range(VOCAB_SIZE - 3)), "<sos/eos>"]
    scale = ["--loss_scale", "512"] if train_dtype in ("O1", "O2", "float16") else []
    config = parse_training(
        AsrTrainConfig,
        [
            "--token_list", str(tokens), "--token_type", "char", "--input_size", str(FEATURES), "--normalize", "none",
            "--encoder", "conformer", "--encoder_conf", f"{{{_SIZES}, num_blocks: {blocks}, {_BLOCKS}}}",
            "--decoder", "transformer", "--decoder_conf", f"{{num_blocks: {(blocks + 1) // 2}}}",
            "--model_conf", "{ctc_weight: 0.3, lsm_weight: 0.1}", "--train_dtype", train_dtype, *scale,
        ],
        prog="tympan ascend_report",
    )  # fmt: skip
    set_all_seeds(0)
    precision = choose_precision(train_dtype, device_type=device.type, loss_scale=config.loss_scale)
    model = build_asr_model(config)
    precision.prepare(model)
    return build_updater(config, model.to(device), comm=Solo(), device=device, precision=precision)


def _batch(size: int, frames: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "speech": torch.randn(size, frames, FEATURES, generator=generator),
        "speech_lengths": torch.randint(frames // 2, frames + 1, (size,), generator=generator),
        "text": torch.randint(2, VOCAB_SIZE - 1, (size, TOKENS), generator=generator),
        "text_lengths": torch.full((size,), TOKENS),
    }
    return Batch(tuple(f"utterance{index}" for index in range(size)), tensors, size)


def _timed(updater: Updater, batch: Batch, reporter: EpochReporter, device: torch.device) -> float:
    began = time.perf_counter()
    updater.learn([batch], number=1, reporter=reporter)
    synchronize(device)
    return time.perf_counter() - began


def _traced(updater: Updater, batch: Batch, reporter: EpochReporter, device: torch.device) -> OperatorTrace:
    trace = OperatorTrace(device_type=device.type)
    with trace:
        updater.learn([batch], number=1, reporter=reporter)
    return trace


def _operators(trace: OperatorTrace) -> dict[str, dict[str, int]]:
    """Per operator: how often it ran, and with how many different shapes."""
    calls: Counter[str] = Counter()
    shapes: Counter[str] = Counter()
    item: Signature
    for item, number in trace.counts.items():
        calls[item.operator] += number
        shapes[item.operator] += 1
    return {name: {"calls": calls[name], "shapes": shapes[name]} for name in sorted(calls)}
