"""Every kind of file that Tympan reads and that a user may give it damaged: how to make one, and how it is read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import socket
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import yaml

from tests.faults.damage import Reader
from tympan.config.asr import AsrTrainConfig
from tympan.config.read import load_training_config
from tympan.config.yaml_text import read_yaml
from tympan.data.ark import ArkWriter, read_ark, read_matrix
from tympan.data.audio import AudioInfo, audio_info, check_audio, read_audio
from tympan.data.fix import fix
from tympan.data.kaldi_dir import read_table
from tympan.data.lengths import _keep, _read_kept
from tympan.data.manifest import read_manifest
from tympan.data.readers import Context, read_value, value_length
from tympan.data.shapes import Shapes, read_shapes
from tympan.data.table import Table, _read_cache, _write_cache
from tympan.data.validate import validate
from tympan.decode.journal import Journal, Result
from tympan.decode.load import _with_tokens
from tympan.decode.model_files import ModelFiles, find_model
from tympan.decode.pack import pack_model
from tympan.decode.settings import read_settings
from tympan.decode.speech_input import FeatureRecipe
from tympan.decode.zipped import unpacked
from tympan.features.cmvn import read_stats, write_stats
from tympan.features.conf import read_conf
from tympan.features.extractor import FeatureOptions, save_options
from tympan.features.fbank import FbankOptions
from tympan.features.mvn import GlobalMvn
from tympan.models.build import build_asr_model
from tympan.models.weights import fill_weights, load_weights
from tympan.recipe.extract import extract
from tympan.runtime.lock import directory_lock
from tympan.score.transcripts import read_transcripts, read_utt2spk
from tympan.text.lexicon import read_lexicon
from tympan.text.ngram.arpa_reader import read_arpa
from tympan.text.ngram.binary import write_binary
from tympan.text.ngram.load import load_ngram
from tympan.text.sentencepiece import BpeTokenizer, piece_tokens, train_sentencepiece
from tympan.text.vocabulary import read_token_list

RATE_HZ = 8000
ARPA = """\\data\\
ngram 1=5
ngram 2=5

\\1-grams:
-1.5	<unk>	0
-99	<s>	-0.3
-0.9	</s>	0
-0.7	a	-0.2
-0.8	b	-0.1

\\2-grams:
-0.4	<s> a
-0.6	a b
-0.5	b a
-0.9	a </s>
-0.7	b </s>

