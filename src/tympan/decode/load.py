"""Loading a recognizer's models. No code in the files is run, and no class they name is imported unless allowed."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tympan.config.choices import ADAPTERS
from tympan.config.lm import LmTrainConfig
from tympan.config.model import SpeechToTextConfig
from tympan.config.read import load_training_config, training_config_of
from tympan.decode.adapter_file import apply_adapter
from tympan.decode.espnet2_options import QuantizationOptions
from tympan.decode.model_files import ModelFiles
from tympan.decode.search import Need
from tympan.decode.speech_input import SpeechInput, speech_input
from tympan.errors import UserError
from tympan.models.adapter import Adapter, has_separate_adapters, merge_into
from tympan.models.build import Builder, SpeechKind, speech_kind
from tympan.models.init_param import init_from
from tympan.models.lm.build import build_lm
from tympan.models.lm.model import LanguageModel
from tympan.models.speech_model import HasDecoder, SpeechModel
from tympan.models.weights import fill_weights, in_own_names, load_weights
from tympan.nn.frozen import freeze
from tympan.nn.quantized import quantize
from tympan.runtime.precision import choose_precision
from tympan.text.codec import TextCodec, build_codec, read_vocabulary
from tympan.text.lexicon import Lexicon
from tympan.text.phonemes import PhonemeTokenizer
from tympan.text.vocabulary import read_token_list

logger = logging.getLogger(__name__)

FORMATS = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class LoadedModel:
    """A recognizer's parts, ready to use on one device. A search loads anything else that it needs itself."""

    model: SpeechModel
    codec: TextCodec
    input: SpeechInput
    device: torch.device
    dtype: torch.dtype
    lm: LanguageModel | None = None
    ngram_file: Path | None = None

    @property
    def lexicon(self) -> Lexicon | None:
        """The words whose phones are the model's tokens."""
        tokenizer = self.codec.tokenizer
        return tokenizer.lexicon if isinstance(tokenizer, PhonemeTokenizer) else None

    @cached_property
    def abilities(self) -> frozenset[Need]:
        """The needs of a search that this model meets."""
        found: set[Need] = set()
        if self.model.has_ctc:
            found.add("ctc")
        if isinstance(self.model, HasDecoder) and self.model.step_decoder is not None:
            found.add("decoder")
        if self.lexicon is not None:
            found.add("lexicon")
        return frozenset(found)


def load_model(
    files: ModelFiles,
    *,
    device: torch.device | None = None,
    dtype: str = "float32",
    allow_import: bool = False,
    quantization: QuantizationOptions | None = None,
) -> LoadedModel:
    """Load everything in `files` except the n-gram: whether it is over tokens or words depends on the search."""
    files.check()
    device = device or torch.device("cpu")
    number_format = _number_format(dtype, device)
    kind = speech_kind(files.config_values())
    config = training_config(kind, files, allow_import=allow_import)
    codec = _codec(config, files)
    model = filled_model(config, files, kind.build, allow_import=allow_import)
    if not isinstance(model, SpeechModel):
        raise UserError(
            f"{files.asr_train_config}: the class {type(model).__name__} of this model can be trained but not decoded: "
            "it does not implement tympan.models.speech_model.SpeechModel"
        )
    lm = None
    if files.lm_train_config is not None and files.lm_file is not None:
        lm = _load_lm(files.lm_train_config, files.lm_file, codec, files=files, allow_import=allow_import)
        lm.to(device=device, dtype=number_format).eval()
    model.to(device=device)
    model.set_precision(number_format)
    model.eval()
    quantization = quantization or QuantizationOptions()
    _optimize("recognizer", model, quantization if quantization.quantize_asr_model else None)
    if lm is not None:
        _optimize("language model", lm, quantization if quantization.quantize_lm else None)
    return LoadedModel(
        model=model,
        codec=codec,
        input=speech_input(config, model, folder=files.asr_train_config.parent, device=device),
        device=device,
        dtype=number_format,
        lm=lm,
        ngram_file=files.ngram_file,
    )


def _optimize(name: str, model: nn.Module, quantization: QuantizationOptions | None) -> None:
    """Quantize the layers of a model, or convert them to the fastest layout."""
    if quantization is None:
        freeze(model)
        return
    layers = quantization.quantize_modules
    count = quantize(model, layers, quantization.quantize_dtype)
    if count == 0:
        raise UserError(f"quantize_modules: the {name} has no layers of torch.nn's {', '.join(layers)} to quantize")
    logger.info("%d layers of the %s have weights of %s", count, name, quantization.quantize_dtype)


def training_config(kind: SpeechKind, files: ModelFiles, *, allow_import: bool) -> SpeechToTextConfig:
    """The configuration that the model was trained with."""
    if files.published is not None:
        return training_config_of(kind.config_class, files.published.values, files.asr_train_config)
    return load_training_config(kind.config_class, files.asr_train_config, allow_import=allow_import)


def model_weights(files: ModelFiles) -> dict[str, Tensor]:
    """The weights of the recognizer."""
    return load_weights(files.asr_model_file) if files.published is None else files.published.weights()


