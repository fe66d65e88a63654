"""Pack a model into a folder that can be moved: config, weights, tokens, statistics, language models, decode.yaml."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from safetensors.torch import save
from torch import Tensor

from tympan.config import choices
from tympan.config.choices import ADAPTERS
from tympan.config.lm import LmTrainConfig
from tympan.config.model import MODEL, SpeechToTextConfig
from tympan.config.option import options_of
from tympan.config.train import TrainConfig
from tympan.config.yaml_text import read_mapping
from tympan.decode.adapter_file import ADAPTER_FILE, read_adapter
from tympan.decode.load import filled_model, load_model, model_weights, training_config
from tympan.decode.model_files import CONFIG, FEATURES_FILE, SETTINGS, ModelFiles, find_model
from tympan.decode.options import DecodeOptions
from tympan.decode.recognizer import Recognizer
from tympan.decode.settings import merged_options
from tympan.errors import UserError
from tympan.files import copy_file, read_text
from tympan.models.adapter import Adapter, has_separate_adapters
from tympan.models.build import speech_kind
from tympan.models.inputs import build_inputs, with_encoder
from tympan.models.pretrained.speech_encoder import HasArchitecture
from tympan.models.weights import load_weights
from tympan.runtime.atomic import atomic_folder, atomic_write
from tympan.text.hugging_face import tokenizer_file
from tympan.text.ngram.binary import is_binary
from tympan.text.ngram.load import load_ngram
from tympan.text.vocabulary import UNK, read_token_list
from tympan.text.whisper import EOT, WHISPER_TYPES, find_vocabulary

TEXT_KEYS = ("token_type", "cleaner", "g2p", "preprocessor", "preprocessor_conf")
"""The text options that decoding needs, besides the token list."""


def pack_model(
    files: ModelFiles, output: Path, *, options: DecodeOptions | None = None, allow_import: bool = False
) -> Path:
    """Write the folder and load it once, to check that the packed model works.

    Without `options`, those of the model's own folder are kept.
    """
    files.check()
    if options is None and files.settings:
        options = merged_options(files.settings, {}, allow_import=allow_import)
    if output.exists() and any(output.iterdir()):
        raise UserError(f"{output}: not empty; choose another folder for the packed model")
    with atomic_folder(output) as folder:
        _write(files, folder, options, allow_import=allow_import)
        try:
            _try(folder, files, options or DecodeOptions(), allow_import=allow_import)
        except UserError as error:
            # The message would name a temporary folder that no longer exists.
            reason = str(error).replace(str(folder), str(output))
            raise UserError(f"nothing was packed because the model can't be loaded: {reason}") from None
    return output


def _write(files: ModelFiles, output: Path, options: DecodeOptions | None, *, allow_import: bool) -> None:
    _pack_recognizer(files, output, allow_import=allow_import)
    if files.lm_train_config is not None and files.lm_file is not None:
        values = read_mapping(files.lm_train_config)
        config = _model_options(values, LmTrainConfig)
        _write_yaml(output / "lm" / CONFIG, {**config, "token_list": _tokens(values, files)})
        _write_weights(load_weights(files.lm_file), output / "lm" / "model.safetensors")
    if files.ngram_file is not None:
        copy_file(files.ngram_file, output / f"ngram{_ngram_suffix(files.ngram_file)}")
    if options is not None:
        _write_yaml(output / SETTINGS, dataclasses.asdict(options))


def _try(output: Path, files: ModelFiles, options: DecodeOptions, *, allow_import: bool) -> None:
    """Load the packed model, and check that no language model got lost. Loading would not report it."""
    found = find_model(output)
    recognizer = Recognizer(load_model(found, allow_import=allow_import), options)
    is_tried = "ngram_weight" in recognizer.kind.uses and options.ngram_weight != 0
    if found.ngram_file is not None and not is_tried:
        load_ngram(found.ngram_file)  # another search may be chosen later
    parts = ("lm_file", "ngram_file")
    lost = [part for part in parts if (files.paths[part] is None) != (found.paths[part] is None)]
    assert not lost, f"{output}: the packed folder lacks {', '.join(lost)}"


def _ngram_suffix(path: Path) -> str:
    """The file's own suffix. An n-gram without one gets the suffix of its format, which its contents show."""
    if path.suffix == ".gz":
        return "".join(path.suffixes[-2:])
    return path.suffix or (".bin" if is_binary(path) else ".arpa")


def _pack_recognizer(files: ModelFiles, output: Path, *, allow_import: bool) -> None:
    values = read_mapping(files.asr_train_config) if files.published is None else files.published.values
    kind = speech_kind(values)
    config = _model_options(values, kind.config_class)
    training = training_config(kind, files, allow_import=allow_import)
    for name in training.token_lists:
        config[name] = _tokens(values, files, name)
    if files.token_type is not None:
        config["token_type"] = files.token_type
    if (bpemodel := _token_model(files, values)) is not None:
        name = "bpe.model" if values.get("token_type") in (None, "bpe") else bpemodel.name
        copy_file(bpemodel, output / name)
        config["bpemodel"] = name
    lexicon = files.lexicon()
    if lexicon is not None:
        copy_file(lexicon, output / "lexicon.txt")
        config["g2p"] = "lexicon.txt"
    symbols = values.get("non_linguistic_symbols")
    if symbols is not None and not isinstance(symbols, list):
        symbols = [line for line in read_text(files.find(str(symbols))).splitlines() if line.strip()]
    config["non_linguistic_symbols"] = symbols
    stats = (config.get("normalize_conf") or {}).get("stats_file")
    if stats is not None:
        config["normalize_conf"] = {**config["normalize_conf"], "stats_file": "feats_stats.npz"}
        if "normalize.mean" not in model_weights(files):
            copy_file(files.find(str(stats)), output / "feats_stats.npz")
    config = _with_architecture(config, training) | _adapter_options(training, files, allow_import=allow_import)
    _write_yaml(output / CONFIG, config)
    weights = model_weights(files)
    if training.use_adapter or has_separate_adapters(weights) or files.adapter is not None:
        weights = filled_model(training, files, kind.build, allow_import=allow_import).state_dict()
    _write_weights(weights, output / "model.safetensors")
    _pack_features(files.asr_train_config.parent, output)


