"""Translate ESPnet1's recipe configurations into Tympan's options: training, language model, decoding, SpecAugment.

What ESPnet1 implies (its defaults, how it counts batches, its stored features) is written out, so that the translated
file means the same. For every key, a note says what it became.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tympan.config.espnet1_file import Translation, show
from tympan.config.espnet1_keys import (
    ASR,
    ASR_DEFAULTS,
    ASR_SIGNS,
    CONFORMER,
    CONFORMER_DEFAULTS,
    CONVOLUTIONS,
    DECODE,
    DECODE_DEFAULTS,
    LM,
    LM_DEFAULTS,
    LM_MODULES,
    LM_SIGNS,
    OTHER_MODELS,
    RNN,
    RNN_DEFAULTS,
    TRANSDUCER_DECODE_DEFAULTS,
    TRANSFORMER_LM,
    TRANSFORMER_LM_DEFAULTS,
)
from tympan.config.espnet1_training import translate_patience, translate_rnn_encoder, translate_training
from tympan.config.espnet1_transducer import translate_transducer, translate_transducer_search
from tympan.config.yaml_text import Document


def translate_espnet1(document: Document) -> Document:
    """Return the document unchanged if it is not ESPnet1's, else its translation, with a note for each key."""
    translation = translation_of(document)
    if translation is None:
        return document
    return replace(translation.document, notes=tuple(translation.notes))


def translation_of(document: Document) -> Translation | None:
    """Return None if the file is not ESPnet1's; raise UserError for keys that have no translation."""
    keys = set(document.value)
    # A language model's file may have model-module too, so check for it first.
    is_lm = len(keys & LM_SIGNS) >= 2 or document.value.get("model-module") in LM_MODULES
    for is_it, translate in (
        (is_lm, _translate_lm),
        (bool(keys & ASR_SIGNS), _translate_asr),
        (any(key.replace("-", "_") in DECODE and "-" in key for key in keys), _translate_decode),
        (keys == {"process"} or keys == {"process", "mode"}, _translate_specaug),
    ):
        if is_it:
            translation = Translation(document)
            translate(translation)
            translation.finish()
            return translation
    return None


def _translate_asr(file: Translation) -> None:
    module = str(file.take("model_module", "espnet.nets.pytorch_backend.e2e_asr:E2E"))
    if file.left.get("save_interval_iters", ("", 1))[1] == 0:
        file.drop("save_interval_iters", "0 means that only epochs are saved")
    if file.left.get("use_frontend", ("", False))[1]:
        file.stop(
            "use_frontend",
            "use-frontend (a beamformer that is trained with the recognizer) is not supported; remove it and the "
            "options of WPE and beamforming to train on one channel",
        )
    if module.endswith("e2e_asr:E2E"):
        _translate_rnn(file)
        return
    if module.endswith("e2e_asr_transducer:E2E"):
        translate_transducer(file)
        return
    is_mask_ctc = module.endswith("e2e_asr_maskctc:E2E")
    kind = next((name for name in ("conformer", "transformer") if module.endswith(f"e2e_asr_{name}:E2E")), None)
    if is_mask_ctc:
        # ESPnet1 has one class for both encoders.
        kind = "conformer" if file.take("maskctc_use_conformer_encoder", False) else "transformer"
    if kind is None:
        name = OTHER_MODELS.get(module.rpartition(":")[0].rpartition(".")[2], module)
        file.stop(
            "model_module", f"only ESPnet1's Conformer, Transformer, RNN and transducer are translated, not {name}"
        )
        return
    _translate_attention(file, kind, is_mask_ctc=is_mask_ctc)


