"""The model that fine-tuning starts from: a packed folder, with another token list where asked."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.torch import save
from torch import Tensor

from tympan.config.asr import AsrTrainConfig
from tympan.config.read import load_training_config
from tympan.decode.model_files import CONFIG, find_model
from tympan.decode.options import DecodeOptions
from tympan.decode.pack import pack_model
from tympan.errors import UserError
from tympan.files import copy_file
from tympan.models.build import speech_kind
from tympan.models.weights import load_weights
from tympan.runtime.atomic import atomic_folder, atomic_write
from tympan.text.codec import TextCodec
from tympan.text.sentencepiece import BpeTokenizer
from tympan.text.vocabulary import read_token_list
from tympan.tuning.vocabulary import (
    Coverage,
    extended_tokens,
    own_weights,
    vocabulary_dims,
    with_pieces,
    with_tokens,
)

WEIGHTS = "model.safetensors"
STATISTICS = "feats_stats.npz"


@dataclass(frozen=True)
class Start:
    """A packed folder to start from."""

    folder: Path
    config: AsrTrainConfig
    parameters: list[str]
    """Names of the model's parameters."""
    changed: list[str]
    """Names of the weights that were resized for another token list."""

    @property
    def values(self) -> dict[str, Any]:
        """Options of the model as asr_train takes them, with the paths of its files."""
        values: dict[str, Any] = yaml.safe_load((self.folder / CONFIG).read_text(encoding="utf-8"))
        for name in ("bpemodel", "g2p"):
            if values.get(name) and (self.folder / values[name]).is_file():
                values[name] = str(self.folder / values[name])
        if (values.get("frontend_conf") or {}).get("cache_dir"):
            # Stored hidden states are only for a pretrained frontend that is not trained.
            values["frontend_conf"] = {**values["frontend_conf"], "cache_dir": None}
        if (values.get("normalize_conf") or {}).get("stats_file"):
            values["normalize_conf"] = {**values["normalize_conf"], "stats_file": str(self.folder / STATISTICS)}
        return values

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS


def pack_base(model: str, folder: Path, *, options: DecodeOptions | None, allow_import: bool) -> Path:
    """Pack the given model into `folder`, from whatever source."""
    files = find_model(model)
    if speech_kind(files.config_values()).marker is not None:
        raise UserError(f"{model}: is not a speech recognizer; `tympan finetune` trains only these")
    return pack_model(files, folder, options=options, allow_import=allow_import)


def read_start(folder: Path, *, changed: list[str], allow_import: bool) -> Start:
    """Read a packed folder. Statistics that are only in the weights are written to a file, which training needs."""
    config = load_training_config(AsrTrainConfig, folder / CONFIG, allow_import=allow_import)
    weights, parameters = own_weights(config, load_weights(folder / WEIGHTS))
    if "normalize.mean" in weights and not (folder / STATISTICS).exists():
        _write_statistics(folder / STATISTICS, weights)
    return Start(folder, config, parameters, changed)


def change_tokens(
    base: Path,
    folder: Path,
    *,
    codec: TextCodec,
    added: Coverage | None = None,
    token_list: Path | None = None,
    bpemodel: Path | None = None,
    allow_import: bool = False,
) -> list[str]:
    """Write `folder`, the model of `base` with more tokens (`added`) or other tokens. Returns the resized weights."""
    config = load_training_config(AsrTrainConfig, base / CONFIG, allow_import=allow_import)
    weights, _ = own_weights(config, load_weights(base / WEIGHTS))
    old = list(codec.vocabulary.tokens)
    characters = sorted(added.missing, key=lambda token: (-added.missing[token], token)) if added else []
    new = extended_tokens(old, characters) if token_list is None else list(read_token_list(token_list).tokens)
    _report_tokens(old, new)
    dims = vocabulary_dims(replace(config, token_list=old), weights)
    if (folder / CONFIG).exists():  # a resumed run
        return sorted(dims)
    with atomic_folder(folder) as output:
        shutil.copytree(base, output, dirs_exist_ok=True, ignore=shutil.ignore_patterns("lm", WEIGHTS, CONFIG))
        values = yaml.safe_load((base / CONFIG).read_text(encoding="utf-8"))
        if bpemodel is not None:
            copy_file(bpemodel, output / "bpe.model")
            values |= {"bpemodel": "bpe.model", "token_type": "bpe"}
        elif characters and isinstance(codec.tokenizer, BpeTokenizer):
            (output / "bpe.model").write_bytes(with_pieces(codec.tokenizer.model.read_bytes(), characters))
        _write_yaml(output / CONFIG, {**values, "token_list": new})
        _write_weights(output / WEIGHTS, with_tokens(weights, dims, old=old, new=new))
    if (base / "lm").exists():
        logging.warning(
            "the language model of %s has the old token list: it is left out of the decoding before and after", base
        )
        shutil.rmtree(base / "lm")
    return sorted(dims)


def _report_tokens(old: list[str], new: list[str]) -> None:
    kept, lost = [token for token in new if token in set(old)], [token for token in old if token not in set(new)]
    if len(kept) <= 3 and len(old) > 3:
        raise UserError(
            f"--token_list: of {len(new)} tokens, only {', '.join(kept) or 'none'} can be mapped to the model's "
            f"{len(old)} tokens, such as {', '.join(old[2:7])}. Check the case and the type of the tokens"
        )
    logging.info(
        "token list: %d tokens keep their weights, %d are new, %d of the model's are dropped",
        len(kept), len(new) - len(kept), len(lost),
    )  # fmt: skip


def _write_statistics(path: Path, weights: dict[str, Tensor]) -> None:
    mean, std = (weights[f"normalize.{name}"].double().numpy() for name in ("mean", "std"))
    with atomic_write(path, "wb") as stream:
        np.savez(stream, count=np.array(1.0), sum=mean, sum_square=mean**2 + std**2)


def _write_weights(path: Path, weights: dict[str, Tensor]) -> None:
    with atomic_write(path, "wb") as stream:
        stream.write(save({name: tensor.clone().contiguous() for name, tensor in weights.items()}))


def _write_yaml(path: Path, values: dict[str, Any]) -> None:
    with atomic_write(path) as stream:
        yaml.safe_dump(values, stream, allow_unicode=True, sort_keys=False)
