"""The files of pretrained and published models, of adapters and of jobs: how to make one, and how it is read."""

from __future__ import annotations

import base64
import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from tests.faults.damage import Reader
from tests.faults.file_readers import CONFIG, are_finite, build_config, config_of, text, weights
from tests.faults.run_families import DEEPSPEED
from tympan.config import choices, parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.data.readers import Context, read_value, value_length
from tympan.data.splits import joined_list
from tympan.data.table import Table
from tympan.decode.adapter_file import apply_adapter
from tympan.decode.kenlm_scorer import KenlmFullScorer
from tympan.decode.model_files import find_model
from tympan.decode.published import PublishedModel, find_published
from tympan.models.build import build_asr_model
from tympan.models.pretrained.cache import HiddenStateCache
from tympan.models.pretrained.fairseq import read_checkpoint
from tympan.models.pretrained.folder import read_weight_files
from tympan.models.pretrained.whisper_files import read_whisper
from tympan.text.whisper import read_token_strings, read_tokenizer
from tympan.training.aggregate import aggregate
from tympan.training.nbest import average

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
TRANSDUCER = {
    **CONFIG,
    "decoder": "transducer",
    "decoder_conf": {"hidden_size": 8, "num_layers": 1},
    "joint_net_conf": {"joint_space_size": 16},
    "model_conf": {"ctc_weight": 0.3},
}
BEATS_SIZES = {
    "input_patch_size": 16, "embed_dim": 8, "encoder_layers": 1, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 16,
    "encoder_attention_heads": 2, "conv_pos": 16, "conv_pos_groups": 2, "relative_position_embedding": True,
    "num_buckets": 20, "max_distance": 40, "gru_rel_pos": True,
}  # fmt: skip
SSL = {
    "input_size": None,
    "frontend": "default",
    "frontend_conf": {"fs": 16000, "n_fft": 64, "hop_length": 32, "n_mels": 8},
    "preencoder": None,
    "encoder": "transformer",
    "encoder_conf": {"output_size": 8, "attention_heads": 2, "linear_units": 8, "num_blocks": 1},
    "util": [{"name": "mask", "conf": {"mask_prob": 0.5}}],
}
HYBRID = ("--encoder", "transformer", "--decoder", "transformer", "--use_deepspeed", "true")
ESPNET1 = """\
model-module: espnet.nets.pytorch_backend.e2e_asr_conformer:E2E
elayers: 2
eunits: 32
dlayers: 1
dunits: 32
adim: 16
aheads: 2
mtlalpha: 0.3
lsm-weight: 0.1
batch-size: 32
maxlen-in: 512
maxlen-out: 150
opt: noam
accum-grad: 2
grad-clip: 5
patience: 0
epochs: 5
dropout-rate: 0.1
transformer-lr: 1.0
transformer-warmup-steps: 250
transformer-input-layer: conv2d
transformer-length-normalized-loss: false
"""
ESPNET1_RNN = """\
etype: vggblstm
elayers: 2
eunits: 16
eprojs: 16
subsample: "1_2_1"
dlayers: 1
dunits: 16
atype: location
adim: 16
aconv-chans: 2
aconv-filts: 10
mtlalpha: 0.5
batch-size: 30
opt: adadelta
epochs: 5
"""
VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", "|", "a", "b"]
HUB = {
    "model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"], "vocab_size": len(VOCABULARY), "hidden_size": 16,
    "final_dropout": 0.1, "num_hidden_layers": 1,
}  # fmt: skip


