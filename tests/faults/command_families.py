"""Valid calls of the commands besides training, each small, and what must hold of their results."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import yaml

from tests.config.test_config_espnet1 import DECODE, KERNEL15, LM, RNN, SPECAUG
from tests.config.test_config_espnet1_transducer import CONFORMER as TRANSDUCER
from tests.faults.config_families import (
    FAMILIES,
    NOT_DECODED,
    Family,
    Materials,
    Values,
    decoding_faults,
    part,
)
from tympan.data.ark import read_matrix
from tympan.decode.options import InferenceOptions
from tympan.decode.search import SEARCHES, find_search
from tympan.features.fbank import FbankOptions, MfccOptions
from tympan.features.pitch import PitchOptions
from tympan.features.pitch_post import PitchPostOptions
from tympan.text.ngram.arpa_reader import read_arpa

ESPNET1 = [yaml.safe_load(text) for text in (DECODE, KERNEL15, LM, RNN, SPECAUG, TRANSDUCER)]
MODELS = {
    "exp": ("joint", "joint", "ctc_greedy", "ctc_prefix", "rescore", "time_sync"),
    "transducer": tuple(name for name in SEARCHES.names() if name.startswith("transducer_")),
    "mask_ctc": ("mask_ctc", "ctc_greedy", "ctc_prefix"),
    "speakers": ("joint", "ctc_greedy", "ctc_prefix"),
    "phones": ("lexicon",),
    "streaming": ("joint", "ctc_greedy", "ctc_prefix", "time_sync"),
}
"""The directory of each model, and the searches that it offers."""


def make_more(materials: Materials) -> None:
    """Train the models of `MODELS`, a neural language model and n-grams, and write data directories."""
    folder, chance = materials.folder, random.Random(0)
    configs: dict[str, Values] = {
        "transducer": {**_plain("transducer", chance, folder), **part("encoder", "transformer"), "model_conf": {}},
        "mask_ctc": _plain("mask_ctc", chance, folder),
        "speakers": _plain("several_speakers", chance, folder),
        "streaming": yaml.safe_load((folder / "base.yaml").read_text(encoding="utf-8"))
        | part("encoder", "contextual_block_transformer", block_size=8, hop_size=4, look_ahead=2)
        | {"normalize": None},
        "phones": yaml.safe_load((folder / "base.yaml").read_text(encoding="utf-8"))
        | {"token_type": "phn", "g2p": str(folder / "lexicon.txt")},
        "lm": _plain("language_model", chance, folder) | part("lm", "seq_rnn"),
    }
    for side in ("train", "valid"):
        ids = [line.split()[0] for line in (folder / side / "text").read_text(encoding="utf-8").splitlines()]
        (folder / side / "utt2spk").write_text("".join(f"{name} {name}\n" for name in ids), encoding="utf-8")
    texts = (folder / "train" / "text").read_text(encoding="utf-8") + (folder / "valid" / "text").read_text("utf-8")
    words = sorted({line.split()[1] for line in texts.splitlines()})
    (folder / "lexicon.txt").write_text("".join(f"{word} {' '.join(word)}\n" for word in words), encoding="utf-8")
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in words) * 2, encoding="utf-8")
    (folder / "letters.txt").write_text("".join(f"{' '.join(word)}\n" for word in words), encoding="utf-8")
    for name, config in configs.items():
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**config, "output_dir": str(folder / name)}), encoding="utf-8")
        _done(materials, f"{'lm' if name == 'lm' else 'asr'}_train", "--config", str(path))
    for name in ("words", "letters"):
        files = ["--arpa", str(folder / f"{name}.arpa"), "--discount_fallback", "0.5", "1", "1.5"]
        _done(materials, "ngram_train", str(folder / f"{name}.txt"), "--order", "2", *files)
    _done(materials, "make_features", str(folder / "train"), str(folder / "fbank"), "--feats_type", "fbank")
    (folder / "hyp").write_text(re.sub("b$", "c", (folder / "train" / "text").read_text("utf-8"), flags=re.M), "utf-8")
    entry = {"audio_filepath": str(folder / "train" / "train000.wav"), "text": "a", "id": "u"}
    (folder / "manifest.json").write_text(json.dumps(entry) + "\n", encoding="utf-8")


def _plain(family: str, chance: random.Random, folder: Path) -> Values:
    """A configuration of a family that trains as usual."""
    config = FAMILIES[family].draw(chance, folder)
    return {**config, **part("optim", "adam"), "scheduler": None, "scheduler_conf": {}}


def _done(materials: Materials, *arguments: str) -> None:
    ended = materials.server.run(arguments)
    assert ended.code == 0, ended.output


def searches(model: str, chance: random.Random, folder: Path) -> Values:
    """A search that the model offers, with all options of its own, and perhaps language models."""
    name = chance.choice(MODELS[model])
    kind = find_search(name)
    config: Values = {"beam_size": 2, "search": name}
    if kind.options is not None:
        config["search_conf"] = {item.name: item.default for item in dataclasses.fields(kind.options)}
    if name.startswith("transducer_") and name != "transducer_greedy" and chance.random() < 0.3:
        conf = config.pop("search_conf")
        config["transducer_conf"] = {"search_type": config.pop("search").partition("_")[2], **conf}
    if "lm_weight" in kind.uses and chance.random() < 0.5:
        config |= {"lm_train_config": str(folder / "lm" / "config.yaml"), "lm_file": str(folder / "lm" / "1epoch.pth")}
    if "ngram_weight" in kind.uses and (name == "lexicon" or chance.random() < 0.5):
        config |= {"ngram_file": str(folder / ("words.arpa" if name == "lexicon" else "letters.arpa"))}
    return config


def recognition(chance: random.Random, folder: Path) -> Values:
    model = chance.choice(list(MODELS))
    data = [[str(folder / "valid" / "wav.scp"), "speech", "sound"]]
    files = {"asr_train_config": folder / model / "config.yaml", "asr_model_file": folder / model / "1epoch.pth"}
    config = {**{key: str(path) for key, path in files.items()}, "data_path_and_name_and_type": data}
    return config | searches(model, chance, folder)


def _recognized(output: Path, _printed: str, _config: Values) -> Iterator[str]:
    names = [path.name for path in output.glob("text*")]
    if "text_spk1" not in names:
        yield from decoding_faults(output, _printed, _config)
    elif names.count("text_spk1") + names.count("text_spk2") != 2:
        yield f"a speaker is missing: {names}"


def stream(chance: random.Random, folder: Path) -> Values:
    config = searches("streaming", chance, folder)
    for name in ("lm_train_config", "lm_file", "ngram_file"):
        config.pop(name, None)
    return {
        "model": str(folder / "streaming"), "audio": _wav(folder), "piece_s": 0.1, "json": chance.random() < 0.8,
        **config,
    }  # fmt: skip


def transcribe(chance: random.Random, folder: Path) -> Values:
    config = searches("exp", chance, folder)
    for name in ("lm_train_config", "lm_file", "ngram_file"):
        config.pop(name, None)
    kind = chance.choice(["json", "text", "ctm", "srt", "vtt"])
    return {"model": str(folder / "exp"), "files": [_wav(folder)], kind: True, **config}


def align(chance: random.Random, folder: Path) -> Values:
    model = chance.choice(["exp", "transducer", "streaming"])
    return {"model": str(folder / model), "data_dir": str(folder / "train"), "format": chance.choice(["ctm", "json"])}


def _printed_json(_output: Path, printed: str, config: Values) -> Iterator[str]:
    """JSON that is not valid (nan is not), or times that can't be."""
    if config.get("json") is True or config.get("format") == "json":
        for line in printed.splitlines():
            if line.startswith("{"):
                json.loads(line, parse_constant=lambda name: [name].index(""))  # ValueError for NaN
    for start, duration, confidence in re.findall(r"^\S+ 1 (\S+) (\S+) \S+ (\S+)$", printed, re.MULTILINE):
        if not (0 <= float(start) <= 2 and 0 <= float(duration) <= 2 and 0 <= float(confidence) <= 1):
            yield f"not possible: {start} {duration} {confidence}"


