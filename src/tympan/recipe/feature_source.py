"""The source of the model's input, as the stages see it: stored features, or audio."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tympan.recipe.corpus import Corpus
from tympan.recipe.stage import Step

if TYPE_CHECKING:
    import torch


class FeatureSource(Protocol):
    """Names are names of sets under `data/`. The training set is `train_set`."""

    def train_set(self, plain: str) -> str:
        """The set to train on, made from the corpus's `plain` one."""
        ...

    def check(self) -> None:
        """UserError for mistakes in the settings of stage 1."""
        ...

    def feature_steps(self, corpus: Corpus) -> list[Step]:
        """Stage 1."""
        ...

    def length_steps(self, names: Sequence[str]) -> list[Step]:
        """Stage 2: write the lengths that training reads for each set."""
        ...

    def steps_before_training(self, corpus: Corpus) -> list[Step]:
        """Stage 4, before asr_train."""
        ...

    def steps_after_training(self, corpus: Corpus, directory: Path) -> list[Step]:
        """Stage 4, once the experiment is in `directory`."""
        ...

    def training_arguments(self, corpus: Corpus) -> list[str]:
        """Options for asr_train: its data, their lengths, and how they are turned into the model's input."""
        ...

    def training_needs(self, name: str) -> list[Path]:
        """Files of a set that asr_train reads, without the text."""
        ...

    def decoding_data(self, name: str) -> str:
        """`path,name,type` of a set for asr_inference."""
        ...

    def decoding_needs(self, name: str) -> list[Path]:
        """Files of a set that asr_inference reads."""
        ...

    def recordings(self, names: Sequence[str]) -> list[Path]:
        """Tables of the recordings that training and decoding read directly."""
        ...

    @property
    def takes_any_rate(self) -> bool:
        """Whether the recordings of a set may have different sample rates."""
        return False

    @property
    def copies(self) -> float:
        """Duration of the stored training set, relative to the unperturbed one."""
        ...

    @property
    def steps_per_second(self) -> int:
        """Length of one second in the unit of `fold_length` and `batch_bins`."""
        ...

    @property
    def step_dim(self) -> int:
        """Number of values in one such step."""
        ...

    def disk_bytes(self, seconds: float, *, changed_s: float) -> float:
        """Estimated size of what stage 1 writes; `changed_s` of the `seconds` are copies at other speeds."""
        ...

    def noise(self, seconds: float, device: torch.device) -> torch.Tensor:
        """Two utterances of random input, (2, time) or (2, time, dim)."""
        ...

    def extraction_s(self) -> float:
        """Measured time to extract the features of one second of audio on one core."""
        ...
