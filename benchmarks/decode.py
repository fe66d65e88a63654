"""Decoding speed on CPU, in ESPnet2's setting: RTF at batch 1 and at larger batches, and the share of each part.

The model is the AISHELL recipe's Conformer with random weights (46 M parameters, 4,233 tokens), with a Transformer LM
of 4 x 256; beam 10, CTC 0.5, LM 0.7, at most 20 tokens; ten utterances of 3 to 10 s. The second table: a 4-gram at 0.3.
Compare only ratios of one run on an idle machine. `--cpu_time true` (with one thread) depends less on other programs.

usage: python benchmarks/decode.py [--threads 2] [--batches 1,2,5,10] [--ngram_file 4gram.arpa] [--repeats 3]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tympan.config import option, parse_args
from tympan.runtime.malloc import keep_freed_memory

SETTINGS = Path(__file__).with_name("peer_settings.yaml")
VOCABULARY = 4233


@dataclass(frozen=True)
class Options:
    threads: int = option(2, help="number of torch threads")
    batches: str = option("1,2,5,10", help="batch sizes, separated by commas")
    ngram_file: Path | None = option(
        None, help="4-gram model for the second table; null: estimate one from random text"
    )
    repeats: int = option(3, help="number of repetitions; the best is shown")
    cpu_time: bool = option(False, help="measure CPU time instead of wall-clock time")


class Stopwatch:
    """Seconds by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began = self.clock()
            result = function(*args, **kwargs)
            self.seconds[name] += self.clock() - began
            return result

        return run


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="benchmarks/decode.py", description=__doc__)
    keep_freed_memory()  # as asr_inference does
    import torch

    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    rng = np.random.default_rng(0)
    durations_s = np.linspace(3, 10, 10)
    audio = [rng.normal(0, 0.1, int(s * 16000)).astype(np.float32) for s in durations_s]
    with tempfile.TemporaryDirectory() as folder:
        loaded = random_model(Path(folder))
        for ngram_weight in (0.0, 0.3):
            print(f"\n{'with the 4-gram at 0.3' if ngram_weight else 'without n-gram'}, {options.threads} threads")
            ngram = find_ngram(options.ngram_file, loaded, Path(folder)) if ngram_weight else None
            print("| batch | RTF | encoder | decoder | lm | ctc | ngram | rest of the search |\n|" + "---|" * 8)
            for batch_size in map(int, options.batches.split(",")):
                runs = [measure(loaded, ngram, ngram_weight, audio, batch_size, clock) for _ in range(options.repeats)]
                best = min(runs, key=lambda seconds: seconds["all"])
                total_s = float(durations_s.sum())
                search = best["all"] - best["encoder"]
                rest = search - sum(best[name] for name in ("decoder", "lm", "ctc", "ngram"))
                shares = [*(best[name] for name in ("encoder", "decoder", "lm", "ctc", "ngram")), rest]
                cells = " | ".join(f"{100 * share / best['all']:.0f} %" for share in shares)
                print(f"| {batch_size} | {best['all'] / total_s:.4f} | {cells} |", flush=True)
    return 0


def measure(
    loaded: Any,
    ngram: Path | None,
    ngram_weight: float,
    audio: list[np.ndarray],
    batch_size: int,
    clock: Callable[[], float],
) -> dict[str, float]:
    """Seconds of each part, for all the audio."""
    import dataclasses

    from tympan.decode.options import DecodeOptions
    from tympan.decode.recognizer import Recognizer
    from tympan.decode.segments import plan_by_length

    settings = DecodeOptions(
        beam_size=10, ctc_weight=0.5, lm_weight=0.7, ngram_weight=ngram_weight, maxlenratio=-20, nbest=1
    )
    recognizer = Recognizer(dataclasses.replace(loaded, ngram_file=ngram), settings)
    watch = Stopwatch(clock)
    recognizer.encode_batch = watch.timed("encoder", recognizer.encode_batch)  # type: ignore[method-assign]
    for name, item in {**recognizer.search.beam.full, **recognizer.search.beam.partial}.items():
        item.scorer.step = watch.timed(name, type(item.scorer).step.__get__(item.scorer))
    decode = watch.timed("all", recognizer.decode)
    lengths = [len(samples) / 16000 for samples in audio]
    for batch in plan_by_length(lengths, batch_size=batch_size, max_total=1e9):
        decode([audio[index] for index in batch])
    return watch.seconds


def random_model(folder: Path) -> Any:
    """The recipe's model and LM with random weights."""
    import dataclasses

    import torch
    import yaml

    from tympan.config.asr import AsrTrainConfig
    from tympan.config.lm import LmTrainConfig
    from tympan.config.read import load_training_config
    from tympan.decode.load import LoadedModel
    from tympan.decode.speech_input import speech_input
    from tympan.models.build import build_asr_model
    from tympan.models.lm.build import build_lm
    from tympan.nn.frozen import freeze
    from tympan.text.codec import build_codec

    torch.manual_seed(0)
    tokens = ["<blank>", "<unk>", *(chr(0x4E00 + i) for i in range(VOCABULARY - 3)), "<sos/eos>"]
    for name, values in yaml.safe_load(SETTINGS.read_text(encoding="utf-8")).items():
        if isinstance(values, dict):
            (folder / f"{name}.yaml").write_text(yaml.safe_dump({**values, "token_list": tokens}, allow_unicode=True))
    config = load_training_config(AsrTrainConfig, folder / "asr.yaml")
    model = build_asr_model(config).eval()
    lm = build_lm(load_training_config(LmTrainConfig, folder / "lm.yaml")).eval()
    for part in (model, lm):
        freeze(part)  # as load_model does
    return LoadedModel(
        model=model,
        codec=build_codec(dataclasses.replace(config.text, token_type="char")),
        input=speech_input(config, model, folder=folder, device=torch.device("cpu")),
        device=torch.device("cpu"),
        dtype=torch.float32,
        lm=lm,
    )


def find_ngram(path: Path | None, loaded: Any, folder: Path) -> Path:
    """The given 4-gram, or one of text drawn at random (Zipf's law, like characters)."""
    tokens = loaded.codec.vocabulary.tokens
    if path is None:
        from tympan.bin.ngram_train import main as ngram_train

        rng = np.random.default_rng(1)
        ids = np.minimum(rng.zipf(1.2, (20000, 14)) + 1, len(tokens) - 2)
        text, path = folder / "text", folder / "4gram.arpa"
        text.write_text("".join(" ".join(tokens[i] for i in row) + "\n" for row in ids), encoding="utf-8")
        ngram_train([str(text), "--order", "4", "--discount_fallback", "0.5", "1", "1.5", "--arpa", str(path)])
    return path


if __name__ == "__main__":
    sys.exit(main())
