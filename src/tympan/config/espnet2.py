"""What an ESPnet2 config.yaml may hold beyond our options."""

from __future__ import annotations

from typing import Any

from tympan.config.yaml_text import Document

_WRITTEN = frozenset({"config", "print_config", "required", "version", "distributed"})
"""No options: ESPnet2 writes them into every run's config.yaml."""

# Keys by `option:class` that only ESPnet2's class reads, with its defaults: taken at the default, refused otherwise.
LACKING: dict[str, dict[str, Any]] = {
    "ctc_conf:": {
        "reduce": True,
        "brctc_risk_strategy": "exp",
        "brctc_group_strategy": "end",
        "brctc_risk_factor": 0.0,
    },
    "model_conf:espnet": {
        "aux_ctc": None,
        "transducer_multi_blank_durations": [],
        "transducer_multi_blank_sigma": 0.05,
    },
    "preprocessor_conf:default": {
        "whisper_language": None,
        "whisper_task": None,
    },
}


def without_notes(document: Document) -> Document:
    """A config.yaml that ESPnet2 wrote, without what it noted there; a file that a user wrote stays as it is."""
    if not {"print_config", "required"} <= set(document.value):
        return document
    value = {key: item for key, item in document.value.items() if key not in _WRITTEN}
    return Document(document.name, value, document.lines, document.notes)
