"""Translate `lightning_conf`, the options of ESPnet2's Lightning trainer, into the training options."""

from __future__ import annotations

from typing import Any

from tympan.config.mistakes import Mistakes
from tympan.config.yaml_text import Document

RENAMED = {
    "max_epochs": "max_epoch",
    "accumulate_grad_batches": "accum_grad",
    "gradient_clip_val": "grad_clip",
    "log_every_n_steps": "log_interval",
}
NOT_NEEDED = ("accelerator", "devices", "num_nodes", "default_root_dir", "strategy", "strategy_conf")
"""Devices and processes are chosen with --ngpu and the options of distributed training."""
PRECISIONS: dict[str, dict[str, Any]] = {
    "32": {}, "32-true": {}, "16-mixed": {"use_amp": True}, "bf16-mixed": {"use_amp": True},
    "bf16-true": {"train_dtype": "bfloat16"}, "16-true": {"train_dtype": "float16"},
}  # fmt: skip


def translate_lightning(document: Document) -> Document:
    """The document itself if it has no `lightning_conf`. UserError for keys that have no translation."""
    conf = document.value.get("lightning_conf") if isinstance(document.value, dict) else None
    if not isinstance(conf, dict):
        return document
    mistakes = Mistakes()
    value = {key: item for key, item in document.value.items() if key != "lightning_conf"}
    notes = []
    for key, item in conf.items():
        where = document.where(("lightning_conf", key))
        found: dict[str, Any] | None = None
        if key in RENAMED:
            found = {RENAMED[key]: item}
        elif key in NOT_NEEDED or (key == "check_val_every_n_epoch" and item == 1):
            found = {}
        elif key == "precision" and str(item) in PRECISIONS:
            found = PRECISIONS[str(item)]
        elif key == "best_model_criterion":
            found = _criteria(item)
        if found is None:
            mistakes.add(where, f"lightning_conf.{key}: {item} has no translation; remove it, or use ESPnet2's options")
            continue
        value.update(found)
        became = ", ".join(f"{name}: {new}" for name, new in found.items()) or "nothing: it is not needed here"
        notes.append(f"{where}: lightning_conf.{key} became {became}")
    mistakes.check()
    return Document(document.name, value, document.lines, (*document.notes, *notes))


def _criteria(items: Any) -> dict[str, Any] | None:
    """`[valid/acc, max, 10]` is a criterion and the number of models to keep; `step` keeps the newest models."""
    if not isinstance(items, list) or not all(isinstance(item, list) and len(item) == 3 for item in items):
        return None
    named = [(str(name).partition("/"), mode, number) for name, mode, number in items if name != "step"]
    if not named or not all(slash for (_, slash, _), _, _ in named):
        return None
    return {
        "best_model_criterion": [[phase, name, mode] for (phase, _, name), mode, _ in named],
        "keep_nbest_models": max(number for _, _, number in named),
    }
