"""Run the same work with ESPnet2 and with Tympan, alternating, and print the ratios.

usage: python benchmarks/peer_espnet.py --env DIR [--work DIR] [--setup | --setup_only] [--steps N] [--rounds N]

ESPnet has its own environment. `--setup` creates it: first torch, then the package without its dependencies, then the
packages that it imports. `--setup_only` stops there and prints how to run ESPnet. ESPnet imports torchaudio even where
it is not used, and PyPI has no CPU build of it, so an empty module in DIR/stand_in replaces it. Both tools load the
same random weights of the AISHELL size, the same batch and the same utterances. They run one after the other, each on
two threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

HERE = Path(__file__).resolve().parent
ESPNET = "espnet==202511"
IMPORTED_BY_ESPNET = (
    "numpy typeguard einops PyYAML humanfriendly torch_complex librosa kaldiio sentencepiece tensorboard matplotlib "
    "configargparse editdistance jiwer opt_einsum hydra-core omegaconf h5py g2p_en jamo unidecode jaconv "
    "ci_sdr fast_bss_eval"
)
TORCHAUDIO_STAND_IN = """
import importlib.abc, importlib.machinery, sys, types


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return object


class Empty(types.ModuleType):
    __getattr__ = staticmethod(__getattr__)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("torchaudio.") else None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())
__version__ = "0.0"
"""
RATE = 16000
Pair = tuple[dict[str, Any], dict[str, Any]]
"""The measurements of ESPnet2 and of Tympan in one round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, required=True, help="ESPnet's virtual environment")
    parser.add_argument("--work", type=Path, default=Path("exp/peer"), help="directory for weights and inputs")
    setup = parser.add_mutually_exclusive_group()
    setup.add_argument("--setup", action="store_true", help="create the environment first")
    setup.add_argument("--setup_only", action="store_true", help="create the environment and measure nothing")
    parser.add_argument("--steps", default="5", help="number of training steps to time")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; both tools run once per round")
    options = parser.parse_args()
    if options.setup or options.setup_only:
        set_up(options.env)
    python = options.env / "bin" / "python"
    if options.setup_only:
        print(f"PYTHONPATH={write_stand_in(options.env)} {python} -m espnet2.bin.asr_train --help")
        return
    if not python.exists():
        print(f"no ESPnet in {options.env}: the comparison is skipped (create the environment with --setup)")
        return
    write_inputs(options.work)
    peer = [str(python), str(HERE / "peer_worker.py")]
    ours = [sys.executable, str(HERE / "tympan_worker.py")]
    run([*peer, "model", str(options.work)], options.work)
    work = str(options.work)
    steps: list[Pair] = []
    alone: list[Pair] = []
    batched: list[Pair] = []
    processes: list[Pair] = []
    for _ in range(options.rounds):
        theirs = run([*peer, "train_step", work, options.steps], options.work)
        steps.append((theirs, run([*ours, "train_step", work, options.steps], options.work)))
        theirs = run([*peer, "decode", work], options.work)
        alone.append((theirs, run([*ours, "decode", work, "1"], options.work)))
        batched.append((theirs, run([*ours, "decode", work, "10"], options.work)))
        theirs = run_shares([*peer, "decode", work], options.work)
        processes.append((theirs, run_shares([*ours, "decode", work, "10"], options.work)))
    print("| work | ESPnet2 | Tympan | ratio of the medians | each round |\n|" + "---|" * 5)
    show("training step, audio s/s", "audio_s_per_s", steps)
    show("decoding one by one, RTF", "rtf", alone)
    show("decoding in a batch of ten, RTF", "rtf", batched)
    show("decoding in two processes of one thread, ours in batches of five, RTF", "rtf", processes)
    same = [
        sum(found["ids"] == theirs["hypotheses"][name]["ids"] for name, found in now["hypotheses"].items())
        for theirs, now in [*alone, *batched, *processes]
    ]
    print(f"\nThe same hypothesis for {min(same)} of {len(alone[0][0]['hypotheses'])} utterances in every round.")


