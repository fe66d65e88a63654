"""Stage 5: average models, decode, score and write reports."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

from tympan.config.command_line import split_words
from tympan.data.kaldi_dir import read_table
from tympan.files import explained, read_json
from tympan.recipe.averaging import REGION, write_model
from tympan.recipe.console import run_command
from tympan.recipe.corpus import DATA, Corpus
from tympan.recipe.options import RecipeOptions
from tympan.recipe.recipe import Recipe
from tympan.recipe.stage import Step

SCORES = {"char": "score_cer", "word": "score_wer"}
"""Unit of scoring and its directory, named as in ESPnet2."""


def decode_steps(recipe: Recipe) -> list[Step]:
    """Make the model to decode with; then decode, score and report each set."""
    options, directory = recipe.options, recipe.asr_dir
    steps = []
    if options.n_average or not options.recog_model:
        number, which = max(options.n_average, 1), options.average if options.n_average else "best"
        # A different `latest` means that other epochs were trained.
        steps.append(
            Step(
                f"average {directory.name}" if options.n_average else f"best epoch {directory.name}",
                partial(write_model, directory, recipe.model_file, number=number, which=which),
                [directory / "latest.pth", directory / "config.yaml"],
                [recipe.model_file],
                {"epochs": number, "which": which, "region": REGION},
            )
        )
    for name in recipe.corpus.decoded():
        steps += _set_steps(recipe, name)
    return [*steps, _pack_step(recipe)]


def packed_dir(recipe: Recipe) -> Path:
    """Write the folder that `tympan transcribe` loads."""
    options = recipe.options
    return recipe.asr_dir / f"packed_{options.model_file.removesuffix('.pth')}_{Path(options.decode_config).stem}"


def inference_arguments(recipe: Recipe, name: str) -> list[str]:
    """The command line of asr_inference for one set."""
    options = recipe.options
    arguments = ["--config", options.decode_config, "--output_dir", str(recipe.decode_dir(name))]
    arguments += ["--data_path_and_name_and_type", recipe.features.decoding_data(name)]
    arguments += _model_arguments(recipe)
    arguments += ["--ngpu", "0", "--nj", str(options.jobs)]  # the recipe decodes on the CPU
    return [*arguments, *split_words(options.inference_args, option="inference_args")]


def scored(options: RecipeOptions, corpus: Corpus) -> dict[str, float]:
    """The character error rate of each decoded set, in percent."""
    rates = error_rates(Recipe.of(options, corpus))
    return {name: found["CER"] for name, found in rates.items() if "CER" in found}


def error_rates(recipe: Recipe) -> dict[str, dict[str, float]]:
    """CER and, for text with spaces, WER of each decoded set, in percent."""
    found: dict[str, dict[str, float]] = {}
    for name in recipe.corpus.decoded():
        for folder in SCORES.values():
            path = recipe.decode_dir(name) / folder / "score.json"
            if path.is_file():
                rate = _error_rate(path)
                found.setdefault(name, {})[folder.removeprefix("score_").upper()] = rate
    return found


def _error_rate(path: Path) -> float:
    kind = "the result of `tympan score`"
    numbers = read_json(path, kind)
    with explained(path, kind):
        return float(numbers["error_rate"])


def _set_steps(recipe: Recipe, name: str) -> list[Step]:
    decoded, options = recipe.decode_dir(name), recipe.options
    label = decoded.name.removeprefix("decode_")
    reference, hypothesis, recordings = DATA / name / "text", decoded / "text", DATA / name / "wav.scp"
    steps = [_decode_step(recipe, name, label)]
    has_words = reference.is_file() and any(" " in text for text in read_table(reference).values())
    for unit, folder in SCORES.items():
        if unit == "char" or has_words:
            steps.append(_score_step(reference, hypothesis, unit, decoded / folder, label))
    unit = "word" if has_words else "char"
    arguments = [str(reference), str(hypothesis), "--unit", unit, "--data_dir", str(DATA / name)]
    arguments += ["--output", str(decoded / "report.html"), "--nj", str(options.jobs)]
    reporting = partial(run_command, "report", arguments)
    needs, makes = [reference, hypothesis, recordings], [decoded / "report.html"]
    steps.append(Step(f"report {label}", reporting, needs, makes, {"unit": unit}, recordings=[recordings]))
    return steps


def _decode_step(recipe: Recipe, name: str, label: str) -> Step:
    options, decoded = recipe.options, recipe.decode_dir(name)
    needs = [recipe.model_file, Path(options.decode_config), *_language_models(options).values(), *recipe.tokens.needs]
    needs += recipe.features.decoding_needs(name)
    settings = {"arguments": split_words(options.inference_args, option="inference_args")}
    return Step(
        f"decode {label}",
        partial(run_command, "asr_inference", inference_arguments(recipe, name)),
        needs,
        [decoded / "text"],
        settings,
        continues=settings,
        output_dir=decoded,
        recordings=recipe.features.recordings([name]),
        remedy=_saved_models(recipe),
    )


def _saved_models(recipe: Recipe) -> str:
    """What to do if the model of --recog_model does not exist; empty if training saved none or it was not given."""
    saved = sorted(path.stem for path in recipe.asr_dir.glob("*.pth") if "checkpoint" not in path.name)
    if not recipe.options.recog_model or recipe.model_file.exists() or not saved:
        return ""
    return f"--recog_model must be one of the models that training saved: {', '.join(saved)}."


def _score_step(reference: Path, hypothesis: Path, unit: str, folder: Path, label: str) -> Step:
    arguments = [str(reference), str(hypothesis), "--unit", unit, "--output_dir", str(folder)]
    makes = [folder / "result.txt", folder / "score.json"]
    name = f"{folder.name.replace('_', ' ')} {label}"
    return Step(name, partial(run_command, "score", arguments), [reference, hypothesis], makes, {"unit": unit})


def _pack_step(recipe: Recipe) -> Step:
    options, folder = recipe.options, packed_dir(recipe)
    needs = [recipe.asr_dir / "config.yaml", recipe.model_file, Path(options.decode_config)]
    needs += [*_language_models(options).values(), *recipe.tokens.needs]
    arguments = [str(folder), *_model_arguments(recipe), "--decode_config", options.decode_config]

    def pack() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        run_command("pack", arguments)

    return Step(f"pack {recipe.asr_dir.name}", pack, needs, [folder / "config.yaml", folder / "model.safetensors"])


def _model_arguments(recipe: Recipe) -> list[str]:
    arguments = ["--asr_train_config", str(recipe.asr_dir / "config.yaml")]
    arguments += ["--asr_model_file", str(recipe.model_file)]
    for flag, path in _language_models(recipe.options).items():
        arguments += [flag, str(path)]
    return [*arguments, *recipe.tokens.decoding_arguments()]


def _language_models(options: RecipeOptions) -> dict[str, Path]:
    files = {}
    if options.lm_config:
        files["--lm_train_config"] = options.lm_dir / "config.yaml"
        files["--lm_file"] = options.lm_dir / "valid.loss.best.pth"
    if options.n_gram:
        files["--ngram_file"] = options.ngram_file
    return files
