"""Shapes of training and decoding on the stand-in, with a corpus whose lengths are spread like AISHELL's.

PYTHONPATH=tests/runtime/stand_in:tests/integration python tests/ascend/steady_shapes.py DIRECTORY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import soundfile
import torch
import yaml
from train_corpus import TONES, write_config

from tympan.config.read import parse_training
from tympan.data.batch import Batch
from tympan.decode.recognizer import Recognizer
from tympan.runtime.comm import Solo
from tympan.runtime.device import choose_kind, device_of
from tympan.runtime.operators import OperatorTrace, Signature
from tympan.tasks.asr import AsrTask
from tympan.training.reporter import EpochReporter
from tympan.training.session import build_trainer
from tympan.training.trainer import Trainer

RATE = 8000
LENGTHS_S = (0.46, 0.45, 0.48, 0.51, 0.47, 0.5, 0.49)
"""Recordings to decode, all of one bucket."""


def make_corpus(directory: Path) -> Path:
    """AISHELL has 1.2 to 14.5 s, 4.5 s on average, and 3 tokens per second. Here everything is a tenth as long."""
    rng = np.random.default_rng(0)
    for side, number in (("train", 90), ("valid", 24)):
        folder = directory / side
        folder.mkdir(parents=True)
        lines: dict[str, list[str]] = {"wav.scp": [], "text": []}
        for index in range(number):
            seconds = float(np.clip(rng.lognormal(np.log(0.43), 0.33), 0.12, 1.45))
            text = "".join(rng.choice(list(TONES), size=max(1, round(30 * seconds + rng.normal()))))[
                : int(16 * seconds)
            ]
            path, name = folder / f"{index:03d}.wav", f"{side}{index:03d}"
            soundfile.write(path, 0.1 * rng.standard_normal(int(RATE * seconds)), RATE)
            lines["wav.scp"].append(f"{name} {path}\n")
            lines["text"].append(f"{name} {text}\n")
        for file, content in lines.items():
            (folder / file).write_text("".join(content), encoding="utf-8")
    (directory / "tokens.txt").write_text("<blank>\n<unk>\na\nb\nc\n<sos/eos>\n", encoding="utf-8")
    path = write_config(directory)
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    del settings["batch_size"]
    settings |= {"batch_type": "bucket", "batch_bins": 40_000, "num_buckets": 4, "max_epoch": 2}
    settings |= {"specaug": "specaug", "specaug_conf": {"time_warp_window": 3, "time_mask_width_range": [0, 5],
                 "freq_mask_width_range": [0, 4]}}  # fmt: skip
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


class Watched:
    """Counts the operators with new shapes of every batch."""

    def __init__(self) -> None:
        self.seen: set[Signature] = set()
        self.shapes: set[tuple[object, ...]] = set()
        self.new: list[tuple[bool, int]] = []
        """For every batch: whether its padded shape was seen before, and its operators with new shapes."""
        self.examples: list[str] = []

    def run(self, batch: Batch, work: Callable[[], object]) -> None:
        shape = tuple(sorted((name, tuple(tensor.shape)) for name, tensor in batch.tensors.items()))
        with OperatorTrace(device_type="npu") as trace:
            work()
        new = trace.signatures() - self.seen
        self.new.append((shape in self.shapes, len(new)))
        if shape in self.shapes:
            self.examples += [str(item) for item in sorted(new)[:5]]
        self.shapes.add(shape)
        self.seen |= new

    def report(self) -> dict[str, object]:
        repeated = [number for was_seen, number in self.new if was_seen]
        return {
            "batches": len(self.new),
            "shapes": len(self.shapes),
            "new after the first of a shape": sum(repeated),
            "examples": self.examples[:5],
        }


def train(trainer: Trainer) -> dict[str, object]:
    """Two epochs of updates."""
    watched = Watched()
    trainer.updater.parallel.model.train()
    for epoch in (1, 2):
        part = EpochReporter("train", epoch, comm=Solo())
        for batch in trainer.train_data.build_iter(epoch):
            watched.run(batch, lambda b=batch, p=part: trainer.updater.learn([b], number=1, reporter=p))  # type: ignore[misc]
    return watched.report()


def validate(trainer: Trainer) -> dict[str, object]:
    watched = Watched()
    trainer.updater.parallel.module.eval()
    with torch.no_grad():
        for _ in range(2):
            for batch in trainer.valid_data.build_iter(1):
                watched.run(batch, lambda b=batch: trainer.updater.forward(b))  # type: ignore[misc]
    return watched.report()


def decode(folder: Path) -> dict[str, object]:
    """The same recordings on the device and on the CPU, one after another."""
    rng = np.random.default_rng(1)
    recordings = [0.1 * rng.standard_normal(int(RATE * seconds)).astype(np.float32) for seconds in LENGTHS_S]
    options = {"search": "joint", "beam_size": 4, "ctc_weight": 0.3, "maxlenratio": 0.0}
    on_card, on_cpu = (Recognizer.from_pretrained(folder, device=name, **options) for name in ("npu", "cpu"))
    seen: set[Signature] = set()
    new, found = [], []
    for recording in recordings:
        with OperatorTrace(device_type="npu") as trace:
            found.append(_texts(on_card, [recording]))
        new.append(len(trace.signatures() - seen))
        seen |= trace.signatures()
    together = [hypotheses[0].text for hypotheses in on_card.decode(recordings[:3])]
    return {
        "new": new,
        "npu": found,
        "cpu": [_texts(on_cpu, [recording]) for recording in recordings],
        "together": together,
    }


def _texts(recognizer: Recognizer, recordings: Sequence[np.ndarray]) -> list[list[object]]:
    return [[hypothesis.text, round(hypothesis.score, 3)] for hypothesis in recognizer.decode(recordings)[0]]


def main() -> None:
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    config = make_corpus(directory)
    task = AsrTask()
    arguments = ["--config", str(config), "--output_dir", str(directory / "exp")]
    settings = parse_training(task.config_class, arguments, prog="steady_shapes")
    device = device_of(choose_kind(ngpu=1, device="npu"), local_rank=0)
    trainer = build_trainer(task, settings, comm=Solo(), device=device)
    result = {"training": train(trainer), "validation": validate(trainer)}
    trainer.fit()
    result["decoding"] = decode(directory / "exp")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
