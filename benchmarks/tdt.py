"""CPU time of the greedy search: a token-and-duration transducer that skips frames, against a plain transducer.

usage: python benchmarks/tdt.py --plain DIR --tdt DIR --data DIR [--utterances 40] [--threads 1] [--repeats 3]

The folders are made by `tympan pack`, the data directory has a wav.scp. The plain model is also searched one frame at a
time, because a search that skips frames can't look at several frames at once. Only the search is measured, after the
encoder: first one utterance at a time, then all in one batch. The fastest of the repeats is shown.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tympan.config import option, parse_args
from tympan.data.kaldi_dir import DataDir
from tympan.decode.recognizer import Recognizer
from tympan.decode.search import Encoded, run_search
from tympan.decode.transducer_search import GreedyTransducer
from tympan.models import transducer_greedy


@dataclass(frozen=True)
class Options:
    plain: Path = option(help="folder of the plain transducer")
    tdt: Path = option(help="folder of the token-and-duration transducer")
    data: Path = option(help="data directory")
    utterances: int = option(40, help="number of utterances, from the first", least=1)
    threads: int = option(1, help="number of torch threads", least=1)
    repeats: int = option(3, help="number of repetitions; the fastest is shown", least=1)


@dataclass(frozen=True)
class Measured:
    """Of one pass over all utterances."""

    cpu_s: float
    looks: int
    """How often the joint network was called."""
    tokens: int


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="benchmarks/tdt.py", description=__doc__)
    torch.set_num_threads(options.threads)
    print("| model | frames at a time | utterances at a time | CPU time | looks | frames | tokens |\n|" + "---|" * 7)
    for name, folder in (("plain", options.plain), ("durations", options.tdt)):
        recognizer = Recognizer.from_pretrained(folder, search="transducer_greedy")
        search = recognizer.search
        assert isinstance(search, GreedyTransducer)
        durations = search.parts.joint.durations
        if bool(durations) != (name == "durations"):
            raise SystemExit(f"{folder}: tdt_durations is {list(durations)}; is this the model of the other option?")
        encoded = list(encodings(recognizer, options))
        frames = sum(int(item.lengths.sum()) for item in encoded[0])
        for block in (1,) if durations else (transducer_greedy.BLOCK, 1):
            for batches in encoded:
                best = fastest(search, batches, block=block, repeats=options.repeats)
                size = options.utterances // len(batches)
                time_ms = f"{1000 * best.cpu_s:.0f} ms"
                print(f"| {name} | {block} | {size} | {time_ms} | {best.looks:,} | {frames:,} | {best.tokens:,} |")
    return 0


def encodings(recognizer: Recognizer, options: Options) -> Iterator[list[Encoded]]:
    """The utterances one by one, then in one batch."""
    rows = DataDir.read(options.data).wav
    names = list(rows)[: options.utterances]
    if len(names) < options.utterances:
        raise SystemExit(f"{options.data}: has {len(names)} recordings, --utterances is {options.utterances}")
    speech = [recognizer.read(rows[name]) for name in names]
    yield [recognizer.encode_batch([item]) for item in speech]
    yield [recognizer.encode_batch(speech)]


def fastest(search: GreedyTransducer, batches: Sequence[Encoded], *, block: int, repeats: int) -> Measured:
    before = transducer_greedy.BLOCK
    transducer_greedy.BLOCK = block
    try:
        return min((measure(search, batches) for _ in range(repeats)), key=lambda item: item.cpu_s)
    finally:
        transducer_greedy.BLOCK = before


def measure(search: GreedyTransducer, batches: Sequence[Encoded]) -> Measured:
    calls: list[None] = []
    hook = search.parts.joint.register_forward_hook(lambda *_: calls.append(None))
    start = time.process_time()
    found = [run_search(search, batch) for batch in batches]
    cpu_s = time.process_time() - start
    hook.remove()
    return Measured(cpu_s, len(calls), sum(len(hypotheses[0].token_ids) for batch in found for hypotheses in batch))


if __name__ == "__main__":
    sys.exit(main())
