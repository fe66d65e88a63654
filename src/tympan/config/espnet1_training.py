"""What all of ESPnet1's recognizers have in common: optimizer, batches, stored features, RNN encoders."""

from __future__ import annotations

import re
from typing import Any

from tympan.config.espnet1_file import Translation, show
from tympan.config.espnet1_keys import RNN_DEFAULTS

FBANK_PITCH_SIZE = 83


def translate_training(file: Translation, adim: Any, *, criterion: str = "acc") -> None:
    """Optimizer, batches and stored features. `criterion` is the value of validation that training watches."""
    file.refuse_unless("lsm_type", ("", None))
    file.refuse_unless("sortagrad", (0,))
    file.refuse_unless("ctc_type", ("builtin", "warpctc", "cudnnctc", "gtnctc"))
    _optimizer(file, adim)
    translate_patience(file, criterion=criterion, mode="max" if criterion == "acc" else "min")
    _batches(file)
    file.put("input_size", FBANK_PITCH_SIZE)
    file.put("frontend", None)
    file.put("normalize", None)
    file.put("token_type", "char")
    file.add(
        f"ESPnet1 trains on stored, globally normalized features: input_size: {FBANK_PITCH_SIZE} (fbank and pitch; "
        "give --input_size for others), frontend: null, normalize: null, token_type: char"
    )


def translate_rnn_encoder(file: Translation) -> bool:
    """`etype` and its layers; False if `etype` is unknown."""
    etype = str(file.take("etype", "blstmp"))
    found = re.fullmatch(r"(vgg)?(b)?(lstm|gru)(p)?", etype)
    if found is None:
        file.refuse("etype", f"etype: {etype} is not an encoder of ESPnet1, such as vggblstmp, blstm or gru")
        return False
    has_vgg, is_bidirectional, cell, is_projected = found.groups()
    encoder = "vgg_rnn" if has_vgg else "rnn"
    file.put("encoder", encoder, "etype")
    file.put("encoder_conf.rnn_type", cell, "etype")
    file.put("encoder_conf.bidirectional", bool(is_bidirectional), "etype")
    file.put("encoder_conf.use_projection", bool(is_projected), "etype")
    file.note(
        "etype",
        f"etype: {etype} became encoder: {encoder} with rnn_type: {cell}, bidirectional: "
        f"{show(bool(is_bidirectional))}, use_projection: {show(bool(is_projected))}",
    )
    layers = int(file.left.get("elayers", ("", RNN_DEFAULTS["elayers"]))[1])
    _subsample(file, layers, is_used=bool(is_projected) and not has_vgg, is_rnn=not has_vgg)
    return True


def _subsample(file: Translation, layers: int, *, is_used: bool, is_rnn: bool) -> None:
    """`1_2_2_1`: the first number is for the input, of which ESPnet1 then keeps every n-th frame."""
    steps = str(file.take("subsample", "1")).split("_")
    if not all(step.isdecimal() and int(step) > 0 for step in steps):
        file.refuse("subsample", f"subsample: {'_'.join(steps)} must be numbers joined by '_', such as 1_2_2_1_1")
        return
    if is_used and int(steps[0]) != 1:
        text = f"subsample: {'_'.join(steps)} drops frames of the input, which has no translation; "
        file.refuse("subsample", text + "set the first number to 1")
    after = [int(step) for step in steps[1 : layers + 1]] if is_used else []
    factors = after + [1] * (layers - len(after))
    if is_rnn:
        file.put("encoder_conf.subsample", factors, "subsample")
        file.note("subsample", f"subsample: {'_'.join(steps)} became encoder_conf.subsample: {factors}")
    else:
        file.note("subsample", f"subsample: {'_'.join(steps)} was dropped: VGG has its own subsampling, as in ESPnet1")


