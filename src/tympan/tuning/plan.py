"""The asr_train options of a fine-tuning run: what is trained, learning rate, epochs, data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tympan.config.checks import check_adapter
from tympan.config.choices import ADAPTERS, TRANSDUCER_DECODERS
from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.models.adapter import Adapter
from tympan.models.build import build_asr_model
from tympan.models.layers import below_output, encoder_layers, is_final_norm
from tympan.training.optimizers import freeze
from tympan.tuning.check_data import DataSet, speech_file
from tympan.tuning.options import FinetuneOptions, Method
from tympan.tuning.start import Start

LEARNING_RATES: dict[Method, float] = {
    "full": 2e-4,
    "top_n": 4e-4,
    "decoder": 5e-4,
    "lora": 1e-3,
    "houlsby": 1e-3,
}
UPDATES = 1500
"""Number of updates that the default number of epochs amounts to, within MIN_EPOCHS and MAX_EPOCHS."""
MIN_EPOCHS, MAX_EPOCHS = 5, 40
LEAST_BATCHES, LEAST_BATCH_S, MOST_BATCH_S = 20, 5.0, 60.0
"""Little data is cut into at least this number of batches, if they have this length."""
AVERAGED = 3
"""Number of best epochs that are averaged."""
LORA_TARGETS = (
    *("linear_q", "linear_v", "w_1", "w_2"),
    *("q_proj", "v_proj", "intermediate_dense", "output_dense"),
    *("query", "value"),
)
"""Linear layers that get an adapter by default, if the model has them: ours, those of transformers, and Whisper's."""


def training_options(
    options: FinetuneOptions,
    start: Start,
    *,
    train: DataSet,
    dev: DataSet,
    rate: int,
    wants_features: bool,
    output_dir: str,
) -> dict[str, Any]:
    """Everything that asr_train needs. `rate` is the sample rate, or `wants_features`: the input is stored features."""
    batch_s = options.batch_s or min(max(train.seconds / LEAST_BATCHES, LEAST_BATCH_S), MOST_BATCH_S)
    updates = max(1, math.ceil(train.seconds / batch_s))
    epochs = options.max_epoch or min(max(math.ceil(UPDATES / updates), MIN_EPOCHS), MAX_EPOCHS)
    has_accuracy = start.config.decoder is not None and start.config.decoder not in TRANSDUCER_DECODERS
    frames_per_s = 100 * (start.config.input_size or 1) if wants_features else rate
    values: dict[str, Any] = {
        **start.values,
        "output_dir": output_dir,
        "init_param": [str(start.weights)],
        "train_data_path_and_name_and_type": _triples(train.data, wants_features=wants_features),
        "valid_data_path_and_name_and_type": _triples(dev.data, wants_features=wants_features),
        "batch_type": "numel",
        "batch_bins": max(1, int(batch_s * frames_per_s)),
        "max_epoch": epochs,
        "optim": "adam",
        "optim_conf": {"lr": options.lr or LEARNING_RATES[options.method]},
        "scheduler": "warmuplr",
        "scheduler_conf": {"warmup_steps": max(10, min(500, updates * epochs // 10))},
        "best_model_criterion": [["valid", "acc", "max"] if has_accuracy else ["valid", "loss", "min"]],
        "keep_nbest_models": [AVERAGED],
        "num_att_plot": 0,
        "use_amp": options.use_amp,
        "ngpu": options.ngpu,
        "nproc": options.nproc,
        "num_workers": options.num_workers,
        "seed": options.seed,
        "resume": options.resume,
        "layer_decay": options.layer_decay,
        "unfreeze_interval": options.unfreeze_interval,
    }
    return values | what_is_trained(options, start)


def _triples(data: DataDir, *, wants_features: bool) -> list[list[str]]:
    name, data_type = speech_file(data, wants_features=wants_features)
    return [[str(data.path / name), "speech", data_type], [str(data.path / "text"), "text", "text"]]


def what_is_trained(options: FinetuneOptions, start: Start) -> dict[str, Any]:
    """The options of asr_train that freeze parameters or add adapters."""
    method = options.method
    if method not in ("lora", "houlsby") and (options.also_train or options.adapter_conf):
        given = "--also_train" if options.also_train else "--adapter_conf"
        raise UserError(f"{given}: works only with --method lora and houlsby, found {method}")
    if method == "full":
        return {}
    below = below_output(start.parameters)
    if method == "decoder":
        return {"freeze_param": below}
    if method == "top_n":
        return {"freeze_param": _all_but_top(start.parameters, below, options.top_n)}
    conf = dict(options.adapter_conf)
    if method == "lora":
        conf = {"rank": 8, "alpha": 16, "target_modules": lora_targets(start.parameters), **conf}
    return {
        "use_adapter": True,
        "adapter": method,
        "adapter_conf": conf,
        "save_strategy": options.save_strategy,
        # The product of two averaged matrices is not the average of the products.
        "keep_nbest_models": [1 if options.save_strategy != "all" else AVERAGED],
        # New tokens can't be learned by adapters of other layers.
        "also_train": sorted({*options.also_train, *start.changed}),
    }


def check_method(start: Start, values: Mapping[str, Any]) -> None:
    """UserError before anything is decoded if the layers to adapt or to freeze do not exist."""
    model = build_asr_model(start.config, reads_statistics=False)
    freeze(model, values.get("freeze_param", []))
    if values.get("use_adapter"):
        mistakes = [line.text for line in check_adapter(values)]
        if mistakes:
            raise UserError("\n".join(f"--adapter_conf: {line}" for line in mistakes))
        adapter: Adapter = ADAPTERS.build(values["adapter"], values["adapter_conf"])
        adapter.add_to(model, freezes=True, also_train=values["also_train"])


def lora_targets(parameters: Sequence[str]) -> list[str]:
    """Ends of the names of the layers to adapt. All usual names if the model has none of them, which is an error."""
    layers = {name.removesuffix(".weight").rpartition(".")[2] for name in parameters if name.endswith(".weight")}
    return [name for name in LORA_TARGETS if name in layers] or list(LORA_TARGETS)


def _all_but_top(parameters: Sequence[str], below: Sequence[str], number: int) -> list[str]:
    layers = encoder_layers(parameters)
    if not layers:
        raise UserError("--method top_n: this encoder has no list of layers; use --method decoder or lora")
    if number >= len(layers):
        raise UserError(f"--top_n {number}: the encoder has {len(layers)} layers; use --method full to train all")
    trained = layers[-number:]
    frozen = {
        _frozen_part(name, trained)
        for name in parameters
        if name.partition(".")[0] in below
        and not is_final_norm(name)
        and not any(name.startswith(f"{layer}.") for layer in trained)
    }
    return sorted(frozen)


def _frozen_part(name: str, trained: Sequence[str]) -> str:
    """The shortest prefix of a parameter that contains no trained layer."""
    parts = name.split(".")
    prefixes = (".".join(parts[:number]) for number in range(1, len(parts)))
    return next((one for one in prefixes if not any(f"{layer}.".startswith(f"{one}.") for layer in trained)), name)
