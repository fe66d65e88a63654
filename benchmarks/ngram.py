"""N-grams: time and memory of estimation, and speed of batched scoring compared with KenLM.

    python benchmarks/ngram.py estimate [--tokens 12500000]
    python benchmarks/ngram.py score MODEL.arpa

Published for the original (KenLM's `lmplz -o 4` on 12.5 M characters of Chinese, 7.7 M different 4-grams): 18 CPU
seconds, 1.2 GB. lmplz is not on PyPI, so it is not run here.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

PUBLISHED_CPU_S = 18.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    estimate = commands.add_parser("estimate")
    estimate.add_argument("--tokens", type=int, default=12_500_000)
    estimate.add_argument("--memory", default="256M")
    estimate.add_argument("--keep", type=Path, help="directory for text and model")
    score = commands.add_parser("score")
    score.add_argument("model", type=Path, help="ARPA file")
    score.add_argument("--beams", type=int, default=100)
    args = parser.parse_args()
    if args.command == "estimate":
        run_estimate(args.tokens, args.memory, args.keep)
    else:
        run_score(args.model, args.beams)


def run_estimate(tokens: int, memory: str, keep: Path | None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        text, arpa = folder / "train.txt", folder / "4gram.arpa"
        write_text(text, tokens)
        print(f"text: {tokens:,} tokens, {text.stat().st_size / 1e6:.0f} MB")
        command = [sys.executable, "-m", "tympan", "ngram_train", "-o", "4", "--discount_fallback", "--memory", memory]
        start = time.perf_counter()
        subprocess.run([*command, "--arpa", str(arpa), "--binary", str(folder / "4gram.bin"), str(text)], check=True)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime
        print(f"ngram_train: {cpu:.1f} CPU s, {time.perf_counter() - start:.1f} s, {used.ru_maxrss / 1e6:.2f} GB")
        print(f"{cpu / PUBLISHED_CPU_S:.2f} times lmplz's published {PUBLISHED_CPU_S:.0f} CPU s")


def write_text(path: Path, tokens: int, *, words: int = 1514, seed: int = 1) -> None:
    """Sentences of about 29 characters, about as repetitive as Chinese text: each character depends on the one or
    two characters before it, or is drawn at random."""
    rng = np.random.default_rng(seed)
    drawn = np.minimum(rng.zipf(1.25, tokens) - 1, 10**6) % words
    choice = rng.random(tokens)
    branch = rng.geometric(0.5, tokens)
    ids = drawn.tolist()
    kinds = np.select([choice < 0.75, choice < 0.88], [2, 1], 0).tolist()
    branches = branch.tolist()
    for i in range(2, tokens):
        if kinds[i] == 2:
            ids[i] = (ids[i - 1] * 7919 + ids[i - 2] * 104729 + branches[i] * 31) % words
        elif kinds[i] == 1:
            ids[i] = (ids[i - 1] * 15485863 + branches[i] * 37) % words
    characters = np.array([chr(0x4E00 + i) for i in range(words)])
    ends = rng.random(tokens) < 1 / 29
    pieces = np.where(ends, "\n", " ")
    with path.open("w", encoding="utf-8") as stream:
        for start in range(0, tokens, 1 << 20):
            part = slice(start, start + (1 << 20))
            stream.write("".join(np.char.add(characters[np.array(ids[part])], pieces[part]).tolist()))


def run_score(path: Path, beams: int, steps: int = 30) -> None:
    import kenlm
    import torch

    from tympan.decode.ngram_table import NgramTable
    from tympan.text.ngram.load import load_ngram

    torch.set_num_threads(1)
    start = time.perf_counter()
    model = load_ngram(path)
    print(f"load: {time.perf_counter() - start:.2f} s")
    table = NgramTable.from_model(model, torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(3, table.words, (steps, beams), generator=generator)

    state = torch.full((beams,), table.begin)
    start = time.perf_counter()
    for column in tokens:
        scores = table.distribution(state)
        # Continue likely words half of the time, so that contexts are deep.
        column = torch.where(torch.rand(beams, generator=generator) < 0.5, scores[:, 3:].argmax(1) + 3, column)
        state = table.advance(state, column)
    ours = time.perf_counter() - start

    reference = kenlm.Model(str(path))
    states = [kenlm.State() for _ in range(beams)]
    for each in states:
        reference.BeginSentenceWrite(each)
    after, rows = kenlm.State(), min(beams, 10)
    start = time.perf_counter()
    for each in states[:rows]:
        for word in model.words:
            reference.BaseScore(each, word, after)
    theirs = (time.perf_counter() - start) / rows * beams * steps
    print(f"{beams} hypotheses, {table.words} words, {steps} steps: {ours / steps * 1e3:.2f} ms per step")
    print(
        f"KenLM, looping over hypotheses and words: {theirs / steps * 1e3:.1f} ms per step, {theirs / ours:.0f} times"
    )


if __name__ == "__main__":
    main()