def filled_model(
    config: SpeechToTextConfig, files: ModelFiles, build: Builder, *, allow_import: bool = False
) -> nn.Module:
    """The model of `config`, with its weights. Adapters that can be merged into the weights are merged."""
    config = _with_tokens(config, files)
    weights = model_weights(files)
    adapter: Adapter | None = ADAPTERS.build(config.adapter, config.adapter_conf) if config.use_adapter else None
    if adapter is not None and has_separate_adapters(weights):
        model = build(config, reads_statistics=False)
        weights = in_own_names(model, weights)
        weights = merge_into(_with_base(model, weights, config, files), weights, scale=adapter.scale)
    elif adapter is not None and not adapter.MERGES:
        model = build(config, reads_statistics=False)
        adapter.add_to(model, freezes=False)
        weights = in_own_names(model, weights)
        if model.state_dict().keys() - weights.keys():
            weights = {**_with_base(model, weights, config, files).state_dict(), **weights}
    else:
        model = build(_with_statistics(config, files, weights), reads_statistics="normalize.mean" not in weights)
    fill_weights(model, weights, files.asr_model_file, files.asr_train_config)
    if files.adapter is not None:
        apply_adapter(model, files.adapter, allow_import=allow_import)
    return model


def _with_base(
    model: nn.Module, weights: dict[str, Tensor], config: SpeechToTextConfig, files: ModelFiles
) -> nn.Module:
    """Fill the model with the weights that training started from, for a file with only the trained parameters."""
    known = set(weights)
    for entry in config.init_param:
        name, colon, rest = entry.partition(":")
        loaded = init_from(model, f"{files.find(name)}{colon}{rest}", ignore_mismatch=config.ignore_init_mismatch)
        known.update(loaded)
    missing = sorted(model.state_dict().keys() - known)
    if missing:
        raise UserError(
            f"{files.asr_model_file}: holds only the trained weights (save_strategy {config.save_strategy}), and "
            f"{len(missing)} other weights, such as {missing[0]}, are not in the files of init_param in "
            f"{files.asr_train_config}"
        )
    return model


def _number_format(name: str, device: torch.device) -> torch.dtype:
    """The number format, checked on this device before anything is built."""
    if name not in FORMATS:
        raise UserError(f"--dtype {name}: must be one of {', '.join(FORMATS)}")
    try:
        choose_precision(name, device_type=device.type)
    except UserError as error:
        raise UserError(str(error).replace("--train_dtype", "--dtype")) from None
    return FORMATS[name]


def _with_tokens(config: SpeechToTextConfig, files: ModelFiles) -> SpeechToTextConfig:
    """With the tokens themselves where the configuration names their files."""
    source = str(files.asr_train_config)
    lists: dict[str, Any] = {
        name: list(read_vocabulary(text, find=files.find, source=f"{source}: {name}").tokens)
        for name, text in config.token_lists.items()
    }
    return dataclasses.replace(config, **lists)


def _with_statistics(config: SpeechToTextConfig, files: ModelFiles, weights: dict[str, Tensor]) -> SpeechToTextConfig:
    stats = (config.normalize_conf or {}).get("stats_file")
    if config.normalize != "global_mvn" or "normalize.mean" in weights or stats is None:
        return config
    return dataclasses.replace(config, normalize_conf={**config.normalize_conf, "stats_file": str(files.find(stats))})


def _codec(config: SpeechToTextConfig, files: ModelFiles) -> TextCodec:
    """The text options of the configuration, overridden by the given options."""
    text = config.text
    if files.token_type is not None:
        text = dataclasses.replace(text, token_type=files.token_type)
    if files.bpemodel is not None:
        text = dataclasses.replace(text, bpemodel=str(files.bpemodel.absolute()))

    def find(name: str) -> str | Path:
        # A g2p package of another toolkit is not a file. Building the tokenizer reports the known ones.
        is_package = name == text.g2p and not Path(name).suffix and not Path(name).is_file()
        return name if is_package else files.find(name)

    return build_codec(text, find=find, source=f"{files.asr_train_config}: token_list")


def _load_lm(
    config_path: Path, weights_path: Path, codec: TextCodec, *, files: ModelFiles, allow_import: bool
) -> LanguageModel:
    config = load_training_config(LmTrainConfig, config_path, allow_import=allow_import)
    vocabulary = codec.vocabulary
    if isinstance(config.token_list, str):
        tokens = read_token_list(files.find(config.token_list), unk_symbol=vocabulary.unk_symbol).tokens
        config = dataclasses.replace(config, token_list=list(tokens))
    if list(config.token_list or []) != list(vocabulary.tokens):
        raise UserError(
            f"{config_path}: the language model's tokens ({len(config.token_list or [])}) differ from those of the "
            f"recognizer ({len(vocabulary)}): train it with the same --token_list"
        )
    lm = build_lm(config)
    fill_weights(lm, load_weights(weights_path), weights_path, config_path)
    return lm
