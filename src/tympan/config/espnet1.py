"""ESPnet1's recipe configurations in our options: training, language model, decoding, SpecAugment.

What ESPnet1 assumed without saying (its defaults, its batch counting, its stored features) is written out, so that
the translated file means the same. Each key leaves a note of what it became.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tympan.config.espnet1_keys import (
    ASR,
    ASR_DEFAULTS,
    ASR_SIGNS,
    CONFORMER,
    CONFORMER_DEFAULTS,
    DECODE,
    LM,
    LM_DEFAULTS,
    LM_SIGNS,
    TRANSFORMER_LM,
    TRANSFORMER_LM_DEFAULTS,
    Names,
)
from tympan.config.mistakes import Mistakes, nearest
from tympan.config.yaml_text import Document, KeyPath

FBANK_PITCH_SIZE = 83


def translate_espnet1(document: Document) -> Document:
    """The file itself if it is not ESPnet1's; else its translation, with the notes printed to stderr."""
    translation = translation_of(document)
    if translation is None:
        return document
    for note in translation.notes:
        print(f"tympan: note: {note}", file=sys.stderr)
    return translation.document


def translation_of(document: Document) -> Translation | None:
    """None if the file is not ESPnet1's; UserError for what has no translation."""
    keys = set(document.value)
    for is_it, translate in (
        (bool(keys & ASR_SIGNS), _translate_asr),
        (len(keys & LM_SIGNS) >= 2, _translate_lm),
        (any(key.replace("-", "_") in DECODE and "-" in key for key in keys), _translate_decode),
        (keys == {"process"} or keys == {"process", "mode"}, _translate_specaug),
    ):
        if is_it:
            translation = Translation(document)
            translate(translation)
            translation.finish()
            return translation
    return None


class Translation:
    """Keys of an ESPnet1 file, taken one by one and put where they belong."""

    def __init__(self, document: Document) -> None:
        self.source = document
        self.left = {key.replace("-", "_"): (key, value) for key, value in document.value.items()}
        self.document = Document(document.name, {})
        self.notes: list[str] = []
        self.mistakes = Mistakes()
        self.known: set[str] = set()

    def take(self, key: str, default: Any = None) -> Any:
        """The value of a key, which is then dealt with."""
        self.known.add(key)
        return self.left.pop(key)[1] if key in self.left else default

    def put(self, target: str, value: Any, key: str | None = None) -> None:
        """Set `option` or `option.key` of the translated file; `key` is where it came from."""
        place = self.document.value
        *outer, last = target.split(".")
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
        path: KeyPath = tuple(target.split("."))
        if key is not None:
            self.document.lines[path] = self._line(key)

    def note(self, key: str, text: str) -> None:
        """Say what a key became."""
        self.notes.append(f"{self.source.name}:{self._line(key)}: {text}")

    def add(self, text: str) -> None:
        """Say what ESPnet1 implies without a key."""
        self.notes.append(f"{self.source.name}: {text}")

    def refuse(self, key: str, text: str) -> None:
        """A key that has no translation."""
        self.mistakes.add(f"{self.source.name}:{self._line(key)}", text)

    def rename(self, names: Names, defaults: Mapping[str, Any]) -> None:
        """Keys that only change their name; ESPnet1's defaults are written out."""
        for key, targets in names.items():
            self.known.add(key)
            is_given = key in self.left
            if not is_given and key not in defaults:
                continue
            value = self.take(key, defaults.get(key))
            for target in targets:
                self.put(target, value, key if is_given else None)
            if is_given:
                became = ", ".join(f"{target}: {_show(value)}" for target in targets) or "nothing: it is not needed"
                self.note(key, f"{self._written(key)}: {_show(value)} became {became}")
            elif targets:
                self.add(f"{key}, ESPnet1's default {_show(value)}, became {', '.join(targets)}")

    def drop(self, key: str, reason: str) -> None:
        """A key that nothing reads any more."""
        if key in self.left:
            value = self.take(key)
            self.note(key, f"{self._written(key)}: {_show(value)} became nothing: {reason}")
        self.known.add(key)

    def finish(self) -> None:
        """What is left is unknown: a mistake, all of them together."""
        for key, (written, _) in self.left.items():
            near = nearest(key, self.known)
            hint = f" Did you mean '{near.replace('_', '-')}'?" if near else " Remove it, or use ESPnet2's options"
            self.refuse(key, f"'{written}' is no key of an ESPnet1 file that Tympan can translate.{hint}")
        self.mistakes.check()
        self.notes.sort(key=_line_of)

    def _written(self, key: str) -> str:
        return next((item for item in self.source.value if item.replace("-", "_") == key), key)

    def _line(self, key: str) -> int:
        return self.source.lines.get((self._written(key),), 1)