def ngram_train(chance: random.Random, folder: Path) -> Values:
    config: Values = {"text": str(folder / "letters.txt"), "order": chance.choice([1, 2, 3])}
    config |= {"arpa": str(folder / "out.arpa"), "discount_fallback": [0.5, 1.0, 1.5]}
    return config | chance.choice([{}, {"prune": [0]}, {"memory": "1M"}])


def _is_distribution(output: Path, _printed: str, _config: Values) -> Iterator[str]:
    """Unigrams, without <s>, have the sum 1."""
    model = read_arpa(str(output.with_name("out.arpa")))
    count = model.counts[0]
    known = [
        math.exp(math.log(10) * x) for x, w in zip(model.log_prob[:count], model.words, strict=False) if w != "<s>"
    ]
    if not abs(sum(known) - 1) < 1e-3:
        yield f"the unigrams have the sum {sum(known)}"


def ngram_query(chance: random.Random, folder: Path) -> Values:
    return {"model": str(folder / "letters.arpa"), "text": str(folder / "letters.txt")}


def perplexity(chance: random.Random, folder: Path) -> Values:
    files = {"train_config": folder / "lm" / "config.yaml", "model_file": folder / "lm" / "1epoch.pth"}
    data = [[str(folder / "valid" / "text"), "text", "text"]]
    return {**{key: str(path) for key, path in files.items()}, "data_path_and_name_and_type": data, "log_base": 10.0}


