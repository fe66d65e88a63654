"""The options of `tympan recipe`, with the names and meanings of ESPnet1's run.sh, and the paths they imply."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tympan.config import argument, option
from tympan.errors import UserError

RUN = "stages"
DATA = "data and features"
LM = "language models"
ASR = "training"
DECODING = "decoding"
OWN = "your own data (corpus 'custom')"

DEFAULT_SPEEDS = "0.9 1.0 1.1"


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """One recipe, in the current directory."""

    corpus: str = argument(help="name of a corpus (`tympan recipe list` shows them), custom (your own data directories), or package.module:NAME of a corpus of your own")  # fmt: skip  # noqa: E501
    stage: str = option("0", help="first stage, by number or name (-1 download, 0 data, 1 features, 2 dictionary, 3 lm, 4 train, 5 decode)", group=RUN)  # fmt: skip  # noqa: E501
    stop_stage: str = option("100", help="last stage, by number or name", group=RUN)
    check: bool = option(
        False,
        help="check the machine and the configuration, estimate time and disk space, and exit (Tympan)",
        group=RUN,
    )
    force: bool = option(False, help="run the stages again even if they are done (Tympan)", group=RUN)
    nj: int = option(
        0, help="number of processes for feature extraction and decoding; 0: one per CPU core", group=RUN, least=0
    )
    verbose: int = option(0, help="verbosity; 2 or more prints debug messages", group=RUN, least=0)
    debugmode: int = option(
        1,
        help="0: allow non-deterministic cuDNN algorithms; 1: deterministic; 2: also detect anomalous gradients",
        group=RUN,
        least=0,
        most=2,
    )
    backend: Literal["pytorch"] = option(
        "pytorch", help="accepted for compatibility with ESPnet1; always pytorch", group=RUN
    )

    data: str = option("downloads", help="directory for the archives and the unpacked corpus", group=DATA)
    data_url: str = option("", help="source of the archives: http(s)://, file:// or a directory; empty: the official URL of the corpus", group=DATA)  # fmt: skip  # noqa: E501
    dumpdir: str = option("dump", help="directory for the normalized features", group=DATA)
    compress: bool = option(
        True,
        help="store features with Kaldi's lossy compression (method 2), a quarter of the size; false: float32 (Tympan)",
        group=DATA,
    )
    do_delta: bool = option(False, help="add delta and delta-delta features", group=DATA)
    feats_type: Literal["fbank_pitch", "fbank", "raw"] = option("fbank_pitch", help="stored Kaldi features, or raw: the model computes features from audio (Tympan)", group=DATA)  # fmt: skip  # noqa: E501
    speeds: str = option(
        "",
        help="speed perturbation factors of the training data; '1.0': no perturbation; "
        f"empty: speed_perturb of train_config, or {DEFAULT_SPEEDS} (Tympan)",
        group=DATA,
    )
    fbank_config: str = option("conf/fbank.conf", help="Kaldi options for filterbank features", group=DATA)
    pitch_config: str = option("conf/pitch.conf", help="Kaldi options for pitch features", group=DATA)
    token_type: Literal["char", "bpe", "word", "phn"] = option(
        "char", help="token type; phn: phones of a lexicon (Tympan)", group=DATA
    )
    lexicon: str = option("conf/lexicon.txt", help="pronunciation lexicon for token_type phn, WORD P1 P2 ... per line (Tympan)", group=DATA)  # fmt: skip  # noqa: E501
    nbpe: int = option(30, help="number of tokens for token_type bpe (Tympan)", group=DATA, least=1)

    lm_config: str = option(
        "conf/lm.yaml", help="training configuration of the neural LM; empty: no neural LM", group=LM
    )
    lmtag: str = option("", help="name of the LM experiment; empty: name of lm_config", group=LM)
    lm_resume: str = option(
        "", help="LM checkpoint to start from; empty: continue an interrupted run; false: start from scratch", group=LM
    )
    lm_args: str = option("", help="additional options for lm_train (Tympan)", group=LM)
    n_gram: int = option(4, help="order of the n-gram LM; 0: no n-gram LM", group=LM, least=0)
    ngramtag: str = option("", help="name of the n-gram LM; empty: its order", group=LM)
    lm_text: list[str] = option([], help="text file for the language models besides the training transcripts, one sentence per line; may be repeated (Tympan)", group=LM)  # fmt: skip  # noqa: E501

    train_config: str = option(
        "conf/train.yaml", help="training configuration of the recognizer, with ESPnet1 or ESPnet2 keys", group=ASR
    )
    preprocess_config: str = option(
        "", help="SpecAugment configuration, such as conf/specaug.yaml; empty: none", group=ASR
    )
    tag: str = option("", help="name of the experiment; empty: name of train_config", group=ASR)
    resume: str = option(
        "", help="checkpoint to start from; empty: continue an interrupted run; false: start from scratch", group=ASR
    )
    ngpu: int = option(
        1, help="number of accelerators for LM and ASR training; 0: train on the CPU", group=ASR, least=0
    )
    device: Literal["cpu", "cuda", "npu", "mps"] | None = option(
        None, help="device type; null: detect (Tympan)", group=ASR
    )
    nproc: int = option(1, help="number of training processes on the CPU (Tympan)", group=ASR, least=1)
    N: int = option(0, help="number of batches per epoch, for debugging; 0: all", group=ASR, least=0)
    asr_args: str = option("", help="additional options for asr_train (Tympan)", group=ASR)

    decode_config: str = option(
        "conf/decode.yaml", help="decoding configuration, with ESPnet1 or ESPnet2 keys", group=DECODING
    )
    n_average: int = option(10, help="maximum number of epochs to average for decoding; epochs whose validation result is much worse than the best are skipped; 0: use recog_model", group=DECODING, least=0)  # fmt: skip  # noqa: E501
    average: Literal["last", "best"] = option("last", help="epochs to average: the last, or the best by the first best_model_criterion of train_config (Tympan)", group=DECODING)  # fmt: skip  # noqa: E501
    recog_model: str = option("", help="model to decode with if n_average is 0, such as model.loss.best or 7epoch; empty: the best epoch by the first best_model_criterion of train_config", group=DECODING)  # fmt: skip  # noqa: E501
    inference_args: str = option("", help="additional options for asr_inference (Tympan)", group=DECODING)

    train_dir: str = option("", help="training data directory", group=OWN)
    dev_dir: str = option("", help="development data directory", group=OWN)
    test_dir: list[str] = option([], help="test data directory to decode; may be repeated", group=OWN)

    @property
    def jobs(self) -> int:
        return self.nj or len(os.sched_getaffinity(0))

    @property
    def speed_factors(self) -> list[float]:
        """The factors of --speeds, or the default ones."""
        return [float(speed) for speed in (self.speeds or DEFAULT_SPEEDS).replace(",", " ").split()]

    def train_set(self, plain: str) -> str:
        """The training set, made from the corpus's set `plain`."""
        from tympan.recipe.recipe import find_features
        from tympan.recipe.tokens import find_tokens

        return find_features(self, find_tokens(self)).train_set(plain)

    def dump_dir(self, name: str) -> Path:
        return Path(self.dumpdir, name, f"delta{str(self.do_delta).lower()}")

    @property
    def lm_name(self) -> str:
        return self.lmtag or Path(self.lm_config).stem

    @property
    def lm_dir(self) -> Path:
        return Path("exp", f"train_rnnlm_{self.backend}_{self.lm_name}")

    @property
    def ngram_file(self) -> Path:
        return Path("exp", "train_ngram", f"{self.ngramtag or self.n_gram}gram.arpa")

    def asr_dir(self, train_set: str) -> Path:
        if self.tag:
            return Path("exp", f"{train_set}_{self.backend}_{self.tag}")
        parts = [train_set, self.backend, Path(self.train_config).stem]
        parts += ["delta"] if self.do_delta else []
        parts += [Path(self.preprocess_config).stem] if self.preprocess_config else []
        return Path("exp", "_".join(parts))

    @property
    def model_file(self) -> str:
        """Name of the weights to decode with, in the experiment's directory."""
        if self.n_average > 0:
            return f"model.{self.average}{self.n_average}.avg.pth"
        given = self.recog_model.removesuffix(".pth") or "model.best"
        return {"model.acc.best": "valid.acc.best", "model.loss.best": "valid.loss.best"}.get(given, given) + ".pth"

    def decode_dir(self, train_set: str, name: str) -> Path:
        parts = ["decode", name, self.model_file.removesuffix(".pth"), Path(self.decode_config).stem]
        parts += [self.lm_name] if self.lm_config else []
        parts += [f"{self.ngramtag or self.n_gram}gram"] if self.n_gram else []
        return self.asr_dir(train_set) / "_".join(parts)