def _translate_asr(file: Translation) -> None:
    module = str(file.take("model_module", ""))
    kind = next((name for name in ("conformer", "transformer") if module.endswith(f"e2e_asr_{name}:E2E")), None)
    if kind is None:
        found = module or "its RNN model, the default"
        file.refuse("model_module", f"only ESPnet1's Conformer and Transformer are translated, not {found}")
        kind = "transformer"
    file.put("encoder", kind, "model_module")
    file.put("decoder", "transformer", "model_module")
    file.note("model_module", f"model-module became encoder: {kind}, decoder: transformer")
    adim = file.left.get("adim", ("", ASR_DEFAULTS["adim"]))[1]
    dropout = file.left.get("dropout_rate", ("", ASR_DEFAULTS["dropout_rate"]))[1]
    attention_dropout = {"transformer_attn_dropout_rate": dropout}
    if file.left.get("transformer_attn_dropout_rate", ("", 0))[1] is None:
        file.take("transformer_attn_dropout_rate")
    if kind == "conformer":
        file.rename(CONFORMER, CONFORMER_DEFAULTS)
    file.rename(ASR, {**ASR_DEFAULTS, **attention_dropout})
    _refuse_unless(file, "transformer_decoder_selfattn_layer_type", ("selfattn",))
    _refuse_unless(file, "transformer_encoder_selfattn_layer_type", ("selfattn",))
    _refuse_unless(file, "lsm_type", ("", None))
    _refuse_unless(file, "sortagrad", (0,))
    _refuse_unless(file, "ctc_type", ("builtin", "warpctc", "cudnnctc", "gtnctc"))
    layers = file.take("intermediate_ctc_layer")
    if layers not in (None, ""):
        numbers = [int(item) for item in str(layers).split(",")]
        file.put("encoder_conf.interctc_layer_idx", numbers, "intermediate_ctc_layer")
    _optimizer(file, adim)
    _patience(file, criterion="acc", mode="max")
    _batches(file)
    file.put("input_size", FBANK_PITCH_SIZE)
    file.put("frontend", None)
    file.put("normalize", None)
    file.put("token_type", "char")
    file.add(
        f"ESPnet1 trains on stored, globally normalised features: input_size: {FBANK_PITCH_SIZE} (fbank and pitch; "
        "give --input_size for others), frontend: null, normalize: null, token_type: char"
    )


def _translate_lm(file: Translation) -> None:
    module = str(file.take("model_module", "default"))
    if module in ("default", "seq_rnn"):
        file.put("lm", "seq_rnn", "model_module")
        unit = file.left.get("unit", ("", LM_DEFAULTS["unit"]))[1]
        _refuse_unless(file, "embed_unit", (None, unit))
        file.rename(LM, LM_DEFAULTS)
    elif module == "transformer":
        file.put("lm", "transformer", "model_module")
        file.rename(TRANSFORMER_LM, TRANSFORMER_LM_DEFAULTS)
    else:
        file.refuse("model_module", f"only the LMs 'default' and 'transformer' are translated, not '{module}'")
    name = str(file.take("opt", "sgd"))
    if name == "sgd":
        file.put("optim", "sgd", "opt")
        file.put("optim_conf.lr", 1.0, "opt")
        file.note("opt", "opt: sgd became optim: sgd, optim_conf.lr: 1.0 (ESPnet1's rate)")
    elif name == "adam":
        file.put("optim", "adam", "opt")
        file.note("opt", "opt: adam became optim: adam")
    else:
        file.refuse("opt", f"opt: sgd and adam are translated, not '{name}'")
    if (decay := file.take("weight_decay")) is not None:
        file.put("optim_conf.weight_decay", decay, "weight_decay")
    _refuse_unless(file, "sortagrad", (0,))
    _patience(file, criterion="loss", mode="min")
    length = file.take("maxlen", 40)
    file.put("batch_type", "folded", "maxlen")
    file.put("fold_length", [length], "maxlen")
    file.put("batch_size_per_device", True)
    file.put("token_type", "char")
    file.note("maxlen", f"maxlen: {length} became batch_type: folded, fold_length: [{length}]")
    file.add("ESPnet1 multiplies the batch size by the devices: batch_size_per_device: true")


def _translate_decode(file: Translation) -> None:
    file.drop("api", "there is one search")
    file.rename(DECODE, {})


def _translate_specaug(file: Translation) -> None:
    steps = file.take("process") or []
    file.take("mode")
    wanted = {"time_warp": False, "freq_mask": False, "time_mask": False}
    for step in steps if isinstance(steps, list) else []:
        step = dict(step) if isinstance(step, Mapping) else {}
        kind = step.pop("type", None)
        if kind not in wanted:
            file.refuse("process", f"the processing step {kind!r} has no translation; SpecAugment's three steps have")
            continue
        wanted[kind] = True
        _SPECAUG[kind](file, step)
    file.put("specaug", "specaug", "process")
    for kind, is_wanted in wanted.items():
        file.put(f"specaug_conf.apply_{kind}", is_wanted)
    file.note("process", "process became specaug: specaug and its specaug_conf, on the features as the model gets them")


def _time_warp(file: Translation, step: dict[str, Any]) -> None:
    file.put("specaug_conf.time_warp_window", step.get("max_time_warp", 80), "process")
    file.put("specaug_conf.time_warp_mode", "bicubic", "process")