def score(chance: random.Random, folder: Path) -> Values:
    config: Values = {"ref": str(folder / "train" / "text"), "hyp": str(folder / "hyp")}
    return config | chance.choice([{}, {"unit": "char"}, {"compare": str(folder / "train" / "text")}])


def report(chance: random.Random, folder: Path) -> Values:
    return {**score(chance, folder), "output": str(folder / "out.html"), "data_dir": str(folder / "train")}


def features(chance: random.Random, folder: Path) -> Values:
    kind = chance.choice(["fbank", "mfcc", "fbank_pitch"])
    config: Values = {"data_dir": str(folder / "train"), "out_dir": str(folder / "out"), "feats_type": kind}
    if kind == "mfcc":
        return config | {"mfcc_config": _fields_of(MfccOptions)}
    config |= {"fbank_config": _fields_of(FbankOptions)}
    if kind == "fbank_pitch":
        config |= {"pitch_config": _fields_of(PitchOptions), "pitch_postprocess_config": _fields_of(PitchPostOptions)}
    return config


def _finite_features(output: Path, _printed: str, _config: Values) -> Iterator[str]:
    lines = (output / "feats.scp").read_text(encoding="utf-8").splitlines()
    for line in lines:
        matrix = read_matrix(line.split(maxsplit=1)[1])
        if not np.isfinite(matrix).all() or not matrix.size:
            yield f"{line}: empty or not finite"


def compute_cmvn(chance: random.Random, folder: Path) -> Values:
    return {
        "feats": str(folder / "fbank"),
        "out": str(folder / "out.cmvn"),
        "scope": chance.choice(["global", "utterance"]),
    }


def apply_cmvn(chance: random.Random, folder: Path) -> Values:
    return {"feats": str(folder / "fbank"), "out_dir": str(folder / "out")}


def perturb(chance: random.Random, folder: Path) -> Values:
    return {"data_dir": str(folder / "valid"), "out_dir": str(folder / "out"), "speeds": [0.9, 1.0]}


def _speeds(output: Path, _printed: str, _config: Values) -> Iterator[str]:
    for path in output.rglob("*.flac"):
        if soundfile.info(path).frames < 100:
            yield f"{path} has {soundfile.info(path).frames} samples"


def subset(chance: random.Random, folder: Path) -> Values:
    how = chance.choice(["even", "first", "last", "shortest", "random", "per_speaker"])
    return {"data_dir": str(folder / "train"), "out_dir": str(folder / "out"), "number": 2, "how": how}


def _has_utterances(output: Path, _printed: str, config: Values) -> Iterator[str]:
    number = len((output / "wav.scp").read_text(encoding="utf-8").splitlines())
    if isinstance(config.get("number"), int) and config.get("how") != "per_speaker" and number > config["number"]:
        yield f"{number} utterances instead of {config['number']}"


def combine(chance: random.Random, folder: Path) -> Values:
    return {"out_dir": str(folder / "out"), "data_dirs": [str(folder / "train"), str(folder / "valid")]}


def copy(chance: random.Random, folder: Path) -> Values:
    return {"data_dir": str(folder / "train"), "out_dir": str(folder / "out"), "utt_prefix": "a-", "spk_prefix": "b-"}


def manifest(chance: random.Random, folder: Path) -> Values:
    return {"manifest": str(folder / "manifest.json"), "data_dir": str(folder / "out")}


def validate(chance: random.Random, folder: Path) -> Values:
    return {"data_dir": [str(folder / "train")]}


def tokenize(chance: random.Random, folder: Path) -> Values:
    config: Values = {"input": str(folder / "train" / "text"), "field": "2-", "output": str(folder / "out.txt")}
    if chance.random() < 0.5:
        config |= {
            "write_vocabulary": True,
            "add_symbol": ["<blank>:0", "<unk>:1", "<sos/eos>:-1"],
            "vocabulary_size": 5,
        }
    return config


def make_dict(chance: random.Random, folder: Path) -> Values:
    return {"text": [str(folder / "train" / "text")], "output": str(folder / "out.txt")}


