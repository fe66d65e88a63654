"""What Tympan runs on a device, traced on the stand-in: operators and shapes of training, statistics and decoding.

PYTHONPATH=tests/runtime/stand_in python tests/ascend/workloads.py DIRECTORY [WHEEL] > operators.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import yaml
from npu_wheel import Wheel
from train_corpus import make_corpus

from tympan.config.read import parse_training
from tympan.decode.load import load_model
from tympan.decode.model_files import ModelFiles
from tympan.decode.options import DecodeOptions
from tympan.decode.recognizer import Recognizer
from tympan.runtime.comm import Comm, Distributed, Solo
from tympan.runtime.device import choose_kind, device_of
from tympan.runtime.operators import HasKernel, OperatorTrace
from tympan.tasks.asr import AsrTask
from tympan.tasks.lm import LmTask
from tympan.training.session import build_trainer

SPECAUG = {
    "specaug": "specaug",
    "specaug_conf": {
        "apply_time_warp": True, "time_warp_window": 5, "apply_freq_mask": True, "freq_mask_width_range": [0, 4],
        "num_freq_mask": 2, "apply_time_mask": True, "time_mask_width_range": [0, 10], "num_time_mask": 2,
    },
}  # fmt: skip

TRAININGS: dict[str, list[str]] = {
    "float32": [],
    "use_amp": ["--use_amp", "true"],
    "O1 with a static loss scale": ["--train_dtype", "O1", "--loss_scale", "512"],
    "O2": ["--train_dtype", "O2"],
    "gradient accumulation": ["--accum_grad", "2"],
    "gradient checkpointing": ["--grad_checkpointing", "true"],
}
TRANSDUCER = {"decoder": "stateless", "decoder_conf": {"embed_size": 8}, "joint_net_conf": {"joint_space_size": 8}}
SEARCHES: dict[str, dict[str, object]] = {
    "joint": {"search": "joint", "beam_size": 3, "ctc_weight": 0.4, "lm_weight": 0.2, "penalty": 0.1},
    "ctc_greedy": {"search": "ctc_greedy"},
    "ctc_prefix": {"search": "ctc_prefix", "beam_size": 3},
    "rescore": {"search": "rescore", "beam_size": 3, "ctc_weight": 0.4},
}


class Workloads:
    """Runs the workloads one after another in a directory, each under a tracer of its own."""

    def __init__(self, directory: Path, *, has_kernel: HasKernel | None) -> None:
        self.directory = directory
        self.has_kernel = has_kernel
        self.device = device_of(choose_kind(ngpu=1, device="npu"), local_rank=0)
        self.config = self._write_config()
        self.traces: dict[str, OperatorTrace] = {}
        rng = np.random.default_rng(0)
        self.audio = [0.1 * rng.standard_normal(length).astype(np.float32) for length in (4000, 6500)]

    def run(self) -> None:
        for name, options in TRAININGS.items():
            self.train(f"training: {name}", options)
        self.train_ddp()
        self.train_lm()
        self.decode()
        path = self.config.with_name("transducer.yaml")
        path.write_text(yaml.safe_dump({**yaml.safe_load(self.config.read_text(encoding="utf-8")), **TRANSDUCER}))
        self.train("training: transducer", [], config=path)
        with self.traced("decoding: transducer_greedy"):
            self.recognizer("transducer", search="transducer_greedy").decode(self.audio)

    @contextmanager
    def traced(self, name: str) -> Iterator[OperatorTrace]:
        trace = self.traces[name] = OperatorTrace(has_kernel=self.has_kernel, device_type="npu")
        with trace:
            yield trace

    def train(self, name: str, options: list[str], *, comm: Comm | None = None, config: Path | None = None) -> None:
        output = self.directory / "exp" / name.rpartition(": ")[2]
        arguments = ["--config", str(config or self.config), "--output_dir", str(output), *options]
        task = AsrTask()
        settings = parse_training(task.config_class, arguments, prog="workloads")
        trainer = build_trainer(task, settings, comm=comm or Solo(), device=self.device)
        with self.traced(name):
            trainer.train_epoch()
            trainer.validate()
        trainer.finish_epoch()
        trainer.fit()

    def train_ddp(self) -> None:
        comm = Distributed(self.device, backend="gloo", init_method=f"file://{self.directory}/store", rank=0, size=1)
        self.train("training: DDP", [], comm=comm)
        comm.close()

    def train_lm(self) -> None:
        """The Transformer. The LSTM is one operator on the device, which the stand-in does not have."""
        task, texts = LmTask(), self.directory / "corpus" / "train" / "text"
        conf = {"embed_unit": 4, "att_unit": 8, "head": 2, "unit": 8, "layer": 1}
        arguments = [
            "--token_type", "char", "--token_list", str(self.directory / "corpus" / "tokens.txt"),
            "--train_data_path_and_name_and_type", f"{texts},text,text",
            "--valid_data_path_and_name_and_type", f"{texts},text,text",
            "--lm", "transformer", "--lm_conf", json.dumps(conf), "--num_workers", "0", "--use_tensorboard", "false",
            "--use_matplotlib", "false", "--max_epoch", "1", "--batch_type", "bucket", "--batch_bins", "200",
            "--output_dir", str(self.directory / "exp" / "lm"),
        ]  # fmt: skip
        config = parse_training(task.config_class, arguments, prog="workloads")
        trainer = build_trainer(task, config, comm=Solo(), device=self.device)
        with self.traced("LM training"):
            trainer.train_epoch()
            trainer.validate()
        trainer.finish_epoch()
        trainer.fit()

    def decode(self) -> None:
        for name, options in SEARCHES.items():
            recognizer = self.recognizer("float32", **options)
            with self.traced(f"decoding: {name}"):
                recognizer.decode(self.audio)
        with self.traced("alignment"):
            self.recognizer("float32", search="ctc_greedy").align(self.audio[0], "abc")

    def recognizer(self, experiment: str, **options: object) -> Recognizer:
        """With the language model, where the search takes one."""
        folder, lm = self.directory / "exp" / experiment, self.directory / "exp" / "lm"
        has_lm = "lm_weight" in options
        files = ModelFiles(
            asr_train_config=folder / "config.yaml",
            asr_model_file=folder / "1epoch.pth",
            lm_train_config=lm / "config.yaml" if has_lm else None,
            lm_file=lm / "1epoch.pth" if has_lm else None,
        )
        return Recognizer(load_model(files, device=self.device), DecodeOptions(**options))  # type: ignore[arg-type]

    def _write_config(self) -> Path:
        make_corpus(self.directory / "corpus")
        path = self.directory / "corpus" / "train.yaml"
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        settings |= {**SPECAUG, "max_epoch": 1, "batch_type": "bucket", "batch_bins": 30_000, "num_buckets": 2}
        del settings["batch_size"]
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return path


def main() -> None:
    directory = Path(sys.argv[1])
    has_kernel: Callable[[str], bool] | None = Wheel(Path(sys.argv[2])).has_kernel if len(sys.argv) > 2 else None
    torch.set_num_threads(1)
    workloads = Workloads(directory, has_kernel=has_kernel)
    workloads.run()
    found = {
        name: {
            "operators": sorted(trace.operators()),
            "types": sorted({dtype for item in trace.signatures() for _, dtype in item.tensors}),
        }
        for name, trace in workloads.traces.items()
    }
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