\\end\\
"""
LEXICON = "hello HH AH0 L OW1\nworld W ER1 L D\nworld(2) W ER0 L D\na AH0\n"
TOKENS = "<blank>\n<unk>\na\nb\nc\n<sos/eos>\n"
CONFIG = {
    "token_type": "char",
    "token_list": TOKENS.split(),
    "frontend_conf": {"fs": 8000, "n_fft": 256, "hop_length": 80, "n_mels": 16},
    "encoder": "conformer",
    "encoder_conf": {"output_size": 16, "attention_heads": 2, "linear_units": 32, "num_blocks": 1, "dropout_rate": 0.1},
    "decoder": "transformer",
    "decoder_conf": {"attention_heads": 2, "linear_units": 32, "num_blocks": 1},
    "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1},
    "normalize": "utterance_mvn",
    "optim_conf": {"lr": 0.003},
    "max_epoch": 2,
}


def samples(seconds: float = 0.4) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.clip(0.2 * rng.standard_normal(int(seconds * RATE_HZ)), -0.99, 0.99)


def text(name: str, content: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        path.write_text(content, encoding="utf-8")
        return path

    return make


def audio(name: str, **options: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / name
        soundfile.write(path, samples(), RATE_HZ, **options)
        return path

    return make


def wav_ark(folder: Path) -> Path:
    content = audio("a.wav")(folder).read_bytes()
    path = folder / "wav.ark"
    path.write_bytes(b"a " + content + b"b AUDIO\x04" + len(content).to_bytes(4, "little") + content)
    return path


def read_all_audio(path: Path) -> tuple[AudioInfo, np.ndarray]:
    """As commands do: the header, everything, one channel at another rate, a part, and the check of validate_data."""
    info = audio_info(path)
    read_audio(path, channel=0, rate=16000)
    read_audio(path, start_s=0.1, end_s=0.2)
    check_audio(path)
    return info, read_audio(path).samples


def read_wav_ark(path: Path) -> tuple[AudioInfo, np.ndarray]:
    return audio_info(f"{path}:2"), read_audio(f"{path}:2").samples


def is_sound(read: tuple[AudioInfo, np.ndarray]) -> bool:
    info, found = read
    return bool(np.isfinite(found).all()) and 100 <= info.rate <= 1_000_000 and 0 <= info.frames < 10_000_000


def feature_ark(method: int | None) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "feats.ark"
        with path.open("wb") as stream:
            writer = ArkWriter(stream, compression_method=method)
            for name in ("a", "b"):
                writer.write(name, np.random.default_rng(1).standard_normal((20, 8)).astype(np.float32))
        return path

    return make


def read_feature_ark(path: Path) -> list[np.ndarray]:
    value_length("kaldi_ark", f"{path}:2", Context(path.parent))
    return [read_matrix(f"{path}:2"), *(matrix for _, matrix in read_ark(path))]


def is_small(arrays: list[np.ndarray]) -> bool:
    return all(array.size < 10_000_000 for array in arrays)


def npy(folder: Path) -> Path:
    path = folder / "a.npy"
    np.save(path, np.ones((20, 8), np.float32))
    return path


def read_npy(path: Path) -> list[np.ndarray]:
    value_length("npy", str(path), Context(path.parent))
    return [np.asarray(read_value("npy", str(path), Context(path.parent)))]


def statistics(folder: Path) -> Path:
    path = folder / "feats_stats.npz"
    np.savez(path, count=np.float64(10), sum=np.ones(16), sum_square=np.full(16, 20.0))
    return path


def is_normalization(mvn: GlobalMvn) -> bool:
    return bool(torch.isfinite(mvn.mean).all() and torch.isfinite(mvn.std).all() and (mvn.std > 0).all())


def cmvn(folder: Path) -> Path:
    path = folder / "cmvn.ark"
    write_stats(path, np.vstack([np.full(17, 10.0), np.full(17, 20.0)]))
    return path


def ngram_binary(folder: Path) -> Path:
    path = folder / "ngram.bin"
    write_binary(read_arpa(str(text("a.arpa", ARPA)(folder))), path)
    return path


def gzipped(folder: Path) -> Path:
    path = folder / "a.arpa.gz"
    path.write_bytes(gzip.compress(ARPA.encode()))
    return path


def query_ngram(path: Path) -> list[float]:
    from tympan.decode.ngram_sentences import score_sentences

    scores = list(score_sentences(load_ngram(path), [["a", "b", "x"], ["b"]], device=torch.device("cpu")))
    return [score.total for score in scores]


def are_log_probs(scores: list[float]) -> bool:
    return all(np.isfinite(score) and score <= 0 for score in scores)


def config_file(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    return path


def config_of(folder: Path) -> AsrTrainConfig:
    return load_training_config(AsrTrainConfig, config_file(folder))


def weights(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from safetensors.torch import save_file

        path = folder / name
        torch.manual_seed(0)
        state = build_asr_model(config_of(folder)).state_dict()
        if path.suffix == ".safetensors":
            save_file(state, path)
        else:
            torch.save(state, path)
        return path

    return make


def load_model_weights(path: Path) -> dict[str, torch.Tensor]:
    found = load_weights(path)
    model = build_asr_model(config_of(path.parent))
    fill_weights(model, found, path, path.parent / "config.yaml")
    return model.state_dict()


def are_finite(state: dict[str, torch.Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in state.values())


def build_config(path: Path) -> Any:
    config = load_training_config(AsrTrainConfig, path)
    return build_asr_model(_with_tokens(config, ModelFiles(path, path.parent / "model.pth")))


def packed_config(folder: Path) -> Path:
    weights("model.pth")(folder)
    return config_file(folder)


def pack(path: Path) -> Path:
    output = path.parent / "packed"
    shutil.rmtree(output, ignore_errors=True)
    return pack_model(ModelFiles(path, path.parent / "model.pth"), output, options=None, allow_import=False)


def features_file(folder: Path) -> Path:
    cmvn(folder)
    path = folder / "features.yaml"
    save_options(path, FeatureOptions("fbank_pitch"), cmvn="cmvn.ark")
    return path


def compute_from(path: Path) -> np.ndarray:
    recipe = FeatureRecipe(path)
    recipe.stats = None
    return recipe(samples(1.0).astype(np.float32))


def sentencepiece_model(folder: Path) -> Path:
    lines = ["hello world this is a text", "another line of words", "more words here", "the end of it all"] * 5
    source = text("text", "\n".join(lines))(folder)
    return train_sentencepiece([source], folder / "bpe", vocab_size=40, model_type="bpe")


def use_sentencepiece(path: Path) -> list[str]:
    tokenizer = BpeTokenizer(path)
    assert isinstance(tokenizer.tokens2text(tokenizer.text2tokens("hello world")), str)
    return piece_tokens(path)


def data_directory(name: str) -> Callable[[Path], Path]:
    """A data directory whose file `name` is to be damaged."""

    def make(folder: Path) -> Path:
        for key in ("s1-a", "s1-b", "s2-c"):
            audio(f"{key}.flac")(folder)
        tables = {
            "wav.scp": "".join(f"{key} {folder / key}.flac\n" for key in ("s1-a", "s1-b", "s2-c")),
            "text": "s1-a hello world\ns1-b a b c\ns2-c d\n",
            "utt2spk": "s1-a s1\ns1-b s1\ns2-c s2\n",
            "spk2utt": "s1 s1-a s1-b\ns2 s2-c\n",
            "utt2dur": "s1-a 0.4\ns1-b 0.4\ns2-c 0.4\n",
            "segments": "s1-a s1-a 0.0 0.3\ns1-b s1-b 0.1 0.4\ns2-c s2-c 0 -1\n",
        }
        for table, content in tables.items():
            text(table, content)(folder)
        return folder / name

    return make


def validate_and_fix(path: Path) -> object:
    copy = path.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path.parent, copy)
    report = validate(copy)
    report.describe()
    if report.errors:
        fix(report)
    return report


def table_values(path: Path) -> list[tuple[str, str]]:
    table = Table(path)
    return [(table.id(line), table.value(line)) for line in range(len(table))]


def are_shapes(shapes: Shapes) -> bool:
    return bool(((shapes.lengths >= 0) & (shapes.lengths < 10**11)).all()) and 0 < shapes.dim <= 5 * 10**7


def table_cache(folder: Path) -> Path:
    columns = {"ids": np.array([b"a", b"b"]), "starts": np.array([2, 6]), "ends": np.array([3, 7])}
    _write_cache(folder / ".tympan" / "index", {"size": 8}, columns)
    return folder / ".tympan" / "index"


def read_table_cache(path: Path) -> object:
    columns = _read_cache(path, {"size": 8})
    return columns and {name: list(column) for name, column in columns.items()}


def lengths_cache(folder: Path) -> Path:
    _keep(folder / ".tympan" / "lengths", {"version": 1}, np.ones((5, 2), np.int64))
    return folder / ".tympan" / "lengths"


def manifest(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        audio("a.wav")(folder)
        row = '{"audio_filepath": "a.wav", "text": "hello", "duration": 0.4}\n'
        return text(name, row if name == "m.jsonl" else "path,text,speaker\na.wav,hello world,s1\n")(folder)

    return make


def journal(folder: Path) -> Path:
    from tympan.decode.hypothesis import Hypothesis

    path = folder / "logdir" / "results.jsonl"
    path.unlink(missing_ok=True)
    best = Hypothesis("a b", ("a", "b"), (2, 3), -1.5, {"ctc": -1.5}, times=((0.0, 0.1), (0.1, 0.2)))
    with Journal(path, {"beam": 3}) as opened:
        opened.add([Result("a", (best,), duration_s=1.0, origin="x"), Result("b", (best,), duration_s=2.0, origin="y")])
    return path


def continue_journal(path: Path) -> list[str]:
    from tympan.decode.output import write_output_tree

    with Journal(path, {"beam": 3}) as opened:
        write_output_tree(path.parent.parent / "out", list(opened.done), opened.done, nbest=1, nj=1)
        return list(opened.done)


def zipped_model(folder: Path) -> Path:
    path = folder / "model.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "meta.yaml", "files: {asr_model_file: exp/m.pth}\nyaml_files: {asr_train_config: exp/c.yaml}\n"
        )
        archive.writestr("exp/m.pth", bytes(range(256)) * 8)
        archive.writestr("exp/c.yaml", yaml.safe_dump(CONFIG))
    return path


def unpack_model(path: Path) -> ModelFiles:
    os.environ["XDG_CACHE_HOME"] = str(path.parent / "cache")
    shutil.rmtree(path.parent / "cache", ignore_errors=True)
    return find_model(unpacked(path))


def archive(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w") as tar:
            for member in ("corpus/a.txt", "corpus/wav/b.wav"):
                info = tarfile.TarInfo(member)
                info.size = 2000
                tar.addfile(info, io.BytesIO(b"x" * 2000))
        pack_bytes = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "tar": bytes}
        path = folder / name
        path.write_bytes(pack_bytes[name.rpartition(".")[2]](plain.getvalue()))
        return path

    return make


def unpack_archive(path: Path) -> list[Path]:
    target = path.parent / "target"
    shutil.rmtree(target, ignore_errors=True)
    return extract(path, target)


def stays_inside(tops: list[Path]) -> bool:
    return all(top.parent.name == "target" for top in tops)


def run_manifest(folder: Path) -> Path:
    config_file(folder)
    content = {
        "task": "asr", "task_class": "tympan.tasks.asr:AsrTask", "directory": str(folder / "nowhere"), "device": "cpu",
        "processes": 1, "threads": 1, "versions": {"torch": "2.13"}, "data": {"a": {"missing": True}},
        "weights_sha256": {"1epoch.pth": "00"}, "epochs": {"1": {"train": {"loss": 1.0}}},
    }  # fmt: skip
    path = folder / "manifest.json"
    path.write_text(json.dumps(content, indent=1))
    return path


def reproduce(path: Path) -> None:
    from tympan.bin.reproduce import main
    from tympan.errors import UserError

    try:
        main([str(path.parent), "--output_dir", str(path.parent / "again")])
    except UserError as error:
        if "nowhere" not in str(error):  # the answer to a whole manifest
            raise


def take_lock(path: Path) -> None:
    with directory_lock(path.parent):
        pass


def lock_file(folder: Path) -> Path:
    path = folder / ".lock"
    path.write_text(json.dumps({"host": socket.gethostname(), "pid": 2**22 + 1, "started": "then", "run": None}))
    return path


SOUNDS = ("a.wav", "a.flac", "a.ogg", "a.mp3", "a.aiff", "a.au", "a.caf", "a.w64")
TABLES = ("wav.scp", "text", "utt2spk", "spk2utt", "utt2dur", "segments")
SETTINGS = "beam_size: 5\nctc_weight: 0.3\nnbest: 2\n"
CONF = "--sample-frequency=8000\n--num-mel-bins=20\n"

BINARY_READERS = [
    *(Reader(f"audio {name}", audio(name), read_all_audio, is_sound) for name in SOUNDS),
    Reader("audio float wav", audio("a.wav", subtype="FLOAT"), read_all_audio, is_sound),
    Reader("audio sphere", audio("a.sph", format="NIST"), read_all_audio, is_sound),
    Reader("audio in an archive", wav_ark, read_wav_ark, is_sound),
    Reader("feature archive", feature_ark(None), read_feature_ark, is_small),
    Reader("compressed feature archive", feature_ark(2), read_feature_ark, is_small),
    Reader("npy", npy, read_npy, is_small),
    Reader("statistics", statistics, GlobalMvn, is_normalization),
    Reader("Kaldi statistics", cmvn, read_stats, lambda stats: bool(np.isfinite(stats).all())),
    Reader("n-gram binary", ngram_binary, query_ngram, are_log_probs),
    Reader("ARPA gzip", gzipped, query_ngram, are_log_probs),
    Reader("weights", weights("model.pth"), load_model_weights, are_finite),
    Reader("safetensors", weights("model.safetensors"), load_model_weights, are_finite),
    Reader("sentencepiece", sentencepiece_model, use_sentencepiece),
    Reader("validate and fix s1-a.flac", data_directory("s1-a.flac"), validate_and_fix),
    Reader("index cache", table_cache, read_table_cache),
    Reader("lengths cache", lengths_cache, lambda path: _read_kept(path, {"version": 1})),
    Reader("packed model", zipped_model, unpack_model),
    *(
        Reader(f"archive {name}", archive(name), unpack_archive, stays_inside)
        for name in ("c.tar", "c.tar.gz", "c.tar.xz", "c.tar.bz2")
    ),
]
TEXT_READERS = [
    Reader("ARPA", text("a.arpa", ARPA), query_ngram, are_log_probs, is_text=True),
    Reader("YAML", config_file, read_yaml, is_text=True),
    Reader("config of a model", config_file, build_config, is_text=True),
    Reader("config in pack", packed_config, pack, is_text=True),
    Reader("decode.yaml", text("decode.yaml", SETTINGS), read_settings, is_text=True),
    Reader("features.yaml", features_file, compute_from, lambda found: bool(np.isfinite(found).all()), is_text=True),
    Reader("fbank.conf", text("fbank.conf", CONF), lambda path: read_conf(path, FbankOptions), is_text=True),
    Reader("token list", text("tokens.txt", TOKENS), read_token_list, is_text=True),
    Reader("units", text("units.txt", "<unk> 1\na 2\nb 3\n"), read_token_list, is_text=True),
    Reader("lexicon", text("lexicon.txt", LEXICON), read_lexicon, is_text=True),
    Reader("Kaldi text", text("text", "s1-a hello world\ns1-b a { b / c }\n"), read_transcripts, is_text=True),
    Reader("trn", text("a.trn", "hello { a / @ } world (s1-a)\na b (s1-b)\n"), read_transcripts, is_text=True),
    Reader("utt2spk", text("utt2spk", "s1-a s1\ns1-b s1\n"), read_utt2spk, is_text=True),
    Reader("table", text("wav.scp", "a a.wav\nb b.wav\n"), read_table, is_text=True),
    Reader("indexed table", text("wav.scp", "a a.wav\nb b.wav\n"), table_values, is_text=True),
    Reader("shape file", text("speech_shape", "a 100,80\nb 200,80\n"), read_shapes, are_shapes, is_text=True),
    *(Reader(f"validate and fix {name}", data_directory(name), validate_and_fix, is_text=True) for name in TABLES),
    *(Reader(f"manifest {name}", manifest(name), read_manifest, is_text=True) for name in ("m.csv", "m.jsonl")),
    Reader("journal", journal, continue_journal, is_text=True),
    Reader("manifest of a run", run_manifest, reproduce, is_text=True),
    Reader("lock", lock_file, take_lock, is_text=True),
]
READERS = [*BINARY_READERS, *TEXT_READERS]
