"""Parameter names and checkpoint files of fairseq and s3prl, in the names of `transformers`."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tympan.errors import UserError
from tympan.models.weights import named_weights, read_tensors

_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^feature_extractor\.conv_layers\.(\d+)\.0\.", r"feature_extractor.conv_layers.\1.conv."),
        (r"^feature_extractor\.conv_layers\.(\d+)\.2\.(?:1\.)?", r"feature_extractor.conv_layers.\1.layer_norm."),
        (r"^layer_norm\.", "feature_projection.layer_norm."),
        (r"^post_extract_proj\.", "feature_projection.projection."),
        (r"^mask_emb$", "masked_spec_embed"),
        (r"^encoder\.pos_conv\.0\.", "encoder.pos_conv_embed.conv."),
        (r"\.self_attn\.grep_linear\.", ".attention.gru_rel_pos_linear."),
        (r"\.self_attn\.grep_a$", ".attention.gru_rel_pos_const"),
        (r"\.self_attn\.relative_attention_bias\.", ".attention.rel_attn_embed."),
        (r"\.self_attn_layer_norm\.", ".layer_norm."),
        (r"\.self_attn\.", ".attention."),
        (r"\.fc1\.", ".feed_forward.intermediate_dense."),
        (r"\.fc2\.", ".feed_forward.output_dense."),
        (r"\.weight_g$", ".parametrizations.weight.original0"),
        (r"\.weight_v$", ".parametrizations.weight.original1"),
    )
]
_PRETRAINING = re.compile(
    r"^(quantizer|project_q|project_hid|final_proj|label_embs_concat|target_glu|lm_head|classifier|projector"
    r"|layer_weights|dropout_features|speaker_proj|label_embs|objective|tdnn|feature_extractor_speaker)(\.|$)"
)
_FAMILY = re.compile(r"^(wav2vec2|hubert|wavlm|unispeech|unispeech_sat)\.")


def own_name(name: str) -> str | None:
    """The name in `transformers` of a parameter of fairseq, s3prl or `transformers`; None if only training used it."""
    name = _FAMILY.sub("", name)
    if _PRETRAINING.match(name):
        return None
    for pattern, replacement in _RULES:
        name = pattern.sub(replacement, name)
    return name


def own_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a pretrained model in the names of `transformers`, without the parts that only training used."""
    named = ((own_name(name), tensor) for name, tensor in weights.items())
    return {name: tensor for name, tensor in named if name is not None}


def read_checkpoint(path: Path, family: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Architecture and weights of a checkpoint of WavLM, or one that s3prl converted from fairseq."""
    content = read_tensors(path)
    weights = content.get("model_weight", content.get("model"))
    values = content.get("model_cfg", content.get("cfg"))
    if not isinstance(weights, dict) or not isinstance(values, dict):
        raise UserError(
            f"{path}: expects 'model' and 'cfg', or 'model_weight' and 'model_cfg' as in the files that s3prl converts "
            f"from fairseq; found {', '.join(map(str, list(content)[:6]))}"
        )
    task = content.get("task_cfg")
    normalize = task.get("normalize") if isinstance(task, dict) else values.get("normalize")
    return _architecture(values, family, bool(normalize), path), own_names(named_weights(path, weights))


def _architecture(values: Mapping[str, Any], family: str, normalize: bool, path: Path) -> dict[str, Any]:
    try:
        layers = _conv_layers(str(values["conv_feature_layers"]))
        found = {
            "model_type": family,
            "hidden_size": int(values["encoder_embed_dim"]),
            "num_hidden_layers": int(values["encoder_layers"]),
            "num_attention_heads": int(values["encoder_attention_heads"]),
            "intermediate_size": int(values["encoder_ffn_embed_dim"]),
            "num_conv_pos_embeddings": int(values.get("conv_pos", 128)),
            "num_conv_pos_embedding_groups": int(values.get("conv_pos_groups", 16)),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: its configuration does not describe a {family} model ({error!r})") from None
    is_layer = str(values.get("extractor_mode", "default")).rpartition(".")[2] == "layer_norm"
    bucketed = {
        key: int(values[name])
        for key, name in (("num_buckets", "num_buckets"), ("max_bucket_distance", "max_distance"))
        if family == "wavlm" and name in values
    }
    return (
        found
        | bucketed
        | {
            "conv_dim": [layer[0] for layer in layers],
            "conv_kernel": [layer[1] for layer in layers],
            "conv_stride": [layer[2] for layer in layers],
            "num_feat_extract_layers": len(layers),
            "conv_bias": bool(values.get("conv_bias", False)),
            "feat_extract_norm": "layer" if is_layer else "group",
            "do_stable_layer_norm": bool(values.get("layer_norm_first", False)),
            "hidden_dropout": float(values.get("dropout", 0.0)),
            "attention_dropout": float(values.get("attention_dropout", 0.0)),
            "activation_dropout": float(values.get("activation_dropout", 0.0)),
            "feat_proj_dropout": float(values.get("dropout_input", 0.0)),
            "do_normalize": normalize,
        }
    )


def _conv_layers(text: str) -> list[tuple[int, int, int]]:
    """fairseq writes the convolutions as an expression, such as `[(512,10,5)] + [(512,3,2)] * 4`."""
    found: list[tuple[int, int, int]] = []
    for part in re.split(r"\+(?=\s*\[)", text):
        items, _, times = part.partition("]")
        count = int(times.replace("*", "").strip() or 1)
        found += [(int(a), int(b), int(c)) for a, b, c in ast.literal_eval(items.strip() + "]")] * count
    if not found:
        raise ValueError(f"no convolutions in {text!r}")
    return found
