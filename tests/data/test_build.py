"""From a training config to batches, with and without shape files, and the data types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.config.training import parse_training
from tympan.data.ark import write_ark
from tympan.data.build import build_dataset, build_iter_factory, split_shapes
from tympan.data.dataset import UtteranceDataset
from tympan.data.lengths import measure_shapes
from tympan.data.shapes import read_shapes, write_shapes
from tympan.errors import UserError

IDS = [f"spk-{number}" for number in range(7)]
FRAMES = [4000 + 700 * number for number in range(7)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for key, frames in zip(IDS, FRAMES, strict=True):
        soundfile.write(tmp_path / f"{key}.wav", 0.1 * rng.standard_normal(frames), 16000)
    (tmp_path / "wav.scp").write_text("".join(f"{key} {key}.wav\n" for key in IDS))
    (tmp_path / "text").write_text("".join(f"{key} {'ab' * (n + 1)}\n" for n, key in enumerate(IDS)))
    (tmp_path / "tokens.txt").write_text("<blank>\n<unk>\na\nb\n<sos/eos>\n")
    return tmp_path


def asr_config(corpus: Path, *extra: str) -> Any:
    data = [
        f"--{split}_data_path_and_name_and_type={corpus}/{file},{name},{kind}"
        for split in ("train", "valid")
        for file, name, kind in (("wav.scp", "speech", "sound"), ("text", "text", "text"))
    ]
    common = [
        "--encoder=conformer",
        "--model_conf=ctc_weight=1.0",
        "--token_type=char",
        f"--token_list={corpus}/tokens.txt",
        "--num_workers=0",
        f"--output_dir={corpus}/exp",
    ]
    return parse_training(AsrTrainConfig, [*data, *common, *extra], prog="asr_train")


def test_training_and_validation_from_one_config(corpus: Path) -> None:
    config = asr_config(corpus, "--batch_type=numel", "--batch_bins=12000", "--valid_batch_bins=40000")
    train, valid = build_iter_factory(config, "train"), build_iter_factory(config, "valid")
    assert len(train.batch_sizes(1)) > len(valid.batch_sizes(1))
    assert "augment_seed" in next(train.build_iter(1)).tensors
    batch = next(valid.build_iter(1))
    assert "augment_seed" not in batch.tensors
    longest = max(batch.tensors["text_lengths"].tolist())
    assert batch.tensors["text"].shape[1] == longest
    assert batch.tensors["text"][0][:4].tolist() == [2, 3, 2, 3]


def test_lengths_are_measured_once_and_kept(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = build_dataset(asr_config(corpus), "train")
    speech, text = measure_shapes(dataset, dataset.names)
    assert speech.lengths.tolist() == FRAMES
    assert text.lengths.tolist() == [2 * (n + 1) for n in range(7)]
    assert (corpus / ".tympan" / "wav.scp.lengths").is_file()
    monkeypatch.setattr("tympan.data.lengths.value_length", lambda *_: pytest.fail("measured again"))
    assert measure_shapes(dataset, ["speech"])[0].lengths.tolist() == FRAMES


def test_lengths_in_parallel_name_the_broken_file(corpus: Path) -> None:
    (corpus / "spk-3.wav").write_bytes(b"")
    dataset = build_dataset(asr_config(corpus), "train")
    with pytest.raises(UserError, match=r"wav\.scp:4: utterance 'spk-3'.*empty"):
        measure_shapes(dataset, dataset.names, nj=2)


def test_shape_files_choose_the_utterances(corpus: Path) -> None:
    write_shapes(corpus / "speech_shape", {"spk-4": [6800], "spk-1": [4700]})
    write_shapes(corpus / "text_shape.char", {key: [2 * (n + 1)] for n, key in enumerate(IDS)})
    shape_files = [f"--train_shape_file={corpus}/speech_shape", f"--train_shape_file={corpus}/text_shape.char"]
    config = asr_config(corpus, *shape_files, "--fold_length=1000", "--fold_length=150")
    dataset = build_dataset(config, "train")
    assert [shape.lengths.tolist() for shape in split_shapes(config, dataset, "train")] == [[6800, 4700], [10, 4]]
    factory = build_iter_factory(config, "train")
    assert {key for step in range(factory.num_steps(1)) for key in factory.batch_ids(1, step)} == {"spk-4", "spk-1"}


def test_batch_size_per_device_counts_each_rank(corpus: Path) -> None:
    config = asr_config(corpus, "--batch_type=unsorted", "--batch_size=3", "--batch_size_per_device=true")
    assert build_iter_factory(config, "train", world_size=2).batch_sizes(1) == (7,)
    assert len(build_iter_factory(config, "train").batch_sizes(1)) == 2


def test_language_model_text(corpus: Path) -> None:
    data = [f"--{split}_data_path_and_name_and_type={corpus}/text,text,text" for split in ("train", "valid")]
    options = ["--token_type=char", f"--token_list={corpus}/tokens.txt", "--batch_type=numel", "--batch_bins=30"]
    config = parse_training(LmTrainConfig, [*data, *options, f"--output_dir={corpus}/lm"], prog="lm_train")
    factory = build_iter_factory(config, "train")
    batches = list(factory.build_iter(1))
    assert sorted(key for batch in batches for key in batch.ids) == IDS
    assert set(batches[0].tensors) == {"text", "text_lengths", "augment_seed"}
    assert batches[0].tensors["text"].dtype == torch.int64


def test_mistakes_in_what_is_asked_for(corpus: Path) -> None:
    config = asr_config(corpus, "--speed_perturb=0.9", "--input_size=83")
    with pytest.raises(UserError, match="speed_perturb: works on recordings, but input_size"):
        build_dataset(config, "train")
    with pytest.raises(UserError, match="16000 Hz, 8000 Hz is expected"):
        list(
            build_iter_factory(
                asr_config(corpus, "--frontend_conf", "fs=8000", "--batch_type=numel"), "train"
            ).build_iter(1)
        )
    with pytest.raises(UserError, match="the data name 'speech' is given 2 times"):
        UtteranceDataset([(corpus / "wav.scp", "speech", "sound")] * 2)
    with pytest.raises(UserError, match="data type 'wave' is unknown; choose from sound"):
        UtteranceDataset([(corpus / "wav.scp", "speech", "wave")])
    with pytest.raises(UserError, match="a text needs a token_type"):
        UtteranceDataset([(corpus / "text", "text", "text")])[0, 1]


def test_data_types(corpus: Path) -> None:
    features = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(corpus / "a.npy", features)
    with write_ark(corpus / "feats.ark") as writer:
        writer.write("a", features)
        offset = writer.offsets["a"]
    rows = {
        "sound": ("spk-0.wav", (4000,)),
        "multi_columns_sound": ("spk-0.wav spk-0.wav", (4000, 2)),
        "kaldi_ark": (f"{corpus}/feats.ark:{offset}", (4, 3)),
        "npy": ("a.npy", (4, 3)),
        "text_int": ("3 1 2", (3,)),
        "csv_int": ("3,1", (2,)),
        "text_float": ("3.5 1", (2,)),
        "csv_float": ("3.5,1", (2,)),
    }
    for kind, (value, shape) in rows.items():
        (corpus / kind).write_text(f"a {value}\n")
        dataset = UtteranceDataset([(corpus / kind, "x", kind)])
        array = dataset["a", 1].arrays["x"]
        assert array.shape == shape, kind
        assert array.dtype == (np.int64 if kind.endswith("int") else np.float32)
        measured = measure_shapes(dataset, ["x"])[0]
        assert (measured.lengths[0], measured.dim) == (shape[0], int(np.prod(shape[1:]))), kind
        if kind in ("kaldi_ark", "npy"):
            assert np.array_equal(array, features)


def test_audio_in_an_archive(corpus: Path) -> None:
    (corpus / "wav.ark").write_bytes(b"a " + (corpus / "spk-1.wav").read_bytes())
    (corpus / "ark.scp").write_text("a wav.ark:2\n")
    samples = UtteranceDataset([(corpus / "ark.scp", "speech", "kaldi_ark")])["a", 1].arrays["speech"]
    assert np.array_equal(samples, soundfile.read(corpus / "spk-1.wav", dtype="float32")[0])


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("text_int", "1 x", "expected whole numbers separated by blanks, found '1 x'"),
        ("npy", "none.npy", "none.npy"),
        ("kaldi_ark", "none.ark:7", "none.ark"),
        ("sound", "echo |", "--allow_pipes"),
        ("multi_columns_sound", "spk-0.wav spk-1.wav", "equal length"),
    ],
)
def test_broken_values_name_utterance_and_file(corpus: Path, kind: str, value: str, message: str) -> None:
    (corpus / "data").write_text(f"good {value}\n")
    with pytest.raises(UserError) as caught:
        UtteranceDataset([(corpus / "data", "x", kind)])["good", 1]
    assert str(caught.value).startswith(f"{corpus}/data:1: utterance 'good': ")
    assert message in str(caught.value)


def test_shapes_of_a_real_shape_file_agree_with_the_audio(corpus: Path) -> None:
    dataset = build_dataset(asr_config(corpus), "valid")
    write_shapes(corpus / "speech_shape", [(key, [frames]) for key, frames in zip(IDS, FRAMES, strict=True)])
    assert np.array_equal(
        read_shapes(corpus / "speech_shape", dataset.index.ids).lengths, measure_shapes(dataset, ["speech"])[0].lengths
    )