def sentencepiece(chance: random.Random, folder: Path) -> Values:
    kind = chance.choice(["unigram", "bpe", "char"])
    return {
        "input": [str(folder / "words.txt")],
        "model_prefix": str(folder / "out.spm"),
        "vocab_size": 8,
        "model_type": kind,
    }


def batches(chance: random.Random, folder: Path) -> Values:
    kind = chance.choice(["unsorted", "sorted", "folded", "length", "numel", "bucket"])
    data = [[f"{folder}/train/wav.scp", "speech", "sound"], [f"{folder}/train/text", "text", "text"]]
    return {
        "data_path_and_name_and_type": data, "token_list": str(folder / "tokens.txt"), "batch_type": kind,
        "batch_size": 2, "batch_bins": 50000, "fold_length": [20000, 10], "show": 2,
    }  # fmt: skip


def average(chance: random.Random, folder: Path) -> Values:
    return {
        "exp_dir": str(folder / "exp"),
        "output": str(folder / "out.pth"),
        **chance.choice([{"last": 1}, {"best": 1}]),
    }


def split(chance: random.Random, folder: Path) -> Values:
    return {"scps": [str(folder / "train" / "wav.scp"), str(folder / "train" / "text")], "num_splits": 2}


def espnet1(chance: random.Random, folder: Path) -> Values:
    return {"old": chance.choice(ESPNET1), "new": str(folder / "out.yaml")}


def no_faults(_output: Path, printed: str, _config: Values) -> Iterator[str]:
    """Nothing but what holds for every command."""
    lines = (line for line in printed.splitlines() if not line.startswith("tympan: note"))
    yield from (f"printed: {line}" for line in lines if re.search(r"(?<![\w.'])nan(?![\w.'])", line))


def _wav(folder: Path) -> str:
    return str(folder / "valid" / "valid000.wav")


def _fields_of(options: type[Any]) -> Values:
    """The defaults of Kaldi's options, with the names that its files have."""
    return {name.replace("_", "-"): value for name, value in dataclasses.asdict(options()).items()}


Draw = Callable[[random.Random, Path], Values]
Faults = Callable[[Path, str, Values], Iterator[str]]


def _family(
    name: str, command: str, draw: Draw, faults: Faults = no_faults, *, kept: str = "", failure: str | None = None
) -> Family:
    schema = (
        InferenceOptions if command == "asr_inference" else importlib.import_module(f"tympan.bin.{command}").Options
    )
    return Family(name, command, schema, draw, faults, frozenset(kept.split()), failure)


COMMANDS = {
    family.name: family
    for family in (
        _family("recognition", "asr_inference", recognition, _recognized, failure=NOT_DECODED),
        _family("stream", "stream", stream, _printed_json),
        _family("transcribe", "transcribe", transcribe, _printed_json, kept="files", failure="not transcribed"),
        _family("align", "asr_align", align, _printed_json, kept="output", failure="not aligned"),
        _family("ngram_train", "ngram_train", ngram_train, _is_distribution, kept="arpa binary"),
        _family("ngram_query", "ngram_query", ngram_query),
        _family("perplexity", "lm_calc_perplexity", perplexity),
        _family("score", "score", score),
        _family("report", "report", report, kept="output"),
        _family("features", "make_features", features, _finite_features, kept="out_dir"),
        _family("compute_cmvn", "compute_cmvn", compute_cmvn, kept="out"),
        _family("apply_cmvn", "apply_cmvn", apply_cmvn, _finite_features, kept="out_dir"),
        _family("perturb", "perturb_data", perturb, _speeds, kept="out_dir"),
        _family("subset", "subset_data", subset, _has_utterances, kept="out_dir"),
        _family("combine", "combine_data", combine, kept="out_dir"),
        _family("copy", "copy_data", copy, kept="out_dir"),
        _family("manifest", "manifest_data", manifest, kept="data_dir audio_dir"),
        _family("validate", "validate_data", validate, kept="report", failure="faults"),
        _family("tokenize", "tokenize_text", tokenize, kept="output"),
        _family("make_dict", "make_dict", make_dict, kept="output token_list"),
        _family("sentencepiece", "spm_train", sentencepiece, kept="model_prefix token_list"),
        _family("batches", "plan_batches", batches),
        _family("average", "average_model", average, kept="output"),
        _family("split", "split_scps", split),
        _family("espnet1", "convert_config", espnet1, kept="new"),
    )
}
_OFTEN = {"recognition": 8, "stream": 3, "transcribe": 3, "align": 2, "features": 4, "espnet1": 4}
WEIGHTS = {name: _OFTEN.get(name, 1) for name in COMMANDS}
"""How often a family is drawn."""