def _adapter_options(training: SpeechToTextConfig, files: ModelFiles, *, allow_import: bool) -> dict[str, Any]:
    """The options of adapters that stay in the packed model, because they can't be merged into the weights."""
    kept: dict[str, Any] = {}
    sources: list[TrainConfig] = [training] if training.use_adapter else []
    if files.adapter is not None:
        sources.append(read_adapter(files.adapter, allow_import=allow_import)[0])
    for source in sources:
        adapter: Adapter = ADAPTERS.build(source.adapter, source.adapter_conf)
        if not adapter.MERGES and kept:
            raise UserError(f"{files.adapter}: the model has adapters already, which can't be merged into its weights")
        if not adapter.MERGES:
            kept = {"use_adapter": True, "adapter": source.adapter, "adapter_conf": dict(source.adapter_conf)}
    return kept


def pack_adapter(files: ModelFiles, output: Path, *, allow_import: bool = False) -> Path:
    """Write a folder with only the adapters of a model, for `--adapter`, and their options."""
    if output.exists() and any(output.iterdir()):
        raise UserError(f"{output}: not empty; choose another folder for the packed adapters")
    try:
        config, weights = read_adapter(files.asr_model_file, allow_import=allow_import)
    except UserError as error:
        raise UserError(str(error).replace("--adapter ", "--merge false: ")) from None
    values = read_mapping(files.asr_train_config)
    names = ("use_adapter", "adapter", "adapter_conf", "also_train")
    with atomic_folder(output) as folder:
        options = _model_options(values, type(config)) | {name: values[name] for name in names if name in values}
        _write_yaml(folder / CONFIG, options | {"token_list": _tokens(values, files)})
        _write_weights(weights, folder / ADAPTER_FILE)
    return output


def _token_model(files: ModelFiles, values: Mapping[str, Any]) -> Path | None:
    """The file of the tokenizer. ESPnet2 has names instead of files for Whisper's."""
    name = values.get("bpemodel")
    if values.get("token_type") == "hugging_face":
        return tokenizer_file(files.bpemodel or files.find(str(name)))
    if files.bpemodel is not None:
        return files.bpemodel
    if name in WHISPER_TYPES:
        return find_vocabulary(None, str(name))
    return files.find(str(name)) if name else None


def _with_architecture(config: dict[str, Any], training: SpeechToTextConfig) -> dict[str, Any]:
    """The architectures of pretrained parts, so that the folder needs no other files and no network."""
    inputs, encoder = with_encoder(training, build_inputs(replace(training, normalize=None), reads_statistics=False))
    parts: dict[str, object] = {"frontend": inputs.frontend, "encoder": encoder}
    size = encoder.output_size
    if training.postencoder is not None:
        postencoder = choices.POSTENCODERS.build(training.postencoder, training.postencoder_conf, input_size=size)
        parts["postencoder"], size = postencoder, postencoder.output_size
    if training.decoder is not None:
        sizes = {"vocab_size": len(training.token_list or ()), "encoder_output_size": size}
        if training.decoder in choices.PRETRAINED_DECODERS:
            parts["decoder"] = choices.DECODERS.build(training.decoder, training.decoder_conf, **sizes)
    for name, part in parts.items():
        if isinstance(part, HasArchitecture) and config.get(name) is not None:
            config = {
                **config,
                f"{name}_conf": {**(config.get(f"{name}_conf") or {}), "architecture": part.architecture},
            }
    return config


def _pack_features(folder: Path, output: Path) -> None:
    """Write the settings of stored features and their statistics."""
    if not (folder / FEATURES_FILE).exists():
        return
    values = read_mapping(folder / FEATURES_FILE)
    if values.get("cmvn"):
        copy_file(folder / str(values["cmvn"]), output / "cmvn.ark")
        values = {**values, "cmvn": "cmvn.ark"}
    _write_yaml(output / FEATURES_FILE, values)


def _model_options(values: Mapping[str, Any], schema: type[TrainConfig]) -> dict[str, Any]:
    """The options that define the model and its tokens, without those about training, data and the machine."""
    options = options_of(schema)
    names = [name for name, item in options.items() if item.extra.group == MODEL and name != "init"]
    return {name: values[name] for name in (*names, *TEXT_KEYS) if name in values}


def _tokens(values: Mapping[str, Any], files: ModelFiles, name: str = "token_list") -> list[str]:
    tokens = values.get(name)
    if tokens is None or isinstance(tokens, list):
        return list(tokens or [])
    is_whisper = values.get("token_type") in WHISPER_TYPES
    unk_symbol = EOT if is_whisper else files.symbol("unk_symbol", UNK)
    return list(read_token_list(files.find(str(tokens)), unk_symbol=unk_symbol).tokens)


def _write_weights(weights: Mapping[str, Tensor], target: Path) -> None:
    # Tensors that share memory can't be saved as they are.
    weights = {name: value.clone().contiguous() for name, value in weights.items()}
    # Not save_file: only the user who packs could read its files, and a packed model is for others.
    with atomic_write(target, "wb") as stream:
        stream.write(save(weights))


def _write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    with atomic_write(path) as stream:
        yaml.safe_dump(dict(values), stream, allow_unicode=True, sort_keys=False)
