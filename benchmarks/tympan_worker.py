"""Tympan's side of the comparison with ESPnet: the same weights, batch and utterances as peer_worker.py. Prints JSON.

usage: python tympan_worker.py train_step DIR [STEPS] | decode DIR [BATCH_SIZE] [SHARE]
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import yaml
from peer_share import begin_together, my_utterances

from tympan.config import load_training_config
from tympan.config.asr import AsrTrainConfig
from tympan.decode.load import load_model
from tympan.decode.model_files import ModelFiles
from tympan.decode.options import BatchLimits, DecodeOptions
from tympan.decode.recognizer import Recognizer
from tympan.models.build import build_asr_model
from tympan.runtime.malloc import keep_freed_memory
from tympan.training.optimizers import build_optimizer

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
TIMED_S = 10.0
"""Seconds for which passes are repeated; the result is their mean. One pass of ESPnet2 takes about as long, and on a
shared machine a shorter measurement would depend too much on other jobs.
"""


def main() -> None:
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    command, directory, *rest = sys.argv[1:]
    result = {"train_step": train_step, "decode": decode}[command](Path(directory), *rest)
    print("RESULT " + json.dumps(result, ensure_ascii=False))


def train_step(directory: Path, steps: str = "5") -> dict:
    """Seconds of a step: forward, backward, clipping and Adam. The first step warms up."""
    keep_freed_memory()  # as asr_train does
    model = build_asr_model(load_training_config(AsrTrainConfig, directory / "asr.yaml")).train()
    batch = {k: torch.from_numpy(v) for k, v in np.load(directory / "batch.npz").items()}
    batch["augment_seed"] = torch.arange(len(batch["speech"]))
    # asr_train's optimizer.
    optimizer = build_optimizer(torch.optim.Adam, {"lr": 1e-4}, list(model.named_parameters()))
    times = []
    for _ in range(int(steps) + 1):
        start = time.perf_counter()
        loss = model(**batch).value
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


def decode(directory: Path, batch_size: str = "1", share: str = "0/1") -> dict:
    """Real-time factor of the batched joint search, and the hypotheses."""
    keep_freed_memory()  # as asr_inference does
    settings = DecodeOptions(**yaml.safe_load((directory / "decode.yaml").read_text(encoding="utf-8")))
    files = ModelFiles(
        asr_train_config=directory / "asr.yaml",
        asr_model_file=directory / "asr.pth",
        lm_train_config=directory / "lm.yaml",
        lm_file=directory / "lm.pth",
    )
    loaded = load_model(files, device=torch.device("cpu"), dtype="float32")
    recognise = Recognizer(loaded, settings, limits=BatchLimits(batch_size=int(batch_size)))
    audio = my_utterances(directory, share)
    list(recognise.recognize(list(audio.values())))  # one pass as a warm-up, because real decoding runs are long
    begin_together(directory, share)
    began = time.time()
    start, passes, seconds = time.perf_counter(), 0, 0.0
    while seconds < TIMED_S:
        best = {place: hypotheses[0] for place, hypotheses in recognise.recognize(list(audio.values()))}
        passes, seconds = passes + 1, time.perf_counter() - start
    seconds /= passes
    total = sum(len(samples) for samples in audio.values()) / 16000
    hypotheses = {name: {"ids": list(best[n].token_ids), "score": best[n].score} for n, name in enumerate(audio)}
    return {"rtf": seconds / total, "began": began, "seconds": seconds, "audio_s": total, "hypotheses": hypotheses}


if __name__ == "__main__":
    main()
