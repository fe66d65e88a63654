"""Stage 1: speed perturbation, features, global normalisation, and the dump that training reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.features.extractor import FeatureOptions, save_options
from tympan.recipe.command import run_command
from tympan.recipe.corpus import DATA, LABELS, Corpus, data_files, sound_files
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import Step

RAW = Path("fbank")
"""Features before normalisation, as the recipe names their directory."""


def feature_options(options: RecipeOptions) -> FeatureOptions:
    """What the conf files say of the features. Deltas come after normalisation, as in the recipe."""
    if options.feats_type == "raw":
        raise ValueError("raw audio has no stored features")
    return FeatureOptions.from_conf(
        options.feats_type,
        fbank_config=_conf(options.fbank_config, "--fbank_config"),
        pitch_config=_conf(options.pitch_config, "--pitch_config") if options.feats_type == "fbank_pitch" else None,
    )


def feature_size(options: RecipeOptions) -> int:
    return feature_options(options).dim * (3 if options.do_delta else 1)


def feature_steps(options: RecipeOptions, corpus: Corpus) -> list[Step]:
    """Nothing for raw audio: there the model makes its features and training changes the speed."""
    if options.feats_type == "raw":
        return []
    train = options.train_set(corpus.train)
    steps = [_perturb_step(options, corpus.train, train)] if options.is_perturbed else []
    names = (train, *corpus.decoded())
    steps += [_features_step(options, name) for name in names]
    stats = RAW / train / "cmvn.ark"
    counting = partial(run_command, "compute_cmvn", [str(RAW / train), str(stats), "--nj", str(options.jobs)])
    steps.append(Step("cmvn", counting, [RAW / train / "feats.scp", RAW / train / "archive"], [stats]))
    return steps + [_dump_step(options, name, stats) for name in names]


def _perturb_step(options: RecipeOptions, plain: str, perturbed: str) -> Step:
    """Copies at other speeds, ids `sp0.9-...`; nothing is written but the tables and the changed audio."""
    source, target = DATA / plain, DATA / perturbed
    arguments = [str(source), str(target), "--speeds", *map(str, options.speed_factors), "--nj", str(options.jobs)]
    return Step(
        f"speed {plain}",
        partial(run_command, "perturb_data", arguments),
        data_files(source),
        [target / "wav.scp", target / "text", target / "utt2spk", target / "audio"],
        {"speeds": options.speed_factors},
        recordings=[source / "wav.scp"],
    )


def _features_step(options: RecipeOptions, name: str) -> Step:
    source, target = DATA / name, RAW / name
    arguments = [str(source), str(target), "--feats_type", options.feats_type, "--nj", str(options.jobs)]
    arguments += ["--fbank_config", options.fbank_config] if options.fbank_config else []
    arguments += ["--pitch_config", options.pitch_config] if options.feats_type == "fbank_pitch" else []
    settings = {"features": repr(feature_options(options))}
    return Step(
        f"features {name}",
        partial(_make_features, arguments, source, target),
        sound_files(source),
        [target / "feats.scp", target / "utt2num_frames", target / "archive"],
        settings,
        continues=settings,
        output_dir=target,
        recordings=[source / "wav.scp"],
        labels=[source / name for name in LABELS],
    )


def _make_features(arguments: Sequence[str], source: Path, target: Path) -> None:
    run_command("make_features", arguments)
    lost = len(DataDir.read(source).utterances) - len(DataDir.read(target).feats)
    if lost:
        print(f"    {lost} utterances are too short for features and stay out: {target / 'skipped'}")


def _dump_step(options: RecipeOptions, name: str, stats: Path) -> Step:
    source, target = RAW / name, options.dump_dir(name)
    arguments = [str(source), str(target), "--cmvn", str(stats), "--nj", str(options.jobs)]
    arguments += ["--do_delta", "true"] if options.do_delta else []
    return Step(
        f"dump {name}",
        partial(run_command, "apply_cmvn", arguments),
        [source / "feats.scp", source / "archive", stats],
        [target / "feats.scp", target / "utt2num_frames", target / "archive"],
        {"do_delta": options.do_delta},
    )


def write_description(options: RecipeOptions, target: Path) -> None:
    """`features.yaml`: how to make the same features of any audio, for a recogniser that is given some."""
    save_options(target, replace(feature_options(options), do_delta=options.do_delta), cmvn="cmvn.ark")


def cmvn_file(train_set: str) -> Path:
    return RAW / train_set / "cmvn.ark"


def _conf(path: str, option: str) -> Path | None:
    if not path:
        return None
    if not Path(path).is_file():
        raise UserError(f"{option}: there is no file {path}.")
    return Path(path)