def _translate_attention(file: Translation, kind: str, *, is_mask_ctc: bool) -> None:
    """A Conformer or Transformer with an attention decoder, or Mask-CTC."""
    convolutions = _take_convolutions(file)
    if kind == "transformer" and file.left.get("stochastic_depth_rate", ("", 0))[1]:
        _drop_layers_of_transformer(file)
        kind = "conformer"
    elif kind == "transformer":
        file.drop("stochastic_depth_rate", "0 means no stochastic depth")
    encoder = convolutions.get("encoder", kind)
    decoder = convolutions.get("decoder", "mlm" if is_mask_ctc else "transformer")
    file.put("encoder", encoder, "model_module")
    file.put("decoder", decoder, "model_module")
    if is_mask_ctc:
        file.put("model", "maskctc", "model_module")
    model = "model: maskctc, " if is_mask_ctc else ""
    file.note("model_module", f"model-module became {model}encoder: {encoder}, decoder: {decoder}")
    _keep_a_decoder(file)
    adim = file.left.get("adim", ("", ASR_DEFAULTS["adim"]))[1]
    dropout = file.left.get("dropout_rate", ("", ASR_DEFAULTS["dropout_rate"]))[1]
    attention_dropout = {"transformer_attn_dropout_rate": dropout}
    if file.left.get("transformer_attn_dropout_rate", ("", 0))[1] is None:
        file.take("transformer_attn_dropout_rate")
    if kind == "conformer":
        file.rename(CONFORMER, CONFORMER_DEFAULTS)
    file.rename(ASR, {**ASR_DEFAULTS, **attention_dropout})
    file.refuse_unless("transformer_decoder_selfattn_layer_type", ("selfattn",))
    file.refuse_unless("transformer_encoder_selfattn_layer_type", ("selfattn",))
    _translate_convolutions(file, convolutions)
    _translate_intermediate_ctc(file)
    translate_training(file, adim)


def _translate_intermediate_ctc(file: Translation) -> None:
    layers = file.take("intermediate_ctc_layer")
    if layers in (None, ""):
        return
    words = str(layers).split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,4}\s*", word) for word in words):
        file.stop("intermediate_ctc_layer", f"intermediate-ctc-layer: expects numbers such as 3,6, found {layers}")
    file.put("encoder_conf.interctc_layer_idx", [int(word) for word in words], "intermediate_ctc_layer")


def _take_convolutions(file: Translation) -> dict[str, str]:
    """The side (encoder, decoder) -> the name here, for those with convolutions instead of self-attention."""
    found = {}
    for side in ("encoder", "decoder"):
        key = f"transformer_{side}_selfattn_layer_type"
        written, value = file.left.get(key, ("", None))
        if value in CONVOLUTIONS:
            found[side] = CONVOLUTIONS[file.take(key)]
            file.note(key, f"{written}: {value} became {side}: {found[side]}")
        elif isinstance(value, str) and value.endswith("conv2d"):
            names = ", ".join(CONVOLUTIONS)
            file.stop(key, f"{written}: {value} is not supported; the convolutions are {names}")
    return found


def _translate_convolutions(file: Translation, convolutions: Mapping[str, str]) -> None:
    """`wshare`, `ldconv-usebias` and the kernels of every block, such as 11_11_11 (some files write 11-11-11)."""
    groups, has_bias = file.take("wshare", 4), bool(file.take("ldconv_usebias", False))
    for side in ("encoder", "decoder"):
        key = f"ldconv_{side}_kernel_length"
        given = str(file.take(key, "21_23_25_27_29_31_33_35_37_39_41_43" if side == "encoder" else "11_13_15_17_19_21"))
        if side not in convolutions:
            continue
        kernels = [int(number) for number in re.split("[-_]", given) if number.isdecimal()]
        blocks = file.document.value[f"{side}_conf"]["num_blocks"]
        if len(kernels) < blocks:
            file.refuse(key, f"{key.replace('_', '-')}: {given} has {len(kernels)} kernels for {blocks} layers")
        file.put(f"{side}_conf.conv_kernel_length", kernels[:blocks], key)
        file.put(f"{side}_conf.conv_wshare", groups, "wshare")
        file.put(f"{side}_conf.conv_usebias", has_bias, "ldconv_usebias")
        file.note(key, f"{key.replace('_', '-')} became {side}_conf.conv_kernel_length: {kernels[:blocks]}")
    if "encoder" in convolutions:
        # Convolution has no heads.
        file.document.value["encoder_conf"].pop("attention_heads")


def _keep_a_decoder(file: Translation) -> None:
    """In ESPnet1 `dlayers: 0` means that there is no decoder; here `ctc_weight: 1.0` means it."""
    if file.left.get("dlayers", ("", 1))[1] == 0 and file.left.get("mtlalpha", ("", 0.5))[1] == 1:
        file.note("dlayers", "dlayers: 0 became 1, which has no effect: with mtlalpha: 1.0 the model has no decoder")
        file.left["dlayers"] = ("dlayers", 1)