def golden(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        return Path(shutil.copy(GOLDEN / name, folder))

    return make


def json_file(name: str, content: object) -> Callable[[Path], Path]:
    return text(name, json.dumps(content, indent=1))


def transducer_config(folder: Path) -> Path:
    return text("config.yaml", yaml.safe_dump(TRANSDUCER))(folder)


def beats(folder: Path) -> Path:
    encoder = choices.ENCODERS.build("beats", {"beats_config": BEATS_SIZES}, input_size=1)
    path = folder / "beats.pt"
    torch.save({"cfg": BEATS_SIZES, "model": encoder.state_dict()}, path)
    return path


def load_beats(path: Path) -> dict[str, torch.Tensor]:
    encoder = choices.ENCODERS.build("beats", {"beats_ckpt_path": str(path)}, input_size=1)
    encoder.load_pretrained()
    state: dict[str, torch.Tensor] = encoder.state_dict()
    return state


def ssl(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / "config.yaml").write_text(yaml.safe_dump(SSL))
        (folder / "ssl.pth").touch()
        torch.save(ssl_frontend(folder).upstream.state_dict(), folder / "ssl.pth")
        return folder / name

    return make


def ssl_frontend(folder: Path) -> Any:
    return choices.FRONTENDS.build("espnet_ssl", {"frontend_conf": {"path_or_url": str(folder / "ssl.pth")}})


def load_ssl(path: Path) -> dict[str, torch.Tensor]:
    frontend = ssl_frontend(path.parent)
    frontend.load_pretrained()
    state: dict[str, torch.Tensor] = frontend.state_dict()
    return state


def hub_folder(name: str) -> Callable[[Path], Path]:
    """A CTC model of the Hugging Face hub, whose weights are in two files. `name` is to be damaged."""

    def make(folder: Path) -> Path:
        from safetensors.torch import save_file

        files: dict[str, object] = {
            "config.json": HUB,
            "preprocessor_config.json": {"do_normalize": True},
            "tokenizer_config.json": {"tokenizer_class": "Wav2Vec2CTCTokenizer", "unk_token": {"content": "<unk>"}},
            "special_tokens_map.json": {"pad_token": "<pad>"},
            "vocab.json": {token: number for number, token in enumerate(VOCABULARY)},
            "added_tokens.json": {},
            "model.safetensors.index.json": {"weight_map": {"lm_head.weight": "1.safetensors", "x": "2.safetensors"}},
        }
        for file, content in files.items():
            json_file(file, content)(folder)
        save_file({"lm_head.weight": torch.ones(7, 16)}, folder / "1.safetensors")
        save_file({"lm_head.bias": torch.ones(7), "wav2vec2.encoder.x": torch.ones(2)}, folder / "2.safetensors")
        return folder / name

    return make


def use_published(path: Path) -> tuple[object, ...]:
    model = find_published(path.parent)
    assert model is not None
    return whole(model)


def whole(model: PublishedModel) -> tuple[object, ...]:
    found = model.weights()
    assert are_finite(found)
    return model.values, model.settings, found


def espnet_meta(folder: Path) -> Path:
    weights("model.pth")(folder)
    content = {
        "files": {"asr_model_file": "model.pth"}, "yaml_files": {"asr_train_config": "config.yaml"}, "torch": "1.10",
        "python": "3.9", "espnet": "0.10",
    }  # fmt: skip
    return text("meta.yaml", yaml.safe_dump(content))(folder)


def adapter(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        content = {
            **CONFIG,
            "use_adapter": True,
            "adapter": "lora",
            "adapter_conf": {"rank": 2, "target_modules": ["linear_q"]},
        }
        text("config.yaml", yaml.safe_dump(content))(folder)
        found = {}
        for key, weight in build_asr_model(config_of_text(CONFIG, folder)).state_dict().items():
            if key.endswith("linear_q.weight"):
                stem = key.removesuffix("weight")
                found |= {
                    f"{stem}lora_A": torch.ones(2, weight.size(1)),
                    f"{stem}lora_B": torch.ones(weight.size(0), 2),
                }
        torch.save(found, folder / "adapter.pth")
        return folder / name

    return make


def config_of_text(content: object, folder: Path) -> Any:
    (folder / "plain").mkdir(exist_ok=True)
    return config_of(folder / "plain")


def use_adapter(path: Path) -> dict[str, torch.Tensor]:
    model = build_asr_model(config_of_text(CONFIG, path.parent))
    apply_adapter(model, path.parent / "adapter.pth")
    state: dict[str, torch.Tensor] = model.state_dict()
    return state


def ranks(folder: Path) -> Path:
    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256)]
    lines += [f"{base64.b64encode(word).decode()} {256 + n}" for n, word in enumerate((b"th", b"the", b"an"))]
    return text("gpt2.tiktoken", "\n".join(lines) + "\n")(folder)


def tokenizer_json(folder: Path) -> Path:
    vocabulary = {character: number for number, character in enumerate(["a", "b", "Ġ", "ab"])}
    content = {
        "version": "1.0", "added_tokens": [{"id": 4, "content": "<|endoftext|>", "single_word": False, "lstrip": False,
        "rstrip": False, "normalized": False, "special": True}], "normalizer": None, "pre_tokenizer": None,
        "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["a", "b"]]},
    }  # fmt: skip
    return json_file("tokenizer.json", content)(folder)


def use_vocabulary(path: Path) -> list[str]:
    tokens = read_token_strings(path)
    assert all(isinstance(token, str) for token in tokens)
    if has("tokenizers"):
        read_tokenizer(path).encode("ab the", add_special_tokens=False)
    return tokens


def hdf5(folder: Path) -> Path:
    import h5py

    path = folder / "a.h5"
    path.unlink(missing_ok=True)
    with h5py.File(path, "w") as file:
        file["a"] = np.ones((20, 8), np.float32)
        file.create_dataset("b", data=np.ones((30, 8), np.float32), chunks=(10, 8), compression="gzip")
    return path


def read_hdf5(path: Path) -> list[np.ndarray]:
    from tympan.data import hdf5 as module

    module._kept.cache_clear()
    table, context = Table(path), Context(path.parent)
    values = [table.value(line) for line in range(len(table))]
    for value in values:
        value_length("hdf5", value, context)
    return [np.asarray(read_value("hdf5", value, context)) for value in values]


def hidden_states(folder: Path) -> Path:
    shutil.rmtree(folder / "cache", ignore_errors=True)
    cached_states(folder / "cache")
    (path,) = (folder / "cache").glob("*/*.npy")
    return path


