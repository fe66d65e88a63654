"""Small random models in place of published ones, so that compat.py can build configurations that name them.

Each stand-in is a folder or file of the published format, under the name that the configuration gives, below the
working directory. It is found and read by the same code as the published model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"
_SPECIAL = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_SEQ2SEQ = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, **_SPECIAL}  # fmt: skip
TEXT_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mbart": ("AutoModelForSeq2SeqLM", {**_SEQ2SEQ, "scale_embedding": True}),
    "bart": ("AutoModelForSeq2SeqLM", _SEQ2SEQ),
    "t5": ("AutoModelForSeq2SeqLM", {"d_model": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2,
                                     "d_kv": 8, "d_ff": 24, "decoder_start_token_id": 0}),
    "bert": ("AutoModelForMaskedLM", {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                                      "intermediate_size": 24}),
}  # fmt: skip
"""The automatic class and the sizes of each family. The first family whose name is in the model's name is used."""


def text_model(name: str) -> None:
    """A folder NAME with config.json and model.safetensors, as `transformers` saves a model."""
    import transformers

    family = next(family for family in TEXT_MODELS if family in name.lower())
    auto_class, sizes = TEXT_MODELS[family]
    config = transformers.AutoConfig.for_model(family, vocab_size=40, **sizes)
    getattr(transformers, auto_class).from_config(config).save_pretrained(name)


def speech_checkpoint(url: str, directory: str) -> None:
    """The file of a published wav2vec 2.0 model, as s3prl converts it from fairseq."""
    target = Path(directory, url.rsplit("/", 1)[-1])
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(GOLDEN / "s3prl" / "wav2vec2_layer.pt", target)


def beats_checkpoint(path: str) -> None:
    """A checkpoint of BEATs in its published format."""
    from tympan.models.pretrained.beats import BeatsEncoder

    sizes = {"encoder_layers": 2, "encoder_ffn_embed_dim": 24, "embed_dim": 16, "deep_norm": True,
             "relative_position_embedding": True, "gru_rel_pos": True}  # fmt: skip
    encoder = BeatsEncoder(beats_config=sizes)
    torch.save({"cfg": encoder.architecture, "model": encoder.state_dict()}, path)


def ssl_checkpoint(path: str) -> None:
    """A model of ESPnet2's SSL task, and its config.yaml in the same folder."""
    from tympan.models.pretrained.espnet_ssl import Upstream

    shapes = [[8, kernel, stride] for kernel, stride in ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))]
    options: dict[str, Any] = {
        "frontend": "wav2vec_cnn",
        "frontend_conf": {"norm_mode": "group_norm", "conv_mode": "standard", "bias": False, "shapes": shapes},
        "normalize": None,
        "preencoder": "linear",
        "preencoder_conf": {"output_size": 16},
        "encoder": "transformer",
        "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 2,
                         "input_layer": "wav2vec", "normalize_before": False, "pos_enc_layer_type": "conv"},
    }  # fmt: skip
    Path(path).with_name("config.yaml").write_text(yaml.safe_dump(options), encoding="utf-8")
    torch.save(Upstream(options, masking={}, masks=True).state_dict(), path)


def make_stand_ins(config: Any) -> dict[str, str]:
    """Make the stand-ins of a configuration that are not there yet. Returns the model's name by part.

    Parts whose options contain their architecture need none.
    """
    found: dict[str, str] = {}
    for part in ("frontend", "encoder", "postencoder", "decoder"):
        chosen, conf = getattr(config, part, None), getattr(config, f"{part}_conf", None) or {}
        make = MAKERS.get(f"{part}:{chosen}")
        if make is None or conf.get("architecture"):
            continue
        torch.manual_seed(0)
        found[part] = make(conf)
    return found


def _text(conf: Mapping[str, Any]) -> str:
    name = str(conf["model_name_or_path"])
    if not Path(name, "config.json").is_file():
        text_model(name)
    return name


def _wav2vec2(conf: Mapping[str, Any]) -> str:
    speech_checkpoint(conf["w2v_url"], conf["w2v_dir_path"])
    return str(conf["w2v_url"])


def _beats(conf: Mapping[str, Any]) -> str:
    beats_checkpoint(conf["beats_ckpt_path"])
    return str(conf["beats_ckpt_path"])


def _ssl(conf: Mapping[str, Any]) -> str:
    path = str(conf["frontend_conf"]["path_or_url"])
    ssl_checkpoint(path)
    return path


MAKERS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "postencoder:hugging_face_transformers": _text,
    "decoder:hugging_face_transformers": _text,
    "encoder:wav2vec2": _wav2vec2,
    "encoder:beats": _beats,
    "frontend:espnet_ssl": _ssl,
}
