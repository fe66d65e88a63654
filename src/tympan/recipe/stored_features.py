"""`--feats_type fbank` and `fbank_pitch`: Kaldi features of speed-perturbed data, normalized and stored in the dump."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tympan.data.kaldi_dir import DataDir, read_table
from tympan.data.shapes import write_shapes
from tympan.errors import UserError
from tympan.features.extractor import FeatureOptions, save_options
from tympan.recipe.console import run_command
from tympan.recipe.corpus import DATA, LABELS, Corpus, data_files, sound_files
from tympan.recipe.feature_source import FeatureSource
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import Step
from tympan.recipe.tokens import Tokens
from tympan.runtime.atomic import atomic_write
from tympan.text.vocabulary import read_token_list

if TYPE_CHECKING:
    import torch

FBANK = Path("fbank")
"""Directory of the features before normalization, named as in ESPnet1's recipe."""
FRAMES_PER_SECOND = 100
BYTES_PER_SECOND = 32_000
"""Bytes per second of wav: 16 kHz, 16 bit."""
FLAC_SHARE = 0.55
"""Size of flac relative to wav, for speech."""
COMPRESSION = 2
"""Kaldi's method for speech features, one byte per value; `copy-feats` in ESPnet1's dump.sh uses it, too."""
PASSES = 3
"""Number of measurements; the best one counts."""


