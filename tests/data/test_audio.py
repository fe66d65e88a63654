"""Reading recordings: formats, archives, segments, pipes, and truncated files."""

from __future__ import annotations

import struct
import tracemalloc
from functools import partial
from pathlib import Path

import kaldiio
import numpy as np
import pytest
import soundfile

from tympan.data.audio import AudioError, audio_info, check_audio, locate, read_audio
from tympan.errors import UserError

RATE = 16000


@pytest.fixture
def tone() -> np.ndarray:
    """One second of a 440 Hz tone as 16-bit samples."""
    return np.round(8000 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)).astype(np.int16)


@pytest.mark.parametrize(
    ("name", "tolerance"), [("a.wav", 0.0), ("a.flac", 0.0), ("a.ogg", 0.05), ("a.mp3", 0.05), ("a.sph", 0.0)]
)
def test_formats_decode_to_the_samples(tmp_path: Path, tone: np.ndarray, name: str, tolerance: float) -> None:
    path = tmp_path / name
    soundfile.write(path, tone, RATE, format="NIST" if name == "a.sph" else None)
    audio = read_audio(path)
    assert audio.rate == RATE
    assert audio.samples.dtype == np.float32
    assert len(audio.samples) == RATE
    assert np.abs(audio.samples - tone / 32768).max() <= tolerance
    assert (check_audio(path).frames, check_audio(path).channels) == (RATE, 1)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3", "a.sph"])
def test_a_recording_cut_in_half_is_found(tmp_path: Path, tone: np.ndarray, name: str) -> None:
    path = tmp_path / name
    soundfile.write(path, tone, RATE, format="NIST" if name == "a.sph" else None)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for read in (check_audio, read_audio, partial(read_audio, channel=0)):
        with pytest.raises(AudioError, match=name):
            read(path)


def test_truncated_wav_says_what_is_missing(tmp_path: Path, tone: np.ndarray) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone, RATE)
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(AudioError, match="truncated: the header says 32000 bytes of audio, but only 31000 exist"):
        audio_info(path)


def test_a_header_written_to_a_pipe_has_no_length(tmp_path: Path, tone: np.ndarray) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone, RATE)
    content = bytearray(path.read_bytes())
    content[4:8] = content[40:44] = struct.pack("<I", 0x7FFFF024)
    path.write_bytes(content)
    assert len(read_audio(path).samples) == RATE


def sphere(coding: str, body: bytes, *, count: int, width: int, order: str = "10") -> bytes:
    fields = (
        f"NIST_1A\n   1024\nsample_count -i {count}\nsample_n_bytes -i {width}\nchannel_count -i 1\n"
        f"sample_byte_format -s{len(order)} {order}\nsample_rate -i 8000\n"
        f"sample_coding -s{len(coding)} {coding}\nend_head\n"
    )
    return fields.encode().ljust(1024) + body


def test_sphere_big_endian_and_ulaw(tmp_path: Path) -> None:
    samples = np.array([0, 1000, -1000, 20000, -20000], dtype=np.int16)
    (tmp_path / "be.sph").write_bytes(sphere("pcm", samples.astype(">i2").tobytes(), count=5, width=2))
    np.testing.assert_array_equal(read_audio(tmp_path / "be.sph").samples * 32768, samples)
    # G.711: 0xFF is zero, 0x80 the largest positive, 0x00 the largest negative value.
    (tmp_path / "u.sph").write_bytes(sphere("ulaw", b"\xff\x80\x00", count=3, width=1, order="1"))
    np.testing.assert_array_equal(read_audio(tmp_path / "u.sph").samples * 32768, [0, 32124, -32124])


def test_shortened_sphere_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "s.sph"
    path.write_bytes(sphere("pcm,embedded-shorten-v2.00", b"ajkg", count=5, width=2))
    with pytest.raises(AudioError, match=r"embedded-shorten.*sph2pipe"):
        read_audio(path)


@pytest.mark.parametrize(("mode", "is_fine"), [("CONSTANT", True), ("VARIABLE", False)])
def test_mp3_without_a_length_is_never_cut_silently(tmp_path: Path, mode: str, is_fine: bool) -> None:
    path = tmp_path / "a.mp3"
    rng = np.random.default_rng(0)
    samples = np.concatenate([np.zeros(RATE), rng.normal(0, 0.1, RATE), 0.3 * np.sin(np.arange(RATE) * 0.1)])
    soundfile.write(path, samples, RATE, bitrate_mode=mode, compression_level=0.5)
    assert len(read_audio(path).samples) == 3 * RATE
    content = path.read_bytes()
    header = max(content.find(b"Xing"), content.find(b"Info"))
    path.write_bytes(content[content.find(b"\xff\xf3", header) :])  # MPEG 2 layer III without CRC
    if is_fine:
        assert len(read_audio(path).samples) >= 3 * RATE
    else:
        with pytest.raises(AudioError, match="variable bit rate mp3 without a length header"):
            read_audio(path)