def _drop_layers_of_transformer(file: Translation) -> None:
    """ESPnet2's Transformer has no stochastic depth. A Conformer without convolution and macaron is the same model."""
    same = {
        "use_cnn_module": False,
        "macaron_style": False,
        "transformer_encoder_activation_type": "relu",
        "transformer_encoder_pos_enc_layer_type": "abs_pos",
        "transformer_encoder_selfattn_layer_type": "selfattn",
    }
    for key, value in same.items():
        file.left.setdefault(key, (key, value))
    file.note(
        "stochastic_depth_rate",
        "stochastic-depth-rate needs encoder: conformer; without convolution and macaron it equals a Transformer",
    )


def _translate_rnn(file: Translation) -> None:
    """The default model: (VGG and) LSTM or GRU encoder, RNN decoder with attention."""
    if not translate_rnn_encoder(file):
        return
    file.put("decoder", "rnn", "etype")
    adim = file.left.get("adim", ("", RNN_DEFAULTS["adim"]))[1]
    file.rename(RNN, RNN_DEFAULTS)
    _label_smoothing(file)
    file.put("init", "chainer")
    file.put("model_conf.length_normalized_loss", False)
    file.add(
        "ESPnet1's RNN model is initialized as in Chainer, and its attention loss is not divided by the length: "
        "init: chainer, length_normalized_loss: false (for sentences of n tokens, ESPnet1's is n / (n + 1) of it)"
    )
    translate_training(file, adim)


def _label_smoothing(file: Translation) -> None:
    """ESPnet1's RNN model smooths only with `lsm-type: unigram`: by token frequency. ESPnet2 only smooths uniformly."""
    weight = file.take("lsm_weight", 0.0) if file.take("lsm_type") == "unigram" else 0.0
    file.put("model_conf.lsm_weight", weight, "lsm_weight")
    if weight:
        file.note(
            "lsm_type",
            f"lsm-type: unigram became model_conf.lsm_weight: {show(weight)}, which differs: all tokens are equally "
            "likely, instead of as frequent as in the training texts",
        )
    file.drop("lsm_weight", "ESPnet1's RNN model uses label smoothing only with lsm-type")


def _translate_lm(file: Translation) -> None:
    module = str(file.take("model_module", "default"))
    if module in ("default", "seq_rnn"):
        file.put("lm", "seq_rnn", "model_module")
        unit = file.left.get("unit", ("", LM_DEFAULTS["unit"]))[1]
        file.refuse_unless("embed_unit", (None, unit))
        file.drop("emb_dropout_rate", "the embedding has the dropout of the layers, lm_conf.dropout_rate")
        file.rename(LM, LM_DEFAULTS)
        if module == "default":
            file.put("init", "uniform")
            file.put("model_conf.length_normalized_loss", False)
            file.add(
                "ESPnet1's RNN language model is initialized between -0.1 and 0.1, and its loss is summed over the "
                "tokens of a sentence: init: uniform, length_normalized_loss: false"
            )
    elif module == "transformer":
        file.put("lm", "transformer", "model_module")
        file.refuse_unless("emb_dropout_rate", (0.0,))
        file.refuse_unless("tie_weights", (False,))
        file.rename(TRANSFORMER_LM, TRANSFORMER_LM_DEFAULTS)
    else:
        file.refuse("model_module", f"only the LMs 'default' and 'transformer' are translated, not '{module}'")
    _lm_optimizer(file)
    if (decay := file.take("weight_decay")) is not None:
        file.put("optim_conf.weight_decay", decay, "weight_decay")
    file.refuse_unless("sortagrad", (0,))
    translate_patience(file, criterion="loss", mode="min")
    length = file.take("maxlen", 40)
    file.put("batch_type", "folded", "maxlen")
    file.put("fold_length", [length], "maxlen")
    file.put("batch_size_per_device", True)
    file.put("token_type", "char")
    file.note("maxlen", f"maxlen: {length} became batch_type: folded, fold_length: [{length}]")
    file.add("ESPnet1 multiplies the batch size by the number of devices: batch_size_per_device: true")


def _lm_optimizer(file: Translation) -> None:
    name, rate = str(file.take("opt", "sgd")), file.take("lr")
    if name == "sgd":
        file.put("optim", "sgd", "opt")
        file.put("optim_conf.lr", rate or 1.0, "opt")
        file.note("opt", f"opt: sgd became optim: sgd, optim_conf.lr: {show(rate or 1.0)} (ESPnet1's rate)")
    elif name == "adam":
        file.put("optim", "adam", "opt")
        file.note("opt", "opt: adam became optim: adam")
        if rate is not None:
            file.put("optim_conf.lr", rate, "lr")
            file.note("lr", f"lr: {show(rate)} became optim_conf.lr: {show(rate)}")
    else:
        file.refuse("opt", f"opt: sgd and adam are translated, not '{name}'")
    _lm_schedule(file, rate or (1.0 if name == "sgd" else 1e-3))


