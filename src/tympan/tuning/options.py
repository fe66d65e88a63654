"""The options of `tympan finetune`. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tympan.config.option import argument, option
from tympan.config.parse import as_yaml
from tympan.config.resolve import PLAIN, Layer, resolve
from tympan.decode.options import Checked

METHOD, DATA, TOKENS, TRAINING, RUN = "method", "data", "tokens", "training", "run"

Method = Literal["full", "lora", "houlsby", "decoder", "top_n"]


@dataclass(frozen=True, kw_only=True)
class FinetuneOptions(Checked):
    """Model, data, method and output of one fine-tuning run."""

    model: str = argument(
        help="model to start from: a folder made by `tympan pack`, an experiment directory, ESPnet2's zip file, a "
        "published Whisper or CTC model, or OWNER/NAME on a model hub"
    )
    output_dir: Path = option(help="output directory; it holds the fine-tuned model, the decoded texts and the report")

    train_dir: Path = option(help="data directory to train on (wav.scp and text)", group=DATA)
    dev_dir: Path = option(help="data directory to choose the best epochs on, decoded before and after", group=DATA)
    test_dir: Path | None = option(None, help="further data directory to decode before and after", group=DATA)
    keep_dir: Path | None = option(
        None, help="data directory of the old domain, decoded before and after to measure forgetting", group=DATA
    )
    replay_dir: Path | None = option(
        None, help="training data of the old domain, mixed into the training data against forgetting", group=DATA
    )
    replay_ratio: float = option(
        0.5, help="number of utterances taken from --replay_dir, per utterance of --train_dir", group=DATA, above=0,
        most=1000,
    )  # fmt: skip

    method: Method = option(
        "full",
        help="what is trained: full (everything), lora (low-rank adapters), houlsby (bottleneck adapters), decoder "
        "(decoder and output layers), top_n (these and the last encoder layers)",
        group=METHOD,
    )
    top_n: int = option(2, help="number of encoder layers that method top_n trains", group=METHOD, least=1)
    adapter_conf: dict[str, Any] = option(
        {}, help="parameters of the adapters: rank, alpha, target_modules, ... or bottleneck, ...", group=METHOD
    )
    also_train: list[str] = option(
        [],
        help="prefixes of further parameters to train with adapters, such as ctc or encoder.encoders.*.norm_*",
        group=METHOD,
    )
    save_strategy: Literal["all", "adapter_only", "required_grad_only"] = option(
        "adapter_only", help="weights that each epoch saves with adapters", group=METHOD
    )

    extend_vocab: bool = option(
        False, help="add the tokens of the training text that the model does not know to its token list", group=TOKENS
    )
    token_list: Path | None = option(
        None, help="token list that replaces the model's; tokens of the same name keep their weights", group=TOKENS
    )
    bpemodel: Path | None = option(None, help="sentencepiece model of --token_list", group=TOKENS)

    lr: float | None = option(
        None, help="learning rate; null: a default of the method", group=TRAINING, above=0, most=100
    )
    max_epoch: int | None = option(
        None, help="number of epochs; null: from the amount of data", group=TRAINING, least=1
    )
    batch_s: float | None = option(
        None, help="seconds of audio per batch; null: 60, or less for little data", group=TRAINING, above=0, most=10**6
    )
    layer_decay: float | None = option(
        None, help="factor of the learning rate from one encoder layer to the one below; null: 1", group=TRAINING,
        above=0, most=1,
    )  # fmt: skip
    unfreeze_interval: int | None = option(
        None,
        help="train only decoder and output layers at first, and one more encoder layer after every so many epochs, "
        "from the last; null: no gradual unfreezing",
        group=TRAINING,
        least=1,
    )
    use_amp: bool = option(False, help="mixed precision, in bfloat16 or float16", group=TRAINING)
    train_config: Path | None = option(
        None, help="YAML file of asr_train options, which replace those chosen here", group=TRAINING
    )
    asr_args: str = option("", help="further options of asr_train, such as '--patience 3'", group=TRAINING)

    decode_config: Path | None = option(None, help="YAML file of decoding options; null: those of the model", group=RUN)
    unit: Literal["char", "word"] | None = option(
        None, help="unit of the error rate; null: char if the language is written without spaces", group=RUN
    )
    ngpu: int = option(0, help="number of accelerators; 0: the CPU", group=RUN, least=0)
    nproc: int = option(1, help="number of training processes on the CPU", group=RUN, least=1)
    num_workers: int = option(1, help="number of processes that load data", group=RUN, least=0)
    seed: int = option(0, help="random seed", group=RUN, least=0, most=2**32 - 1)
    resume: bool = option(False, help="continue an interrupted run in --output_dir", group=RUN)
    allow_import: bool = option(
        False, help="allow a config to name a Python class outside Tympan, and run its code", group=RUN
    )


def make_options(**given: Any) -> FinetuneOptions:
    """The options from Python, where mistakes in names are reported as on the command line."""
    values = as_yaml(given)
    return resolve(FinetuneOptions, [Layer(values, ".".join)], rules=PLAIN)
