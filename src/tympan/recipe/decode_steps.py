"""Stage 5: averaging, decoding, scoring, and the report."""

from __future__ import annotations

import json
import shlex
import shutil
from functools import partial
from pathlib import Path

from tympan.data.kaldi_dir import read_table
from tympan.errors import UserError
from tympan.recipe.command import run_command
from tympan.recipe.corpus import DATA, Corpus, sound_files, sound_triple
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import Step
from tympan.recipe.token_steps import bpe_model, lexicon_files

SCORES = {"char": "score_cer", "word": "score_wer"}
"""Unit of scoring and its directory, named as in ESPnet2."""


def decode_steps(options: RecipeOptions, corpus: Corpus) -> list[Step]:
    """The model to decode with, then decoding, scores and a report for each set."""
    train = options.train_set(corpus.train)
    directory = options.asr_dir(train)
    steps = []
    model = directory / options.model_file
    if options.n_average:
        # What training ended with: another `latest` means other epochs.
        steps.append(
            Step(
                f"average {directory.name}",
                partial(_average, options, directory, model),
                [directory / "latest.pth", directory / "config.yaml"],
                [model],
                {"epochs": options.n_average, "which": options.average},
            )
        )
    for name in corpus.decoded():
        steps += _set_steps(options, train, name)
    return [*steps, _pack_step(options, directory)]


def packed_dir(options: RecipeOptions, directory: Path) -> Path:
    """The folder with everything that `tympan transcribe` needs."""
    return directory / f"packed_{options.model_file.removesuffix('.pth')}_{Path(options.decode_config).stem}"


def inference_arguments(options: RecipeOptions, train: str, name: str) -> list[str]:
    """The command line of asr_inference for one set."""
    directory = options.asr_dir(train)
    arguments = ["--config", options.decode_config, "--output_dir", str(options.decode_dir(train, name))]
    if options.feats_type == "raw":
        data = sound_triple(DATA / name)
    else:
        data = f"{options.dump_dir(name) / 'feats.scp'},speech,kaldi_ark"
    arguments += ["--data_path_and_name_and_type", data]
    arguments += ["--asr_train_config", str(directory / "config.yaml")]
    arguments += ["--asr_model_file", str(directory / options.model_file)]
    for flag, path in _language_models(options).items():
        arguments += [flag, str(path)]
    model = bpe_model(options)
    arguments += ["--bpemodel", str(model)] if model else []
    arguments += ["--ngpu", "0", "--nj", str(options.jobs)]  # the recipe decodes on the CPU
    return [*arguments, *shlex.split(options.inference_args)]


def scored(options: RecipeOptions, corpus: Corpus) -> dict[str, float]:
    """The character error rate of each decoded set, in percent."""
    return {name: rates["CER"] for name, rates in error_rates(options, corpus).items() if "CER" in rates}


def error_rates(options: RecipeOptions, corpus: Corpus) -> dict[str, dict[str, float]]:
    """CER and, for text with spaces, WER of each decoded set, in percent."""
    train = options.train_set(corpus.train)
    found: dict[str, dict[str, float]] = {}
    for name in corpus.decoded():
        for folder in SCORES.values():
            path = options.decode_dir(train, name) / folder / "score.json"
            if path.is_file():
                rate = float(json.loads(path.read_text(encoding="utf-8"))["error_rate"])
                found.setdefault(name, {})[folder.removeprefix("score_").upper()] = rate
    return found