@dataclass(frozen=True)
class NewOptions:
    """The options of `tympan recipe new`."""

    name: Path = argument(help="recipe directory to create, such as egs/mine/asr1")
    train_dir: Path = option(help="training set: a Kaldi-style data directory, a manifest (CSV, TSV, JSON lines), a folder of recordings with a text file beside each, or a folder that `datasets` saved with save_to_disk")  # fmt: skip  # noqa: E501
    dev_dir: Path = option(help="development set, for model selection, in one of these forms")
    test_dir: list[Path] = option([], help="test set to decode, in one of these forms; may be repeated")
    token_type: Literal["char", "bpe", "word"] | None = option(None, help="token type; null: chosen by the data, or phones if --lexicon is given")  # fmt: skip  # noqa: E501
    lexicon: Path | None = option(
        None, help="pronunciation lexicon, WORD P1 P2 ... per line; its phones become the tokens"
    )
    nbpe: int | None = option(None, help="number of tokens for token_type bpe; null: chosen by the data", least=1)
    lm_text: list[Path] = option([], help="text file for the language models, one sentence per line; may be repeated")
    ngpu: int = option(0, help="number of accelerators to train on; 0: train on the CPU", least=0)


def with_defaults(defaults: Mapping[str, object], *, corpus: str) -> type[RecipeOptions]:
    """The options with the corpus's defaults, so that `--help` shows them. Given options override them."""
    known = {item.name: item for item in dataclasses.fields(RecipeOptions)}
    unknown = [name for name in defaults if name not in known]
    if unknown:
        raise UserError(f"corpus '{corpus}': `defaults` has '{unknown[0]}', which is not an option of `tympan recipe`.")
    types = typing.get_type_hints(RecipeOptions)
    changed = [
        (name, types[name], dataclasses.field(default=value, metadata=known[name].metadata))
        for name, value in defaults.items()
    ]
    return dataclasses.make_dataclass(
        RecipeOptions.__name__, changed, bases=(RecipeOptions,), frozen=True, kw_only=True
    )