def _mask(axis: str, width: str) -> Callable[[Translation, dict[str, Any]], None]:
    def translate(file: Translation, step: dict[str, Any]) -> None:
        file.put(f"specaug_conf.{axis}_mask_width_range", [0, step.get(width, 30)], "process")
        file.put(f"specaug_conf.num_{axis}_mask", step.get("n_mask", 2), "process")
        file.put("specaug_conf.replace_with_zero", bool(step.get("replace_with_zero", False)), "process")

    return translate


_SPECAUG: dict[str, Callable[[Translation, dict[str, Any]], None]] = {
    "time_warp": _time_warp,
    "freq_mask": _mask("freq", "F"),
    "time_mask": _mask("time", "T"),
}


def _optimizer(file: Translation, adim: Any) -> None:
    name = str(file.take("opt", "adadelta"))
    rate, warmup = file.take("transformer_lr", 10.0), file.take("transformer_warmup_steps", 25000)
    eps, decay = file.take("eps", 1e-8), file.take("weight_decay", 0.0)
    file.drop("eps_decay", "the rate follows the scheduler")
    file.drop("threshold", "the rate follows the scheduler")
    if name == "noam":
        # ESPnet1: rate * adim^-0.5 * min(step^-0.5, step * warmup^-1.5), which is NoamLR over the optimizer's rate.
        file.put("optim", "adam", "opt")
        file.put("optim_conf", {"lr": rate, "betas": [0.9, 0.98], "eps": 1e-9}, "opt")
        file.put("scheduler", "noamlr", "opt")
        file.put("scheduler_conf", {"model_size": adim, "warmup_steps": warmup}, "opt")
        file.note(
            "opt",
            f"opt: noam, transformer-lr: {_show(rate)}, transformer-warmup-steps: {warmup} became optim: adam "
            "(0.9, 0.98, 1e-9), "
            f"optim_conf.lr: {_show(rate)}, scheduler: noamlr with model_size: {adim}: the same rate at every step",
        )
    elif name == "adam":
        file.put("optim", "adam", "opt")
        file.put("optim_conf", {"weight_decay": decay}, "opt")
        file.note("opt", "opt: adam became optim: adam")
    elif name == "adadelta":
        file.put("optim", "adadelta", "opt")
        file.put("optim_conf", {"lr": 1.0, "rho": 0.95, "eps": eps, "weight_decay": decay}, "opt")
        file.note("opt", "opt: adadelta became optim: adadelta (rho 0.95); its eps stays as it is")
    else:
        file.refuse("opt", f"opt: noam, adam and adadelta are translated, not '{name}'")


def _patience(file: Translation, *, criterion: str, mode: str) -> None:
    patience = file.take("patience", 3)
    watched = str(file.take("early_stop_criterion", f"validation/main/{criterion}")).rpartition("/")[2]
    file.drop("criterion", "it steered eps-decay")
    file.put("patience", patience or None, "patience")
    file.put("early_stopping_criterion", ["valid", watched, "min" if watched == "loss" else mode], "patience")
    file.put("best_model_criterion", [["valid", "acc", "max"], ["valid", "loss", "min"]])
    if criterion == "loss":
        file.put("best_model_criterion", [["valid", "loss", "min"]])
    became = "null (no early stopping)" if not patience else str(patience)
    file.note("patience", f"patience: {patience} became patience: {became}, watching valid {watched}")


def _batches(file: Translation) -> None:
    count = str(file.take("batch_count", "auto"))
    size = file.take("batch_size", 0) or file.take("batch_seqs", 0)
    bins, frames = file.take("batch_bins", 0), file.take("batch_frames_in", 0)
    fold = [file.take("maxlen_in", 800), file.take("maxlen_out", 150)]
    _refuse_unless(file, "batch_frames_out", (0,))
    _refuse_unless(file, "batch_frames_inout", (0,))
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
            "batch_size_per_device: true (ESPnet1 multiplies it by the devices)",
        )
    else:
        number, batch_type = (bins, "numel") if count == "bin" else (frames, "length")
        key = "batch_bins" if count == "bin" else "batch_frames_in"
        file.put("batch_type", batch_type, key)
        file.put("batch_bins", number, key)
        file.note(key, f"batch-count: {count} became batch_type: {batch_type}, batch_bins: {number}")


def _refuse_unless(file: Translation, key: str, allowed: tuple[Any, ...]) -> None:
    written = file.left.get(key, (key, None))[0]
    file.known.add(key)
    if key not in file.left:
        return
    if (value := file.take(key)) in allowed:
        file.note(key, f"{written}: {_show(value)} became nothing: it is so anyway")
    else:
        file.refuse(key, f"{written}: {_show(value)} has no translation; only {_show(allowed[0])} has")


def _line_of(note: str) -> int:
    """Notes in the order of the file, what ESPnet1 implies after them."""
    match = re.match(r".*?:(\d+): ", note)
    return int(match[1]) if match else sys.maxsize


def _show(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