def _optimizer(file: Translation, adim: Any) -> None:
    name = str(file.take("opt", "adadelta"))
    rate, warmup = file.take("transformer_lr", 10.0), file.take("transformer_warmup_steps", 25000)
    eps, decay = file.take("eps", 1e-8), file.take("weight_decay", 0.0)
    file.drop("eps_decay", "eps of AdaDelta stays constant")
    file.drop("threshold", "eps of AdaDelta stays constant")
    if name == "noam":
        # ESPnet1: rate * adim^-0.5 * min(step^-0.5, step * warmup^-1.5), which is NoamLR over the optimizer's rate.
        file.put("optim", "adam", "opt")
        file.put("optim_conf", {"lr": rate, "betas": [0.9, 0.98], "eps": 1e-9}, "opt")
        file.put("scheduler", "noamlr", "opt")
        file.put("scheduler_conf", {"model_size": adim, "warmup_steps": warmup}, "opt")
        file.note(
            "opt",
            f"opt: noam, transformer-lr: {show(rate)}, transformer-warmup-steps: {warmup} became optim: adam "
            "(0.9, 0.98, 1e-9), "
            f"optim_conf.lr: {show(rate)}, scheduler: noamlr with model_size: {adim}: the same rate at every step",
        )
    elif name == "adam":
        file.put("optim", "adam", "opt")
        file.put("optim_conf", {"weight_decay": decay}, "opt")
        file.note("opt", "opt: adam became optim: adam")
    elif name == "adadelta":
        file.put("optim", "adadelta", "opt")
        file.put("optim_conf", {"lr": 1.0, "rho": 0.95, "eps": eps, "weight_decay": decay}, "opt")
        file.note(
            "opt",
            "opt: adadelta became optim: adadelta (rho 0.95), which differs: after an epoch with a worse validation "
            "result, ESPnet1 returns to the best model and multiplies eps by eps-decay; here training continues",
        )
    else:
        file.refuse("opt", f"opt: noam, adam and adadelta are translated, not '{name}'")


def translate_patience(file: Translation, *, criterion: str, mode: str) -> None:
    patience = file.take("patience", 3)
    watched = str(file.take("early_stop_criterion", f"validation/main/{criterion}")).rpartition("/")[2]
    file.drop("criterion", "it was for eps-decay")
    file.put("patience", patience or None, "patience")
    file.put("early_stopping_criterion", ["valid", watched, "min" if watched == "loss" else mode], "patience")
    file.put("best_model_criterion", [["valid", "acc", "max"], ["valid", "loss", "min"]])
    if criterion == "loss":
        file.put("best_model_criterion", [["valid", "loss", "min"]])
    became = "null (no early stopping)" if not patience else str(patience)
    file.note("patience", f"patience: {patience} became patience: {became}, for valid {watched}")


def _batches(file: Translation) -> None:
    count = str(file.take("batch_count", "auto"))
    size = file.take("batch_size", 0) or file.take("batch_seqs", 0)
    bins, frames = file.take("batch_bins", 0), file.take("batch_frames_in", 0)
    fold = [file.take("maxlen_in", 800), file.take("maxlen_out", 150)]
    file.refuse_unless("batch_frames_out", (0,))
    file.refuse_unless("batch_frames_inout", (0,))
    if count == "auto":
        count = "seq" if size else "bin" if bins else "frame"
    if count == "seq":
        file.put("batch_type", "folded", "batch_size")
        file.put("batch_size", size or 20, "batch_size")
        file.put("fold_length", fold, "maxlen_in")
        file.put("batch_size_per_device", True)
        file.note(
            "batch_size",
            f"batch-size: {size} became batch_type: folded, batch_size: {size}, fold_length: {fold}, and "
            "batch_size_per_device: true (ESPnet1 multiplies it by the number of devices)",
        )
    else:
        number, batch_type = (bins, "numel") if count == "bin" else (frames, "length")
        key = "batch_bins" if count == "bin" else "batch_frames_in"
        file.put("batch_type", batch_type, key)
        file.put("batch_bins", number, key)
        file.note(key, f"batch-count: {count} became batch_type: {batch_type}, batch_bins: {number}")
