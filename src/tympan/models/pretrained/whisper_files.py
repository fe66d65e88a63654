"""Find and read the weights of a Whisper model: a Hugging Face folder, or a checkpoint of openai (.pt)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from tympan.errors import UserError
from tympan.models.pretrained.folder import CONFIG, find_folder, read_json, read_weight_files
from tympan.models.pretrained.whisper_sizes import ALIASES, SIZES, WhisperSize, find_size
from tympan.models.weights import named_weights, read_tensors

_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^model\.", ""),
        (r"\.layers\.", ".blocks."),
        (r"\.embed_positions\.weight$", ".positional_embedding"),
        (r"^decoder\.embed_tokens\.", "decoder.token_embedding."),
        (r"^encoder\.layer_norm\.", "encoder.ln_post."),
        (r"^decoder\.layer_norm\.", "decoder.ln."),
        (r"\.self_attn_layer_norm\.", ".attn_ln."),
        (r"\.encoder_attn_layer_norm\.", ".cross_attn_ln."),
        (r"\.final_layer_norm\.", ".mlp_ln."),
        (r"\.self_attn\.", ".attn."),
        (r"\.encoder_attn\.", ".cross_attn."),
        (r"\.q_proj\.", ".query."),
        (r"\.k_proj\.", ".key."),
        (r"\.v_proj\.", ".value."),
        (r"\.out_proj\.", ".out."),
        (r"\.fc1\.", ".mlp.0."),
        (r"\.fc2\.", ".mlp.2."),
    )
]


def openai_names(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a Hugging Face folder in openai's names. The output layer is the embedding, so it is left out."""
    found = {}
    for name, tensor in weights.items():
        if name == "proj_out.weight":
            continue
        for pattern, replacement in _RULES:
            name = pattern.sub(replacement, name)
        found[name] = tensor
    return found


def whisper_size(name: str, download_dir: str | None) -> WhisperSize:
    """The sizes of a published model by its name, or of a folder or file."""
    if name in SIZES or name in ALIASES:
        return find_size(name)
    path = _local(name, download_dir)
    if path is None and name.count("/") == 1 and not name.startswith((".", "/")):
        path = find_folder(name, download_dir)
    return find_size(name) if path is None else _read_size(path)


def whisper_weights(name: str, download_dir: str | None) -> tuple[WhisperSize, dict[str, Tensor]]:
    """Sizes and weights in openai's names; UserError that says what to fetch if they are not on this machine."""
    path = _local(name, download_dir)
    if path is None:
        published = ALIASES.get(name, name)
        repository = f"openai/whisper-{published}" if published in SIZES else name
        path = find_folder(repository, download_dir)
    return read_whisper(path)


def read_whisper(path: Path) -> tuple[WhisperSize, dict[str, Tensor]]:
    """Sizes and weights, in openai's names, of a folder or file."""
    if path.is_dir():
        return _read_size(path), openai_names(read_weight_files(path))
    content = read_tensors(path)
    dims, weights = content.get("dims"), content.get("model_state_dict")
    if not isinstance(dims, Mapping) or not isinstance(weights, dict):
        raise UserError(f"{path}: is not a checkpoint of openai's Whisper, which has 'dims' and 'model_state_dict'")
    return WhisperSize.parse(dims, path), named_weights(path, weights)


def is_whisper_folder(folder: Path) -> bool:
    """Whether a folder holds a Whisper model in the format of the Hugging Face hub."""
    return (folder / CONFIG).is_file() and read_json(folder / CONFIG).get("model_type") == "whisper"


def _read_size(path: Path) -> WhisperSize:
    if path.is_file():
        return read_whisper(path)[0]
    config = read_json(path / CONFIG)
    if config.get("model_type") != "whisper":
        raise UserError(f"{path}: model_type of its {CONFIG} is {config.get('model_type')!r}, but it must be 'whisper'")
    return WhisperSize.from_transformers(config, path / CONFIG)


def _local(name: str, download_dir: str | None) -> Path | None:
    """The folder or file of a model on this machine. openai's package keeps its files in ~/.cache/whisper."""
    published = ALIASES.get(name, name)
    folders = [Path(download_dir)] if download_dir else [Path.home() / ".cache" / "whisper"]
    candidates = [Path(name)]
    for folder in folders:
        candidates += [folder / f"{item}.pt" for item in (name, published)]
        candidates += [folder / name, folder / "openai" / f"whisper-{published}", folder / f"whisper-{published}"]
    for candidate in candidates:
        if (candidate / CONFIG).is_file() or (candidate.is_file() and candidate.suffix == ".pt"):
            return candidate
    return None