def _lm_schedule(file: Translation, rate: Any) -> None:
    """ESPnet1's `schedulers: lr=cosine`, with its options `lr-cosine-total` and `lr-cosine-warmup`."""
    wanted = file.take("schedulers")
    warmup, total = file.take("lr_cosine_warmup", 1000), file.take("lr_cosine_total", 100000)
    noam = file.take("lr_noam_warmup", 1000)
    if wanted == "lr=cosine":
        # 0.5 (cos(pi (step - warmup) / total) + 1): the warm-up only shifts the curve.
        steps = {"first_cycle_steps": warmup + total, "warmup_steps": warmup, "max_lr": rate, "min_lr": 0.0}
        file.put("scheduler", "cosineannealingwarmuprestarts", "schedulers")
        file.put("scheduler_conf", steps, "schedulers")
        file.note(
            "schedulers",
            f"schedulers: lr=cosine became scheduler: cosineannealingwarmuprestarts: the same learning rate from step "
            f"{warmup} on; before that the rate rises, while ESPnet1's is near its maximum",
        )
    elif wanted == "lr=noam":
        file.put("scheduler", "warmuplr", "schedulers")
        file.put("scheduler_conf", {"warmup_steps": noam}, "schedulers")
        file.note("schedulers", f"schedulers: lr=noam became scheduler: warmuplr, warmup_steps: {noam}")
    elif wanted not in (None, "lr=none"):
        file.refuse("schedulers", f"schedulers: lr=cosine and lr=noam are translated, not '{wanted}'")


def _translate_decode(file: Translation) -> None:
    if "num_encs" in file.left:
        file.stop("num_encs", "num-encs is for models with several encoders, which have no translation")
    is_transducer = translate_transducer_search(file)
    file.drop("api", "Tympan has only one implementation of the search")
    file.rename(DECODE, TRANSDUCER_DECODE_DEFAULTS if is_transducer else DECODE_DEFAULTS)


def _translate_specaug(file: Translation) -> None:
    steps = file.take("process") or []
    file.take("mode")
    wanted = {"time_warp": False, "freq_mask": False, "time_mask": False}
    for step in steps if isinstance(steps, list) else []:
        step = dict(step) if isinstance(step, Mapping) else {}
        kind = step.pop("type", None)
        if kind == "identity":
            continue
        if not isinstance(kind, str) or kind not in wanted:
            file.refuse(
                "process",
                f"the processing step {kind!r} has no translation; only SpecAugment's time_warp, freq_mask and "
                "time_mask have",
            )
            continue
        wanted[kind] = True
        _SPECAUG[kind](file, step)
    if not any(wanted.values()):
        file.put("specaug", None, "process")
        file.note("process", "process became specaug: null, because it has no effect")
        return
    file.put("specaug", "specaug", "process")
    for kind, is_wanted in wanted.items():
        file.put(f"specaug_conf.apply_{kind}", is_wanted)
    file.note(
        "process", "process became specaug: specaug with specaug_conf, applied to the features that the model gets"
    )


def _time_warp(file: Translation, step: dict[str, Any]) -> None:
    file.put("specaug_conf.time_warp_window", step.get("max_time_warp", 80), "process")
    file.put("specaug_conf.time_warp_mode", "bicubic", "process")


def _mask(axis: str, width: str, default: int) -> Callable[[Translation, dict[str, Any]], None]:
    def translate(file: Translation, step: dict[str, Any]) -> None:
        file.put(f"specaug_conf.{axis}_mask_width_range", [0, step.get(width, default)], "process")
        file.put(f"specaug_conf.num_{axis}_mask", step.get("n_mask", 2), "process")
        file.put("specaug_conf.replace_with_zero", bool(step.get("replace_with_zero", True)), "process")

    return translate


_SPECAUG: dict[str, Callable[[Translation, dict[str, Any]], None]] = {
    "time_warp": _time_warp,
    "freq_mask": _mask("freq", "F", 30),
    "time_mask": _mask("time", "T", 40),
}