def cached_states(directory: Path) -> list[torch.Tensor]:
    def compute(speech: torch.Tensor, lengths: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        return [torch.full((1, 4, 3), float(layer)) for layer in range(2)], torch.tensor([4])

    cache = HiddenStateCache(directory)
    return cache.states(torch.ones(1, 64), torch.tensor([64]), compute, encoder=torch.nn.Linear(1, 1), setting="")


def are_states(states: list[torch.Tensor]) -> bool:
    return [tuple(state.shape) for state in states] == [(1, 4, 3)] * 2 and all(
        map(torch.isfinite, map(torch.sum, states))
    )


def statistics_job(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        text("batch_keys", "speech\n")(folder)
        text("stats_keys", "speech\n")(folder)
        text("speech_shape", "a 100,16\nb 200,16\n")(folder)
        np.savez(folder / "speech_stats.npz", count=np.float64(10), sum=np.ones(16), sum_square=np.full(16, 20.0))
        return folder / name

    return make


def aggregate_jobs(path: Path) -> dict[str, np.ndarray]:
    whole_job = path.parent / "other"
    whole_job.mkdir(exist_ok=True)
    statistics_job("")(whole_job)
    aggregate([path.parent, whole_job], path.parent / "out")
    with np.load(path.parent / "out" / "speech_stats.npz") as stats:
        return dict(stats)


def split(folder: Path) -> Path:
    (folder / "list").mkdir(exist_ok=True)
    text("split.0", "a 1\nc 3\n")(folder / "list")
    text("split.1", "b 2\n")(folder / "list")
    return text("num_splits", "2\n")(folder / "list")


def query_kenlm(path: Path) -> dict[str, torch.Tensor]:
    scorer = KenlmFullScorer(path, ["a", "b", "the"], eos=None, device=torch.device("cpu"))
    return {str(number): scorer._scores(number) for number in range(len(scorer.contexts))}


def deepspeed(folder: Path) -> Path:
    path = folder / "deepspeed.json"
    path.write_text(json.dumps(DEEPSPEED))
    return path


def train_with(*options: str) -> Callable[[Path], object]:
    """Parse the options of asr_train, the last of which names the file."""
    return lambda path: parse_training(AsrTrainConfig, ["--token_type", "char", *options, str(path)], prog="test")


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


FOLDER_FILES = ("config.json", "preprocessor_config.json", "tokenizer_config.json", "vocab.json", "added_tokens.json")
MODEL_READERS = [
    Reader("Whisper checkpoint", golden("whisper/tiny.pt"), lambda path: read_whisper(path)[1], are_finite),
    Reader("BEATs", beats, load_beats, are_finite),
    Reader("s3prl WavLM", golden("s3prl/wavlm_group.pt"), lambda path: read_checkpoint(path, "wavlm")[1], are_finite),
    Reader(
        "s3prl HuBERT", golden("s3prl/hubert_layer.pt"), lambda path: read_checkpoint(path, "hubert")[1], are_finite
    ),
    Reader("ESPnet SSL weights", ssl("ssl.pth"), load_ssl, are_finite),
    Reader("ESPnet SSL config", ssl("config.yaml"), load_ssl, are_finite, is_text=True),
    Reader("adapter", adapter("adapter.pth"), use_adapter, are_finite),
    Reader("config of an adapter", adapter("config.yaml"), use_adapter, are_finite, is_text=True),
    Reader("config of a transducer", transducer_config, build_config, is_text=True),
    Reader("epoch models", weights("model.pth"), lambda path: average([path, path]), are_finite),
    Reader("parts of weights", hub_folder("2.safetensors"), lambda path: read_weight_files(path.parent), are_finite),
    *(Reader(f"hub {name}", hub_folder(name), use_published, is_text=True) for name in FOLDER_FILES),
    Reader("hub weight index", hub_folder("model.safetensors.index.json"), use_published, is_text=True),
    Reader("meta.yaml", espnet_meta, lambda path: find_model(path.parent), is_text=True),
    Reader("tiktoken", ranks, use_vocabulary, is_text=True),
    Reader("tokenizer.json", tokenizer_json, use_vocabulary, is_text=True),
    Reader("hidden states", hidden_states, lambda path: cached_states(path.parents[1]), are_states),
    Reader("sums of a job", statistics_job("speech_stats.npz"), aggregate_jobs),
    Reader("keys of a job", statistics_job("batch_keys"), aggregate_jobs, is_text=True),
    Reader("shapes of a job", statistics_job("speech_shape"), aggregate_jobs, is_text=True),
    Reader("DeepSpeed", deepspeed, train_with(*HYBRID, "--deepspeed_config"), is_text=True),
    Reader("ESPnet1 transformer", text("espnet1.yaml", ESPNET1), train_with("--config"), is_text=True),
    Reader("ESPnet1 RNN", text("rnn.yaml", ESPNET1_RNN), train_with("--config"), is_text=True),
    Reader("number of splits", split, lambda path: joined_list(path.parent, path.parents[1] / "out"), is_text=True),
]
if has("kenlm"):
    MODEL_READERS.append(Reader("KenLM binary", golden("kenlm/tiny/4gram.trie.bin"), query_kenlm, are_finite))
if has("h5py"):
    MODEL_READERS.append(Reader("HDF5", hdf5, read_hdf5))