@dataclass(frozen=True)
class StoredFeatures(FeatureSource):
    """Features on disk, with the training data at several speeds, normalized with the training set's statistics."""

    options: RecipeOptions
    tokens: Tokens
    feats_type: Literal["fbank", "fbank_pitch"]
    has_pitch: bool

    def train_set(self, plain: str) -> str:
        return f"{plain}_sp" if self._is_perturbed else plain

    def check(self) -> None:
        self._feature_options()

    def feature_steps(self, corpus: Corpus) -> list[Step]:
        train = self.train_set(corpus.train)
        steps = [self._perturb_step(corpus.train, train)] if self._is_perturbed else []
        names = (train, *corpus.decoded())
        steps += [self._features_step(name) for name in names]
        stats = _cmvn_file(train)
        arguments = [str(FBANK / train), str(stats), "--nj", str(self.options.jobs)]
        needs = [FBANK / train / "feats.scp", FBANK / train / "archive"]
        steps.append(Step("cmvn", partial(run_command, "compute_cmvn", arguments), needs, [stats]))
        return steps + [self._dump_step(name, stats) for name in names]

    def length_steps(self, names: Sequence[str]) -> list[Step]:
        return [self._lengths_step(name) for name in names]

    def steps_before_training(self, corpus: Corpus) -> list[Step]:
        return []

    def steps_after_training(self, corpus: Corpus, directory: Path) -> list[Step]:
        """Save next to the model how to compute the same features from any audio."""
        stats = _cmvn_file(self.train_set(corpus.train))
        return [
            Step(
                f"features of {directory.name}",
                partial(self._describe, stats, directory),
                [stats, directory / "config.yaml"],
                [directory / "features.yaml", directory / "cmvn.ark"],
                {"features": repr(self._feature_options()), "do_delta": self.options.do_delta},
            )
        ]

    def training_arguments(self, corpus: Corpus) -> list[str]:
        arguments = []
        for split, name in (("train", self.train_set(corpus.train)), ("valid", corpus.dev)):
            flag = f"--{split}_data_path_and_name_and_type"
            arguments += [flag, self.decoding_data(name), flag, f"{DATA / name / 'text'},text,text"]
            for shape in self._shape_files(name):
                arguments += [f"--{split}_shape_file", str(shape)]
        return [*arguments, "--input_size", str(self.step_dim), "--frontend", "null", "--normalize", "null"]

    def training_needs(self, name: str) -> list[Path]:
        return [*self._shape_files(name), *self.decoding_needs(name)]

    def decoding_data(self, name: str) -> str:
        return f"{self.options.dump_dir(name) / 'feats.scp'},speech,kaldi_ark"

    def decoding_needs(self, name: str) -> list[Path]:
        dump = self.options.dump_dir(name)
        return [dump / "feats.scp", dump / "archive"]

    def recordings(self, names: Sequence[str]) -> list[Path]:
        return []

    @property
    def copies(self) -> float:
        return sum(1 / speed for speed in self.options.speed_factors) if self._is_perturbed else 1.0

    @property
    def steps_per_second(self) -> int:
        return FRAMES_PER_SECOND

    @property
    def step_dim(self) -> int:
        """Deltas are added after normalization, as in ESPnet1's recipe."""
        return self._feature_options().dim * (3 if self.options.do_delta else 1)

    def disk_bytes(self, seconds: float, *, changed_s: float) -> float:
        value_bytes = 1 if self.options.compress else 4
        stored = seconds * FRAMES_PER_SECOND * value_bytes * (self._feature_options().dim + self.step_dim)
        return stored + changed_s * BYTES_PER_SECOND * FLAC_SHARE

    def noise(self, seconds: float, device: torch.device) -> torch.Tensor:
        import torch

        return torch.randn(2, int(seconds * FRAMES_PER_SECOND), self.step_dim, device=device)

    def extraction_s(self) -> float:
        import numpy as np

        from tympan.data.audio import Audio
        from tympan.features.extractor import compute_features

        wanted = self._feature_options()
        rate = int(wanted.frame.sample_frequency)
        audio = Audio(np.random.default_rng(0).normal(0, 0.01, 10 * rate).astype(np.float32), rate)
        times = []
        for _ in range(PASSES):
            began = time.monotonic()
            compute_features(audio, wanted, utterance="noise")
            times.append((time.monotonic() - began) / 10)
        return min(times)

    @property
    def _is_perturbed(self) -> bool:
        return self.options.speed_factors != [1.0]

    @property
    def _compression(self) -> list[str]:
        return ["--compression_method", str(COMPRESSION)] if self.options.compress else []

    @property
    def _storage(self) -> dict[str, object]:
        """The compression setting of a step. It is empty if compressed, so that features of older runs stay valid."""
        return {} if self.options.compress else {"compress": False}

    def _feature_options(self) -> FeatureOptions:
        """The feature options of the conf files."""
        return FeatureOptions.from_conf(
            self.feats_type,
            fbank_config=_existing(self.options.fbank_config, "--fbank_config"),
            pitch_config=_existing(self.options.pitch_config, "--pitch_config") if self.has_pitch else None,
        )

    def _shape_files(self, name: str) -> tuple[Path, Path]:
        """Shape files of speech, then of text: the order of `fold_length`."""
        dump = self.options.dump_dir(name)
        return dump / "speech_shape", dump / f"text_shape.{self.tokens.kind}"

    def _perturb_step(self, plain: str, perturbed: str) -> Step:
        """Copies at other speeds, ids `sp0.9-...`; only the tables and the changed audio are written."""
        source, target = DATA / plain, DATA / perturbed
        speeds = self.options.speed_factors
        arguments = [str(source), str(target), "--speeds", *map(str, speeds), "--nj", str(self.options.jobs)]
        return Step(
            f"speed {plain}",
            partial(run_command, "perturb_data", arguments),
            data_files(source),
            [target / "wav.scp", target / "text", target / "utt2spk", target / "audio"],
            {"speeds": speeds},
            recordings=[source / "wav.scp"],
        )

    def _features_step(self, name: str) -> Step:
        source, target = DATA / name, FBANK / name
        arguments = [str(source), str(target), "--feats_type", self.feats_type, "--nj", str(self.options.jobs)]
        arguments += ["--fbank_config", self.options.fbank_config] if self.options.fbank_config else []
        arguments += ["--pitch_config", self.options.pitch_config] if self.has_pitch else []
        arguments += self._compression
        settings = {"features": repr(self._feature_options()), **self._storage}
        return Step(
            f"features {name}",
            partial(_make_features, arguments, source, target),
            sound_files(source),
            [target / "feats.scp", target / "utt2num_frames", target / "archive"],
            settings,
            continues=settings,
            output_dir=target,
            recordings=[source / "wav.scp"],
            labels=[source / label for label in LABELS],
        )

    def _dump_step(self, name: str, stats: Path) -> Step:
        source, target = FBANK / name, self.options.dump_dir(name)
        arguments = [str(source), str(target), "--cmvn", str(stats), "--nj", str(self.options.jobs)]
        arguments += ["--do_delta", "true"] if self.options.do_delta else []
        arguments += self._compression
        return Step(
            f"dump {name}",
            partial(run_command, "apply_cmvn", arguments),
            [source / "feats.scp", source / "archive", stats],
            [target / "feats.scp", target / "utt2num_frames", target / "archive"],
            {"do_delta": self.options.do_delta, **self._storage},
        )

    def _lengths_step(self, name: str) -> Step:
        """Write ESPnet2's shape files and ESPnet1's `data.json`."""
        dump = self.options.dump_dir(name)
        needs = [dump / "utt2num_frames", dump / "feats.scp", DATA / name / "text", self.tokens.token_list]
        return Step(
            f"lengths {name}",
            partial(self._write_lengths, name),
            [*needs, *self.tokens.needs],
            [*self._shape_files(name), dump / "data.json"],
            {"token": self.tokens.name},
        )

    def _write_lengths(self, name: str) -> None:
        dump = self.options.dump_dir(name)
        frames = {utterance: int(count) for utterance, count in read_table(dump / "utt2num_frames").items()}
        texts, feats = read_table(DATA / name / "text"), read_table(dump / "feats.scp")
        dim = _dimension(feats)
        vocabulary, tokenizer = read_token_list(self.tokens.token_list), self.tokens.tokenizer()
        tokens = {utterance: tokenizer.text2tokens(texts[utterance]) for utterance in frames}
        speech_shape, text_shape = self._shape_files(name)
        write_shapes(speech_shape, {utterance: (count, dim) for utterance, count in frames.items()})
        write_shapes(text_shape, {utterance: (len(tokens[utterance]), len(vocabulary)) for utterance in frames})
        unknown = sum(token not in vocabulary for sentence in tokens.values() for token in sentence)
        total = sum(map(len, tokens.values()))
        print(f"    {name}: {len(frames)} utterances, {total} tokens, {100 * unknown / max(total, 1):.2f} % unknown")
        speakers = read_table(DATA / name / "utt2spk")
        entries = {
            utterance: {
                "input": [{"name": "input1", "feat": feats[utterance], "shape": [count, dim]}],
                "output": [
                    {
                        "name": "target1",
                        "shape": [len(tokens[utterance]), len(vocabulary)],
                        "text": texts[utterance],
                        "token": " ".join(tokens[utterance]),
                        "tokenid": " ".join(map(str, vocabulary.tokens2ids(tokens[utterance]))),
                    }
                ],
                "utt2spk": speakers.get(utterance, utterance),
            }
            for utterance, count in frames.items()
        }
        with atomic_write(dump / "data.json") as stream:
            json.dump({"utts": entries}, stream, ensure_ascii=False, indent=1)

    def _describe(self, stats: Path, directory: Path) -> None:
        """Write `features.yaml` and `cmvn.ark`, for a recognizer that is given audio."""
        with atomic_write(directory / "cmvn.ark", "wb") as stream:
            stream.write(stats.read_bytes())
        wanted = replace(self._feature_options(), do_delta=self.options.do_delta)
        save_options(directory / "features.yaml", wanted, cmvn="cmvn.ark")


def _make_features(arguments: Sequence[str], source: Path, target: Path) -> None:
    run_command("make_features", arguments)
    lost = len(DataDir.read(source).utterances) - len(DataDir.read(target).feats)
    if lost:
        print(f"    {lost} utterances are too short for features and were skipped, listed in {target / 'skipped'}")


def _cmvn_file(train_set: str) -> Path:
    return FBANK / train_set / "cmvn.ark"


def _dimension(feats: Mapping[str, str]) -> int:
    from tympan.data.ark import read_matrix

    return int(read_matrix(next(iter(feats.values()))).shape[1])


def _existing(path: str, option: str) -> Path | None:
    if not path:
        return None
    if not Path(path).is_file():
        raise UserError(f"{option}: there is no file {path}.")
    return Path(path)
