"""ESPnet's side of the comparison, with its public classes. Runs in ESPnet's environment and prints JSON.

usage: python peer_worker.py model DIR | train_step DIR [STEPS] | decode DIR [SHARE]
`model` makes random weights of the AISHELL size (recognizer and language model) that both tools then load.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from espnet2.bin.asr_inference import Speech2Text
from espnet2.tasks.asr import ASRTask
from espnet2.tasks.lm import LMTask
from peer_share import begin_together, my_utterances

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
HOP, WINDOW = 160, 400


def main() -> None:
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    command, directory, *rest = sys.argv[1:]
    result = {"model": make_models, "train_step": train_step, "decode": decode}[command](Path(directory), *rest)
    print("RESULT " + json.dumps(result, ensure_ascii=False))


def make_models(directory: Path) -> dict:
    """Write config.yaml/model.pth and lm.yaml/lm.pth."""
    directory.mkdir(parents=True, exist_ok=True)
    settings = yaml.safe_load((directory / "settings.yaml").read_text(encoding="utf-8"))
    sizes = {}
    for task, name in ((ASRTask, "asr"), (LMTask, "lm")):
        config = task.get_default_config() | settings[name]
        config["token_list"] = settings["token_list"]
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
        model = task.build_model(argparse.Namespace(**config))
        torch.save(model.state_dict(), directory / f"{name}.pth")
        sizes[name] = sum(p.numel() for p in model.parameters())
    return sizes


def train_step(directory: Path, steps: str = "5") -> dict:
    """Seconds of a step: forward, backward, clipping and Adam. The first step warms up."""
    config = yaml.safe_load((directory / "asr.yaml").read_text(encoding="utf-8"))
    model = ASRTask.build_model(argparse.Namespace(**config)).train()
    batch = {k: torch.from_numpy(v) for k, v in np.load(directory / "batch.npz").items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    times = []
    for _ in range(int(steps) + 1):
        start = time.perf_counter()
        loss, _, _ = model(**batch)
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append((forward - start, backward - forward, time.perf_counter() - backward))
    parts = np.median(np.array(times[1:]), axis=0).tolist()
    audio_s = float(batch["speech_lengths"].sum()) / 16000
    return {"forward_s": parts[0], "backward_s": parts[1], "optim_s": parts[2], "audio_s_per_s": audio_s / sum(parts)}


def decode(directory: Path, share: str = "0/1") -> dict:
    """Real-time factor of one-by-one joint search, and the hypotheses."""
    settings = yaml.safe_load((directory / "decode.yaml").read_text(encoding="utf-8"))
    recognise = Speech2Text(
        asr_train_config=str(directory / "asr.yaml"),
        asr_model_file=str(directory / "asr.pth"),
        lm_train_config=str(directory / "lm.yaml"),
        lm_file=str(directory / "lm.pth"),
        **settings,
    )
    audio = my_utterances(directory, share)
    for samples in audio.values():  # one pass as a warm-up, because real decoding runs are long
        recognise(samples)
    begin_together(directory, share)
    began = time.time()
    start = time.perf_counter()
    best = {name: recognise(samples)[0] for name, samples in audio.items()}
    seconds = time.perf_counter() - start
    total = sum(len(samples) for samples in audio.values()) / 16000
    hypotheses = {name: {"ids": list(map(int, hyp[2])), "score": float(hyp[3].score)} for name, hyp in best.items()}
    return {"rtf": seconds / total, "began": began, "seconds": seconds, "audio_s": total, "hypotheses": hypotheses}


if __name__ == "__main__":
    main()
