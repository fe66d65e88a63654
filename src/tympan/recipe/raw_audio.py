"""`--feats_type raw`: the model computes features from audio, and training perturbs the speed on the fly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.config.command_line import split_words
from tympan.config.yaml_text import read_yaml
from tympan.errors import UserError
from tympan.recipe.console import run_command
from tympan.recipe.corpus import DATA, Corpus, sound_files
from tympan.recipe.feature_source import FeatureSource
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import Step
from tympan.recipe.survey import USUAL_RATE
from tympan.recipe.tokens import Tokens

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RawAudio(FeatureSource):
    """Audio as input. Its lengths and feature statistics are collected once before training."""

    options: RecipeOptions
    tokens: Tokens

    def train_set(self, plain: str) -> str:
        return plain

    def check(self) -> None:
        given = {word.split("=")[0] for word in split_words(self.options.asr_args, option="asr_args")}
        if self.options.speeds and "--speed_perturb" in given:
            raise UserError(
                f"--speeds {self.options.speeds} and --asr_args '--speed_perturb ...' set the same factors: remove one."
            )

    def feature_steps(self, corpus: Corpus) -> list[Step]:
        return []

    def length_steps(self, names: Sequence[str]) -> list[Step]:
        return []

    def steps_before_training(self, corpus: Corpus) -> list[Step]:
        arguments = ["--config", self.options.train_config, "--collect_stats", "true"]
        arguments += ["--output_dir", str(self._stats_dir)]
        arguments += ["--normalize", "null"]  # its statistics are being collected
        arguments += self.tokens.training_arguments()
        needs = [self.tokens.token_list]
        for split, name in (("train", corpus.train), ("valid", corpus.dev)):
            arguments += _data_arguments(split, name)
            needs += [*sound_files(DATA / name), DATA / name / "text"]
        makes = [self._stats_dir / split / "speech_shape" for split in ("train", "valid")]
        settings = {key: self._written.get(key) for key in ("frontend", "frontend_conf", "input_size")}
        run = partial(run_command, "asr_train", arguments)
        recordings = self.recordings([corpus.train, corpus.dev])
        return [Step("statistics", run, needs, makes, settings, recordings=recordings)]

    def steps_after_training(self, corpus: Corpus, directory: Path) -> list[Step]:
        return []

    def training_arguments(self, corpus: Corpus) -> list[str]:
        arguments = [*_data_arguments("train", corpus.train), *_data_arguments("valid", corpus.dev)]
        for split in ("train", "valid"):
            for shape in ("speech_shape", f"text_shape.{self.tokens.kind}"):
                arguments += [f"--{split}_shape_file", str(self._stats_dir / split / shape)]
        if self._written.get("normalize") == "global_mvn":
            arguments += ["--normalize_conf", f"stats_file={self._stats_dir / 'train' / 'feats_stats.npz'}"]
        return [*arguments, *self._speed_arguments()]

    def _speed_arguments(self) -> list[str]:
        """--speeds overrides the training configuration, which overrides the default."""
        is_written, factors = "speed_perturb" in self._written, self.options.speed_factors
        if is_written and not self.options.speeds:
            return []
        return ["--speed_perturb", *map(str, factors)] if is_written or factors != [1.0] else []

    def training_needs(self, name: str) -> list[Path]:
        return sound_files(DATA / name)

    def decoding_data(self, name: str) -> str:
        return _sound(DATA / name)

    def decoding_needs(self, name: str) -> list[Path]:
        return sound_files(DATA / name)

    def recordings(self, names: Sequence[str]) -> list[Path]:
        return [DATA / name / "wav.scp" for name in names]

    @property
    def takes_any_rate(self) -> bool:
        return self._written.get("resample") is True

    @property
    def copies(self) -> float:
        return 1.0

    @property
    def rate(self) -> int:
        """Sample rate of the recordings in Hz, by the training configuration."""
        from tympan.features.frontend import parse_rate

        for name in ("preprocessor_conf", "frontend_conf"):
            conf = self._written.get(name)
            if isinstance(conf, dict) and conf.get("fs"):
                return parse_rate(conf["fs"], option=f"{name} fs")
        return USUAL_RATE

    @property
    def steps_per_second(self) -> int:
        return self.rate

    @property
    def step_dim(self) -> int:
        return 1

    def disk_bytes(self, seconds: float, *, changed_s: float) -> float:
        return 0.0

    def noise(self, seconds: float, device: torch.device) -> torch.Tensor:
        import torch

        return torch.randn(2, int(seconds * self.rate), device=device)

    def extraction_s(self) -> float:
        return 0.0  # part of training and decoding

    @property
    def _stats_dir(self) -> Path:
        return Path("exp", f"asr_stats_raw_{self.tokens.kind}_{Path(self.options.train_config).stem}")

    @property
    def _written(self) -> Mapping[str, object]:
        """The content of the training configuration, without defaults."""
        path = Path(self.options.train_config)
        if not path.is_file():
            raise UserError(f"--train_config: there is no file {path}.")
        document = read_yaml(path).value
        return document if isinstance(document, dict) else {}


def _data_arguments(split: str, name: str) -> list[str]:
    flag = f"--{split}_data_path_and_name_and_type"
    return [flag, _sound(DATA / name), flag, f"{DATA / name / 'text'},text,text"]


def _sound(directory: Path) -> str:
    """The `path,name,type` of a data directory's audio: `segments` if there is such a file, else `sound`."""
    if (directory / "segments").exists():
        return f"{directory / 'segments'},speech,segments"
    return f"{directory / 'wav.scp'},speech,sound"