def show(name: str, key: str, pairs: list[Pair]) -> None:
    """More is better for `audio_s_per_s`, less for `rtf`."""
    theirs, ours = (statistics.median(pair[side][key] for pair in pairs) for side in (0, 1))
    sign = 1 if key == "audio_s_per_s" else -1
    each = ", ".join(f"{(now[key] / before[key]) ** sign:.2f}" for before, now in pairs)
    print(f"| {name} | {theirs:.3f} | {ours:.3f} | {(ours / theirs) ** sign:.2f} | {each} |", flush=True)


def set_up(env: Path) -> None:
    """Install ESPnet with the packages that its training imports."""
    pip = [str(env / "bin" / "pip"), "install", "-q"]
    subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
    subprocess.run([*pip, "torch==2.13.0"], check=True)
    subprocess.run([*pip, "--no-deps", ESPNET, "espnet_tts_frontend"], check=True)
    subprocess.run([*pip, *IMPORTED_BY_ESPNET.split()], check=True)


def run(command: list[str], work: Path) -> dict:
    """The result of one process on two threads."""
    return result_of(start(command, work, threads=2))


def run_shares(command: list[str], work: Path) -> dict:
    """The ten utterances in two processes of one thread, from the first start to the last end."""
    for stale in work.glob("ready.*"):
        stale.unlink()
    parts = [result_of(process) for process in [start([*command, f"{n}/2"], work, threads=1) for n in range(2)]]
    seconds = max(part["began"] + part["seconds"] for part in parts) - min(part["began"] for part in parts)
    hypotheses = {name: found for part in parts for name, found in part["hypotheses"].items()}
    return {"rtf": seconds / sum(part["audio_s"] for part in parts), "hypotheses": hypotheses}


def write_stand_in(env: Path) -> Path:
    """Write the empty torchaudio into the environment and return the directory for PYTHONPATH."""
    package = env / "stand_in" / "torchaudio"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(TORCHAUDIO_STAND_IN)
    return package.parent.resolve()


def start(command: list[str], work: Path, *, threads: int) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    if command[1].endswith("peer_worker.py"):
        environment["PYTHONPATH"] = str(write_stand_in(Path(command[0]).parents[1]))
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def result_of(process: subprocess.Popen[str]) -> dict:
    output, complaints = process.communicate()
    results = [line for line in output.splitlines() if line.startswith("RESULT ")]
    if process.returncode or not results:
        sys.exit(f"{process.args} failed:\n{complaints[-3000:]}")
    result: dict = json.loads(results[-1].removeprefix("RESULT "))
    return result


def write_inputs(work: Path) -> None:
    """The AISHELL recipe's sizes, a batch of 8 x 5 s with 14 characters each, ten utterances of 3 to 10 s."""
    work.mkdir(parents=True, exist_ok=True)
    tokens = ["<blank>", "<unk>", *(chr(0x4E00 + n) for n in range(4230)), "<sos/eos>"]
    settings = yaml.safe_load((HERE / "peer_settings.yaml").read_text(encoding="utf-8"))
    (work / "decode.yaml").write_text(yaml.safe_dump(settings.pop("decode")))
    (work / "settings.yaml").write_text(
        yaml.safe_dump(settings | {"token_list": tokens}, allow_unicode=True), encoding="utf-8"
    )
    rng = np.random.default_rng(0)
    np.savez(
        work / "batch.npz",
        speech=(0.1 * rng.standard_normal((8, 5 * RATE))).astype(np.float32),
        speech_lengths=np.full(8, 5 * RATE),
        text=rng.integers(2, len(tokens) - 1, (8, 14)),
        text_lengths=np.full(8, 14),
    )
    durations = np.linspace(3, 10, 10)
    noise = {f"u{n}": (0.1 * rng.standard_normal(int(RATE * s))).astype(np.float32) for n, s in enumerate(durations)}
    np.savez(work / "utterances.npz", **noise)


if __name__ == "__main__":
    main()