def test_entries_of_archives(tmp_path: Path, tone: np.ndarray) -> None:
    other = tone[::-1].copy()
    ark, scp = str(tmp_path / "a.ark"), str(tmp_path / "a.scp")
    with kaldiio.WriteHelper(f"ark,scp:{ark},{scp}") as write:
        write["one"] = (RATE, tone)
        write["two"] = (RATE, other)
    flac = str(tmp_path / "f.ark"), str(tmp_path / "f.scp")
    kaldiio.save_ark(
        flac[0],
        {"one": (RATE, tone), "two": (RATE, other)},
        scp=flac[1],
        write_function="soundfile",
        write_kwargs={"format": "flac"},
    )
    for listing in (scp, flac[1]):
        sources = dict(line.split() for line in Path(listing).read_text().splitlines())
        np.testing.assert_array_equal(read_audio(sources["one"]).samples * 32768, tone)
        np.testing.assert_array_equal(read_audio(sources["two"]).samples * 32768, other)
    with pytest.raises(AudioError, match="no audio starts at this offset"):
        read_audio(f"{ark}:7")


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.ogg", "a.mp3"])
@pytest.mark.parametrize("rate", [RATE, 44100, 8000, None])
def test_a_channel_in_blocks_is_that_of_the_whole(
    tmp_path: Path, name: str, rate: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tympan.data.audio.BLOCK_FRAMES", 1000)
    noise = np.random.default_rng(0).normal(0, 0.1, (22050, 2))
    soundfile.write(tmp_path / name, noise, 22050)
    for part in ({}, {"start_s": 0.25, "end_s": 0.5}):
        whole = read_audio(tmp_path / name, rate=rate, **part).samples
        for channel in (0, 1):
            samples = read_audio(tmp_path / name, rate=rate, channel=channel, **part).samples
            assert samples.flags.c_contiguous
            assert samples.dtype == np.float32
            np.testing.assert_allclose(samples, whole[:, channel], atol=1e-6)


def test_a_channel_of_a_long_recording_takes_the_memory_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "long.wav"
    soundfile.write(path, np.zeros((120 * 44100, 2), dtype=np.int16), 44100)
    tracemalloc.start()
    samples = read_audio(path, rate=RATE, channel=0).samples
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(samples) == 120 * RATE
    assert peak < 2 * samples.nbytes


@pytest.mark.parametrize("name", [" a.wav", "a.wav |", "a b.wav"])
def test_a_path_is_a_file_whatever_its_name(tmp_path: Path, tone: np.ndarray, name: str) -> None:
    soundfile.write(tmp_path / name, tone, RATE, format="WAV")
    assert len(read_audio(tmp_path / name).samples) == RATE
    assert audio_info(tmp_path / name).frames == RATE
    assert len(read_audio(Path(name), base=tmp_path).samples) == RATE
    with pytest.raises(AudioError, match="there is no such file"):
        read_audio(tmp_path / "sub" / name)


def test_parts_channels_and_rates(tmp_path: Path, tone: np.ndarray) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, np.stack([tone, -tone], axis=1), RATE)
    assert read_audio(path).samples.shape == (RATE, 2)
    np.testing.assert_array_equal(read_audio(path, channel=1).samples * 32768, -tone)
    part = read_audio(path, channel=0, start_s=0.25, end_s=0.5)
    np.testing.assert_array_equal(part.samples * 32768, tone[4000:8000])
    assert len(read_audio(path, channel=0, start_s=0.9, end_s=1.2).samples) == 1600
    with pytest.raises(AudioError, match=r"ends at 1\.000 s"):
        read_audio(path, start_s=1.5)
    with pytest.raises(UserError, match="there is no channel 2; the number of channels is 2"):
        read_audio(path, channel=2)
    halved = read_audio(path, channel=0, rate=8000)
    assert (halved.rate, len(halved.samples)) == (8000, 8000)
    expected = 8000 / 32768 * np.sin(2 * np.pi * 440 * np.arange(8000) / 8000)
    assert np.abs(halved.samples - expected)[200:-200].max() < 1e-3


def test_pipes_run_only_when_allowed(tmp_path: Path, tone: np.ndarray) -> None:
    path, trace = tmp_path / "a.wav", tmp_path / "ran"
    soundfile.write(path, tone, RATE)
    command = f"touch {trace}; cat {path} |"
    with pytest.raises(UserError, match="--allow_pipes"):
        read_audio(command)
    assert not trace.exists()
    assert len(read_audio(command, allow_pipes=True).samples) == RATE
    assert trace.exists()
    with pytest.raises(AudioError, match="exited with code 3"):
        read_audio("exit 3 |", allow_pipes=True)


def test_missing_empty_and_foreign_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("not audio at all")
    with pytest.raises(AudioError, match=r"gone\.wav: there is no such file"):
        read_audio(tmp_path / "gone.wav")
    with pytest.raises(AudioError, match=r"empty\.wav: the file is empty"):
        read_audio(tmp_path / "empty.wav")
    with pytest.raises(AudioError, match=r"text\.wav: cannot be decoded as audio .*`ffmpeg -i IN OUT\.wav`"):
        read_audio(tmp_path / "text.wav")


def test_relative_paths_from_here_then_from_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "x.wav").touch()
    assert locate("x.wav", "data") == "data/x.wav"
    (tmp_path / "x.wav").touch()
    assert locate("x.wav", "data") == "x.wav"
    assert locate("x.ark:5", "data") == "x.ark:5"
    (tmp_path / "data" / "x.ark").touch()
    assert locate("x.ark:5", "data") == "data/x.ark:5"
    assert locate("cat x |", "data") == "cat x |"