def _set_steps(options: RecipeOptions, train: str, name: str) -> list[Step]:
    decoded = options.decode_dir(train, name)
    reference, hypothesis = DATA / name / "text", decoded / "text"
    label = decoded.name.removeprefix("decode_")
    needs = [options.asr_dir(train) / options.model_file, Path(options.decode_config)]
    needs += [*_language_models(options).values(), *lexicon_files(options)]
    if options.feats_type == "raw":
        needs += sound_files(DATA / name)
    else:
        needs += [options.dump_dir(name) / "feats.scp", options.dump_dir(name) / "archive"]
    decoding = partial(run_command, "asr_inference", inference_arguments(options, train, name))
    settings = {"arguments": shlex.split(options.inference_args)}
    steps = [
        Step(
            f"decode {label}", decoding, needs, [hypothesis], settings, continues=settings, output_dir=decoded,
            recordings=[DATA / name / "wav.scp"] if options.feats_type == "raw" else [],
        )
    ]  # fmt: skip
    has_words = reference.is_file() and any(" " in text for text in read_table(reference).values())
    for unit, folder in SCORES.items():
        if unit == "char" or has_words:
            steps.append(_score_step(reference, hypothesis, unit, decoded / folder, label))
    unit = "word" if has_words else "char"
    arguments = [str(reference), str(hypothesis), "--unit", unit, "--data_dir", str(DATA / name)]
    arguments += ["--output", str(decoded / "report.html"), "--nj", str(options.jobs)]
    reporting = partial(run_command, "report", arguments)
    needs = [reference, hypothesis, DATA / name / "wav.scp"]
    audio = [DATA / name / "wav.scp"]
    steps.append(Step(f"report {label}", reporting, needs, [decoded / "report.html"], {"unit": unit}, recordings=audio))
    return steps


def _score_step(reference: Path, hypothesis: Path, unit: str, folder: Path, label: str) -> Step:
    arguments = [str(reference), str(hypothesis), "--unit", unit, "--output_dir", str(folder)]
    makes = [folder / "result.txt", folder / "score.json"]
    name = f"{folder.name.replace('_', ' ')} {label}"
    return Step(name, partial(run_command, "score", arguments), [reference, hypothesis], makes, {"unit": unit})


def _pack_step(options: RecipeOptions, directory: Path) -> Step:
    folder = packed_dir(options, directory)
    config, weights = directory / "config.yaml", directory / options.model_file
    needs = [config, weights, Path(options.decode_config), *_language_models(options).values(), *lexicon_files(options)]
    arguments = [str(folder), "--asr_train_config", str(config), "--asr_model_file", str(weights)]
    for flag, path in _language_models(options).items():
        arguments += [flag, str(path)]
    model = bpe_model(options)
    arguments += ["--bpemodel", str(model)] if model else []
    arguments += ["--decode_config", options.decode_config]

    def pack() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        run_command("pack", arguments)

    return Step(f"pack {directory.name}", pack, needs, [folder / "config.yaml", folder / "model.safetensors"])


def _language_models(options: RecipeOptions) -> dict[str, Path]:
    files = {}
    if options.lm_config:
        files["--lm_train_config"] = options.lm_dir / "config.yaml"
        files["--lm_file"] = options.lm_dir / "valid.loss.best.pth"
    if options.n_gram:
        files["--ngram_file"] = options.ngram_file
    return files


def _average(options: RecipeOptions, directory: Path, model: Path) -> None:
    from tympan.training.nbest import average, save_weights

    if options.average == "best":
        ready = sorted(
            directory.glob("valid.acc.ave_*best.pth"),
            key=lambda path: int(path.name.split("_")[1].removesuffix("best.pth")),
        )
        if not ready:
            raise UserError(f"{directory}: there is no average of the best epochs; train it (--stage train).")
        model.write_bytes(ready[-1].read_bytes())
        print(f"    {model}: {ready[-1].name}")
        return
    last = int((directory / "latest.pth").resolve().name.removesuffix("epoch.pth"))
    wanted = range(max(1, last - options.n_average + 1), last + 1)
    epochs = [epoch for epoch in wanted if (directory / f"{epoch}epoch.pth").exists()]
    save_weights(model, average(directory / f"{epoch}epoch.pth" for epoch in epochs))
    left_out = (
        f" ({len(wanted) - len(epochs)} of the last {len(wanted)} were not kept)" if len(epochs) < len(wanted) else ""
    )
    print(f"    {model}: mean of epochs {', '.join(map(str, epochs))}{left_out}")
