"""Check that a refactoring changes no bit of the results: record them, change the code, compare.

    python benchmarks/same_bits.py record before.json
    python benchmarks/same_bits.py compare before.json

Only commands are run, so the check survives changes of the Python interfaces. It covers short training runs on a
synthetic corpus (losses of every epoch and a digest of every saved model: one process and two, accumulation,
SpecAugment, speed perturbation, fixed shapes, CTC only, a recurrent and a Transformer language model, a resumed run,
the collected statistics) and the n-best lists, scores and alignments of ESPnet2's golden models in ../shared/golden
(skipped, and reported as skipped, where that folder is missing). Record and compare on the same machine: other
processors round differently.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT.parent / "shared" / "golden"
MODELS = ("conformer", "transformer", "e_branchformer", "branchformer", "vgg_rnn", "ctc_only")
UTTERANCES = ("an4-fbbh-an89", "BAC009S0150W0040", "BAC009S0150W0285")
SEARCHES = ("joint", "ctc_greedy", "ctc_prefix", "rescore")
SPECAUG = ["--specaug", "specaug", "--specaug_conf", "apply_time_warp=true", "freq_mask_width_range=[0,4]",
           "time_mask_width_range=[0,5]"]  # fmt: skip

Facts = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    before = json.loads(options.file.read_text(encoding="utf-8")) if options.action == "compare" else None
    with tempfile.TemporaryDirectory(prefix="same-bits-") as directory:
        facts = dict(measure(Path(directory)))
    if before is None:
        options.file.write_text(json.dumps(facts, indent=1, ensure_ascii=False), encoding="utf-8")
        print(f"{len(facts)} values recorded in {options.file}")
        return 0
    different = [name for name in sorted({*before, *facts}) if before.get(name) != facts.get(name)]
    for name in different:
        print(f"differs: {name}\n  before {before.get(name)}\n  now    {facts.get(name)}")
    print(f"{len(before) - len(different)} of {len(before)} values are identical")
    return 1 if different else 0


def measure(directory: Path) -> Iterator[tuple[str, Any]]:
    """(name, value) of everything that must not change."""
    sys.path.insert(0, str(ROOT / "tests" / "integration"))
    from train_corpus import make_corpus

    corpus = directory / "corpus"
    yield from training_facts(make_corpus(corpus), corpus, directory)
    if not GOLDEN.is_dir():
        print("skipped: the golden models, because ../shared/golden is missing")
        return
    yield from decoding_facts(directory)


def training_facts(config: Path, corpus: Path, directory: Path) -> Iterator[tuple[str, Any]]:
    runs = {
        "plain": [],
        "augmented": [*SPECAUG, "--speed_perturb", "0.9", "1.0", "1.1", "--accum_grad", "3", "--num_workers", "2"],
        "two processes": ["--nproc", "2", "--batch_size", "3"],
        "bucket": ["--batch_type", "bucket", "--batch_bins", "40000", "--num_buckets", "2"],
        "numel": ["--batch_type", "numel", "--batch_bins", "20000"],
        "ctc only": ["--decoder", "null", "--decoder_conf", "null", "--model_conf", "ctc_weight=1.0"],
        "rnn": ["--encoder", "vgg_rnn", "--encoder_conf", "null", "--decoder", "rnn", "--decoder_conf", "null"],
    }  # fmt: skip
    for name, options in runs.items():
        yield from train(f"asr {name}", "asr_train", config, directory / name, options)
    half = directory / "resumed"
    call("asr_train", "--config", config, "--output_dir", half, "--max_epoch", "1", *SPECAUG)
    yield from train("asr resumed", "asr_train", config, half, ["--resume", "true", *SPECAUG])
    text = [f"{corpus}/{side}/text,text,text" for side in ("train", "valid")]
    for lm in ("seq_rnn", "transformer"):
        sizes = "unit=16" if lm == "seq_rnn" else "att_unit=16"
        options = ["--token_type", "char", "--token_list", corpus / "tokens.txt", "--lm", lm, "--lm_conf", sizes,
                   "--train_data_path_and_name_and_type", text[0], "--valid_data_path_and_name_and_type", text[1],
                   "--batch_type", "unsorted", "--batch_size", "4", "--max_epoch", "2", "--num_workers", "0",
                   "--use_matplotlib", "false", "--use_tensorboard", "false"]  # fmt: skip
        yield from train(f"lm {lm}", "lm_train", None, directory / lm, options)
    stats = directory / "stats"
    call("asr_train", "--config", config, "--output_dir", stats, "--collect_stats", "true")
    for path in sorted(stats.rglob("*")):
        if path.suffix == ".npz":
            arrays = np.load(path)
            yield f"stats {path.relative_to(stats)}", {name: digest(arrays[name].tobytes()) for name in arrays.files}
        elif path.is_file() and path.suffix != ".log":
            yield f"stats {path.relative_to(stats)}", digest(path.read_bytes())


def train(name: str, command: str, config: Path | None, output: Path, options: list[Any]) -> Iterator[tuple[str, Any]]:
    given = [] if config is None else ["--config", config]
    call(command, *given, "--output_dir", output, *options)
    manifest = json.loads((output / "manifest.json").read_text(encoding="utf-8"))
    for epoch, phases in manifest["epochs"].items():
        for phase, stats in phases.items():
            kept = {key: value for key, value in stats.items() if "time" not in key and "per_second" not in key}
            yield f"{name}: epoch {epoch} {phase}", kept
    yield f"{name}: weights", manifest["weights_sha256"]


def decoding_facts(directory: Path) -> Iterator[tuple[str, Any]]:
    scp = directory / "wav.scp"
    scp.write_text("".join(f"{name} {GOLDEN / 'kaldi' / name}.wav\n" for name in UTTERANCES), encoding="utf-8")
    for model in MODELS:
        folder = GOLDEN / "espnet2" / model
        files = ["--asr_train_config", folder / "config.yaml", "--asr_model_file", folder / "model.pth"]
        common = [*files, "--token_type", "char", "--beam_size", "5", "--nbest", "5"]
        for search in SEARCHES:
            options = [*common, "--search", search, *(["--maxlenratio", "0.2"] if search == "joint" else [])]
            if model == "ctc_only" and search == "joint":
                options += ["--ctc_weight", "1.0"]
            yield f"{model} {search}", decode(scp, directory / f"decode-{model}-{search}", options)
    folder = GOLDEN / "espnet2" / "conformer"
    files = ["--asr_train_config", folder / "config.yaml", "--asr_model_file", folder / "model.pth"]
    for scorer in ("full", "part"):
        options = [*files, "--token_type", "char", "--beam_size", "5", "--nbest", "5", "--maxlenratio", "0.2",
                   "--ngram_file", GOLDEN / "espnet2" / "conformer_ngram" / "4gram.arpa", "--ngram_scorer", scorer,
                   "--ngram_weight", "0.4", "--penalty", "0.2", "--normalize_length", "true"]  # fmt: skip
        yield f"conformer 4-gram {scorer}", decode(scp, directory / f"decode-ngram-{scorer}", options)
    yield from trained_facts(directory)


def trained_facts(directory: Path) -> Iterator[tuple[str, Any]]:
    """The model that ESPnet2 trained on real AN4 recordings."""
    folder = GOLDEN / "espnet2" / "an4_trained"
    model = ["--asr_train_config", folder / "asr_config.yaml", "--asr_model_file", folder / "asr_model.pth"]
    lm = ["--lm_train_config", folder / "lm_config.yaml", "--lm_file", folder / "lm_model.pth"]
    weights = ["--beam_size", "10", "--ctc_weight", "0.4", "--lm_weight", "0.3", "--nbest", "10"]
    for size in ("1", "16"):
        options = [*model, *lm, *weights, "--batch_size", size]
        yield f"an4_trained batch {size}", decode(folder / "wav.scp", directory / f"an4-{size}", options)
    for search in ("ctc_greedy", "ctc_prefix", "rescore"):
        options = [*model, *lm, *weights, "--search", search]
        yield f"an4_trained {search}", decode(folder / "wav.scp", directory / f"an4-{search}", options)
    packed = directory / "packed"
    settings = directory / "decode.yaml"
    settings.write_text("{beam_size: 5, ctc_weight: 0.4, lm_weight: 0.3}\n", encoding="utf-8")
    call("pack", packed, *model, *lm, "--decode_config", settings)
    recordings = sorted((folder / "wav").glob("*.wav"))
    lines = [json.loads(line) for line in call("transcribe", packed, *recordings, "--json").splitlines()]
    yield "an4_trained transcribe", [{**line, "file": Path(line["file"]).name} for line in lines]
    text = dict(line.split(maxsplit=1) for line in (folder / "text").read_text(encoding="utf-8").splitlines())
    for path in recordings[:3]:
        aligned = json.loads(call("asr_align", packed, "--audio", path, "--text", text[path.stem], "--format", "json"))
        yield f"an4_trained align {path.stem}", aligned


def decode(scp: Path, output: Path, options: list[Any]) -> Facts:
    """The whole n-best list: tokens and scores as they are written, and the best with its times."""
    call("asr_inference", "--output_dir", output, "--data_path_and_name_and_type", f"{scp},speech,sound", *options)
    found: Facts = {}
    for path in [*sorted(output.glob("*best_recog/*")), output / "text", output / "hyps.jsonl", output / "ctm"]:
        found[str(path.relative_to(output))] = digest(path.read_bytes())
    found["first scores"] = (output / "1best_recog" / "score").read_text(encoding="utf-8")[:200]
    return found


def call(command: str, *arguments: Any) -> str:
    line = [sys.executable, "-m", f"tympan.bin.{command}", *map(str, arguments)]
    # One thread: with more, the order of a sum may depend on what else the machine does.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(line)}\n{done.stdout}{done.stderr}")
    return done.stdout


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


if __name__ == "__main__":
    raise SystemExit(main())
