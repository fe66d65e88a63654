"""What an ESPnet2 config.yaml may hold beyond our options."""

from __future__ import annotations

from typing import Any

# Written into every run's config.yaml by ESPnet2, no options.
WRITTEN_BY_ESPNET2 = frozenset({"config", "print_config", "required", "version", "distributed"})

# Keys by `option:class` that only ESPnet2's class reads, with its defaults: taken at the default, refused otherwise.
LACKING: dict[str, dict[str, Any]] = {
    "ctc_conf:": {
        "ctc_type": "builtin",
        "reduce": True,
        "brctc_risk_strategy": "exp",
        "brctc_group_strategy": "end",
        "brctc_risk_factor": 0.0,
    },
    "model_conf:espnet": {
        "aux_ctc": None,
        "transducer_multi_blank_durations": [],
        "transducer_multi_blank_sigma": 0.05,
        "autocast_frontend": False,
        "lang_token_id": -1,
    },
    "preprocessor_conf:default": {
        "whisper_language": None,
        "whisper_task": None,
    },
}
