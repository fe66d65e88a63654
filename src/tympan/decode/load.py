"""Loading a recogniser's models. Nothing in the files is run, and no class of theirs is imported unless allowed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.config.read import load_training_config
from tympan.decode.lexicon_search import LexiconSearch, load_lexicon_search
from tympan.decode.model_files import ModelFiles
from tympan.decode.settings import DecodeSettings
from tympan.decode.speech_input import SpeechInput, speech_input
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.models.lm.build import build_lm
from tympan.models.weights import fill_weights, load_weights
from tympan.nn.frozen import freeze
from tympan.runtime.precision import choose_precision
from tympan.text.codec import TextCodec, build_codec
from tympan.text.phonemes import PhonemeTokenizer
from tympan.text.vocabulary import read_token_list

FORMATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class LoadedModel:
    """A recogniser's parts, ready to use on one device."""

    model: Any
    codec: TextCodec
    input: SpeechInput
    device: torch.device
    dtype: torch.dtype
    lm: Any | None = None
    ngram: Any | None = None
    lexicon_search: LexiconSearch | None = None


def load_model(
    files: ModelFiles,
    settings: DecodeSettings,
    *,
    device: torch.device | None = None,
    dtype: str = "float32",
    allow_import: bool = False,
) -> LoadedModel:
    """Everything that `files` names."""
    files.check()
    device = device or torch.device("cpu")
    number_format = _number_format(dtype, device)
    config = load_training_config(AsrTrainConfig, files.asr_train_config, allow_import=allow_import)
    codec = _codec(config, files)
    config = dataclasses.replace(config, token_list=list(codec.vocabulary.tokens))
    weights = load_weights(files.asr_model_file)
    model = build_asr_model(_with_statistics(config, files, weights), reads_statistics="normalize.mean" not in weights)
    fill_weights(model, weights, files.asr_model_file, files.asr_train_config)
    lm = None
    if files.lm_train_config is not None and files.lm_file is not None:
        lm = _load_lm(files.lm_train_config, files.lm_file, codec, files=files, allow_import=allow_import)
        freeze(lm.to(device=device, dtype=number_format).eval())
    lexicon_search = None
    if settings.search == "lexicon":
        lexicon_search = _lexicon_search(codec, files, settings, device)
    return LoadedModel(
        model=_converted(model, device, number_format),
        codec=codec,
        input=speech_input(config, model, folder=files.asr_train_config.parent),
        device=device,
        dtype=number_format,
        lm=lm,
        ngram=None
        if files.ngram_file is None or lexicon_search is not None
        else _load_ngram(files.ngram_file, codec, settings, device),
        lexicon_search=lexicon_search,
    )


def _number_format(name: str, device: torch.device) -> torch.dtype:
    """A format that this device can compute in, tried before anything is built."""
    if name not in FORMATS:
        raise UserError(f"--dtype {name} is none of {', '.join(FORMATS)}")
    try:
        choose_precision(name, device_type=device.type)
    except UserError as error:
        raise UserError(str(error).replace("--train_dtype", "--dtype")) from None
    number_format: torch.dtype = getattr(torch, name)
    return number_format


def _converted(model: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """The model in its number format; features are made in float32 at least."""
    model.to(device=device, dtype=dtype)
    for part in (model.frontend, model.normalize):
        if part is not None and dtype in (torch.float16, torch.bfloat16):
            part.float()
    freeze(model.eval())
    return model


def _with_statistics(config: AsrTrainConfig, files: ModelFiles, weights: dict[str, Tensor]) -> AsrTrainConfig:
    stats = (config.normalize_conf or {}).get("stats_file")
    if config.normalize != "global_mvn" or "normalize.mean" in weights or stats is None:
        return config
    return dataclasses.replace(config, normalize_conf={**config.normalize_conf, "stats_file": str(files.find(stats))})


def _codec(config: AsrTrainConfig, files: ModelFiles) -> TextCodec:
    """What the configuration says about text, with the options given in its place."""
    text = config.text
    if files.token_type is not None:
        text = dataclasses.replace(text, token_type=files.token_type)
    if files.bpemodel is not None:
        text = dataclasses.replace(text, bpemodel=str(files.bpemodel.absolute()))

    def find(name: str) -> str | Path:
        # A g2p package of another toolkit is no file: building the tokenizer says which there are.
        is_package = name == text.g2p and not Path(name).suffix and not Path(name).is_file()
        return name if is_package else files.find(name)

    return build_codec(text, find=find, source=f"{files.asr_train_config}: token_list")


def _lexicon_search(
    codec: TextCodec, files: ModelFiles, settings: DecodeSettings, device: torch.device
) -> LexiconSearch:
    lexicon = codec.tokenizer.lexicon if isinstance(codec.tokenizer, PhonemeTokenizer) else None
    if lexicon is None:
        overridden = f" (leave out --token_type {files.token_type})" if files.token_type not in (None, "phn") else ""
        raise UserError(
            "search lexicon needs a model whose tokens are phones of a lexicon: one trained with "
            f"--token_type phn --g2p FILE{overridden}"
        )
    if files.lm_file is not None and settings.lm_weight != 0:
        raise UserError("search lexicon takes an n-gram of words (--ngram_file), no neural LM: leave out --lm_file")
    return load_lexicon_search(lexicon, codec.vocabulary, files.ngram_file, settings, device)


def _load_lm(
    config_path: Path, weights_path: Path, codec: TextCodec, *, files: ModelFiles, allow_import: bool
) -> nn.Module:
    config = load_training_config(LmTrainConfig, config_path, allow_import=allow_import)
    vocabulary = codec.vocabulary
    if isinstance(config.token_list, str):
        tokens = read_token_list(files.find(config.token_list), unk_symbol=vocabulary.unk_symbol).tokens
        config = dataclasses.replace(config, token_list=list(tokens))
    if list(config.token_list or []) != list(vocabulary.tokens):
        raise UserError(
            f"{config_path}: the language model's tokens ({len(config.token_list or [])}) are not those of the "
            f"recogniser ({len(vocabulary)}): train it with the same --token_list"
        )
    lm: nn.Module = build_lm(config)
    fill_weights(lm, load_weights(weights_path), weights_path, config_path)
    return lm


def _load_ngram(path: Path, codec: TextCodec, settings: DecodeSettings, device: torch.device) -> Any:
    from tympan.decode.ngram_scorer import load_ngram_scorer

    vocabulary = codec.vocabulary
    eos = vocabulary.eos_id if settings.ngram_scores_end else None
    return load_ngram_scorer(path, vocabulary.tokens, eos=eos, device=device, is_full=settings.ngram_scorer == "full")
