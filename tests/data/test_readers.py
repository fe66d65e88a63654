"""Data types, and lengths measured from headers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.data.ark import read_ark, write_ark
from tympan.data.dataset import UtteranceDataset
from tympan.data.lengths import measure_shapes
from tympan.data.matrix_header import matrix_shape
from tympan.errors import UserError

FRAMES = [4000, 4700, 3100]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for number, frames in enumerate(FRAMES):
        soundfile.write(tmp_path / f"u{number}.wav", 0.1 * rng.standard_normal(frames), 16000)
    (tmp_path / "wav.scp").write_text("".join(f"u{number} u{number}.wav\n" for number in range(3)))
    return tmp_path


def test_lengths_are_measured_once_and_kept(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = UtteranceDataset([(corpus / "wav.scp", "speech", "sound")])
    assert measure_shapes(dataset, ["speech"])[0].lengths.tolist() == FRAMES
    assert (corpus / ".tympan" / "wav.scp.lengths").is_file()
    monkeypatch.setattr("tympan.data.lengths.value_length", lambda *_: pytest.fail("measured again"))
    assert measure_shapes(dataset, ["speech"])[0].lengths.tolist() == FRAMES


def test_lengths_in_parallel_name_the_broken_file(corpus: Path) -> None:
    (corpus / "u1.wav").write_bytes(b"")
    dataset = UtteranceDataset([(corpus / "wav.scp", "speech", "sound")])
    with pytest.raises(UserError, match=r"wav\.scp:2: utterance 'u1'.*empty"):
        measure_shapes(dataset, ["speech"], nj=2)


def test_data_types(corpus: Path) -> None:
    features = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(corpus / "a.npy", features)
    with write_ark(corpus / "feats.ark") as writer:
        writer.write("a", features)
        offset = writer.offsets["a"]
    rows = {
        "sound": ("u0.wav", (4000,)),
        "multi_columns_sound": ("u0.wav u0.wav", (4000, 2)),
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


def test_random_numbers_of_a_shape(corpus: Path) -> None:
    (corpus / "shape").write_text("a 30,4\nb 30,4\nc 7\n")
    (corpus / "length").write_text("a 30\nb 30\nc 7\n")
    triples = [(corpus / "shape", "x", "rand_float"), (corpus / "length", "y", "rand_int_3_10")]
    dataset = UtteranceDataset(triples)
    first, second, again = dataset["a", 1].arrays, dataset["b", 1].arrays, dataset["a", 2].arrays
    assert first["x"].shape == (30, 4)
    assert first["x"].dtype == np.float32
    assert abs(first["x"].std() - 1) < 0.2
    assert set(first["y"].tolist()) == set(range(3, 10))
    assert first["y"].dtype == np.int64
    for name in ("x", "y"):
        assert np.array_equal(first[name], again[name])
        assert not np.array_equal(first[name], second[name])
    assert measure_shapes(dataset, ["y"])[0].lengths.tolist() == [30, 30, 7]
    for kind, value, message in (
        ("rand_int_5_5", "3", "LOW below HIGH"),
        ("rand_float", "-3,4", "expected a shape such as 120,80, found '-3,4'"),
    ):
        (corpus / "bad").write_text(f"a {value}\n")
        with pytest.raises(UserError, match=message):
            UtteranceDataset([(corpus / "bad", "x", kind)])["a", 1]


def test_files_of_any_number_and_length(corpus: Path) -> None:
    (corpus / "columns").write_text("a u0.wav u1.wav\nb u1.wav\n")
    dataset = UtteranceDataset([(corpus / "columns", "x", "variable_columns_sound")])
    both, one = dataset["a", 1].arrays["x"], dataset["b", 1].arrays["x"]
    samples = [soundfile.read(corpus / f"u{number}.wav", dtype="float32")[0] for number in (0, 1)]
    assert both.shape == (2, max(map(len, samples)))
    for row, expected in zip(both, samples, strict=True):
        assert np.array_equal(row[: len(expected)], expected)
        assert np.isnan(row[len(expected) :]).all()
    assert np.array_equal(one, samples[1][None])


@pytest.mark.parametrize("kind", ["multi_columns_sound", "variable_columns_sound"])
def test_columns_of_different_rates_are_not_stacked(corpus: Path, kind: str) -> None:
    samples, rate = soundfile.read(corpus / "u0.wav")
    soundfile.write(corpus / "other.wav", samples, rate // 2)
    (corpus / "columns").write_text("a u0.wav other.wav\n")
    dataset = UtteranceDataset([(corpus / "columns", "x", kind)], sample_rate=0)  # allow_multi_rates
    with pytest.raises(UserError, match=f"must have the same sample rate, found {rate // 2}, {rate} Hz"):
        dataset["a", 1]


def test_types_of_espnet2_that_are_missing_say_so(corpus: Path) -> None:
    with pytest.raises(UserError, match="'random_text' is not supported; use text, with an id in front of each line"):
        UtteranceDataset([(corpus / "text", "x", "random_text")])


def test_audio_in_an_archive(corpus: Path) -> None:
    (corpus / "wav.ark").write_bytes(b"a " + (corpus / "u1.wav").read_bytes())
    (corpus / "ark.scp").write_text("a wav.ark:2\n")
    dataset = UtteranceDataset([(corpus / "ark.scp", "speech", "kaldi_ark")])
    samples = dataset["a", 1].arrays["speech"]
    assert np.array_equal(samples, soundfile.read(corpus / "u1.wav", dtype="float32")[0])
    assert measure_shapes(dataset, ["speech"])[0].lengths.tolist() == [4700]


def test_segments_are_parts_of_the_recordings_beside_them(corpus: Path) -> None:
    (corpus / "segments").write_text("a u1 0.05 0.15\nb u0 0.1 -1\n")
    dataset = UtteranceDataset([(corpus / "segments", "speech", "segments")])
    whole = soundfile.read(corpus / "u1.wav", dtype="float32")[0]
    assert np.array_equal(dataset["a", 1].arrays["speech"], whole[800:2400])
    assert len(dataset["b", 1].arrays["speech"]) == FRAMES[0] - 1600
    assert measure_shapes(dataset, ["speech"])[0].lengths.tolist() == [1600, FRAMES[0] - 1600]
    assert dataset.sample_rate == 16000
    (corpus / "segments").write_text("a gone 0 1\n")
    with pytest.raises(UserError, match=r"segments:1: utterance 'a': recording 'gone' is not in .*wav\.scp"):
        UtteranceDataset([(corpus / "segments", "speech", "segments")])


@pytest.mark.parametrize("method", [None, 1, 2, 3, 4, 5, 6, 7])
def test_sizes_of_matrices_come_from_their_headers(
    corpus: Path, method: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tympan.data.matrix_header.read_matrix", lambda *_, **__: pytest.fail("read whole"))
    with write_ark(corpus / "feats.ark", compression_method=method) as writer:
        for key, rows in (("a", 5), ("b", 17)):
            writer.write(key, np.random.default_rng(0).standard_normal((rows, 83)).astype(np.float32))
    assert matrix_shape(f"{corpus}/feats.ark:{writer.offsets['a']}") == (5, 83)
    assert matrix_shape(f"feats.ark:{writer.offsets['b']}", base=corpus) == (17, 83)


def test_sizes_of_other_matrices(corpus: Path) -> None:
    with write_ark(corpus / "v.ark") as writer:
        writer.write("v", np.arange(6, dtype=np.float64))
        writer.write("d", np.ones((3, 2)))
    assert matrix_shape(f"{corpus}/v.ark:{writer.offsets['v']}") == (6,)
    assert matrix_shape(f"{corpus}/v.ark:{writer.offsets['d']}") == (3, 2)
    (corpus / "text.ark").write_text(" [\n 1 2 3\n 4 5 6 ]\n")
    assert matrix_shape(f"{corpus}/text.ark") == (2, 3)
    with pytest.raises(UserError, match=r"none\.ark"):
        matrix_shape(f"{corpus}/none.ark:5")


def test_sizes_of_kaldis_own_archives(golden: Path) -> None:
    first = golden / "kaldi" / "BAC009S0150W0040.fbank_pitch.method1.ark"
    archives = sorted(first.parent.glob("*.method*.ark"))
    assert archives
    for path in archives:
        for key, matrix in read_ark(path):
            offset = path.read_bytes().index(f"{key} ".encode()) + len(key) + 1
            assert matrix_shape(f"{path}:{offset}") == matrix.shape


def test_real_recordings_have_the_lengths_of_their_headers(real_data: Path) -> None:
    folder = real_data / "an4" / "train_dev"
    dataset = UtteranceDataset([(folder / "wav.scp", "speech", "sound")])
    lengths = measure_shapes(dataset, ["speech"])[0].lengths
    assert len(lengths) == 100
    for row in range(0, 100, 20):
        assert len(dataset[row, 1].arrays["speech"]) == lengths[row]


def test_one_rate_is_expected_of_all_recordings(corpus: Path) -> None:
    soundfile.write(corpus / "u2.wav", np.zeros(100), 8000)
    triples = [(corpus / "wav.scp", "speech", "sound")]
    with pytest.raises(UserError, match=r"wav\.scp:3: utterance 'u2': .*8000 Hz, but 16000 Hz is expected"):
        UtteranceDataset(triples)["u2", 1]
    assert len(UtteranceDataset(triples, sample_rate=0)["u2", 1].arrays["speech"]) == 100


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("text_int", "1 x", "expected integers separated by spaces, found '1 x'"),
        ("npy", "none.npy", "none.npy"),
        ("kaldi_ark", "none.ark:7", "none.ark"),
        ("sound", "echo |", "--allow_pipes"),
        ("multi_columns_sound", "u0.wav u1.wav", "equal length"),
        ("text", "some words", "converting text to token ids needs use_preprocessor true, a token_type"),
    ],
)
def test_broken_values_name_utterance_and_file(corpus: Path, kind: str, value: str, message: str) -> None:
    (corpus / "data").write_text(f"good {value}\n")
    with pytest.raises(UserError) as caught:
        UtteranceDataset([(corpus / "data", "x", kind)])["good", 1]
    assert str(caught.value).startswith(f"{corpus}/data:1: utterance 'good': ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (np.array([{}], dtype=object), "not a file with one array of numbers"),
        (b"", "not a file with one array of numbers"),
        (b"hello", "not a file with one array of numbers"),
        (np.float32(3), r"an array of shape \(time,\) or \(time, dim\)"),
    ],
)
def test_arrays_that_can_not_be_used(corpus: Path, content: np.ndarray | bytes | None, message: str) -> None:
    (corpus / "data").write_text("good a.npy\n")
    if isinstance(content, bytes):
        (corpus / "a.npy").write_bytes(content)
    elif content is not None:
        np.save(corpus / "a.npy", content)
    dataset = UtteranceDataset([(corpus / "data", "x", "npy")])
    for use in (lambda: dataset["good", 1], lambda: measure_shapes(dataset, ["x"])):
        with pytest.raises(UserError, match=f"data:1: utterance 'good': a.npy: .*{message}"):
            use()


def test_mistakes_in_what_is_asked_for(corpus: Path) -> None:
    with pytest.raises(UserError, match="the data name 'speech' is given 2 times"):
        UtteranceDataset([(corpus / "wav.scp", "speech", "sound")] * 2)
    with pytest.raises(UserError, match="data type 'wave': must be one of sound"):
        UtteranceDataset([(corpus / "wav.scp", "speech", "wave")])


def test_recordings_are_resampled_to_the_rate_of_the_model(tmp_path: Path) -> None:
    """Lengths come from headers, and must be those of the resampled audio."""
    lines = []
    for rate, samples in ((8000, 800), (16000, 1601), (22050, 3001), (44100, 4411), (48000, 4801)):
        soundfile.write(tmp_path / f"{rate}.wav", np.random.default_rng(0).normal(0, 0.1, (samples, 2)), rate)
        lines.append(f"u{rate:05d} {tmp_path / f'{rate}.wav'}\n")
    (tmp_path / "wav.scp").write_text("".join(lines))
    triples = [(tmp_path / "wav.scp", "speech", "sound")]
    for channel in ("mean", None):
        dataset = UtteranceDataset(triples, sample_rate=16000, resample=True, channel=channel)
        (shapes,) = measure_shapes(dataset, ["speech"])
        assert shapes.lengths.tolist() == [len(dataset[row, 1].arrays["speech"]) for row in range(len(lines))]
    (shapes,) = measure_shapes(UtteranceDataset(triples, sample_rate=0), ["speech"])
    assert shapes.lengths.tolist() == [800, 1601, 3001, 4411, 4801], "not the cached ones"


def test_text_in_another_encoding_names_its_line_once(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a good\nb \xff\n")
    dataset = UtteranceDataset([(tmp_path / "text", "text", "text")])
    with pytest.raises(UserError) as raised:
        dataset["b", 1]
    assert str(raised.value) == f"{tmp_path}/text:2: utterance 'b' is not UTF-8 text"
