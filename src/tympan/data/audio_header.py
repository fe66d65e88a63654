"""Check the length in a recording's header, to detect truncated files without decoding them.

libsndfile silently shortens a wav or sphere file to what is left of it.
"""

from __future__ import annotations

import re
import struct
from typing import BinaryIO

_STREAMED = 0x7FFFF000
"""Programs that write to a pipe don't know the length; they write 0, or a value from here up to 2**32 - 1."""

_SPHERE_FIELD = re.compile(rb"^(\w+) -(?:i|r|s\d+) (.*)$", re.MULTILINE)


def check_whole(stream: BinaryIO, size: int) -> str | None:
    """Return why the audio of `size` bytes that starts here is incomplete according to its header, or None."""
    magic = stream.read(4)
    if not magic:
        return "the file is empty"
    if magic in (b"RIFF", b"RIFX"):
        return _check_wav(stream, size, "<" if magic == b"RIFF" else ">")
    if magic == b"NIST":
        return _check_sphere(magic + stream.read(1020) if size >= 1024 else b"", stream, size)
    if magic == b"OggS":
        return _check_ogg(stream, size)
    if magic[:3] == b"ID3" or (magic[0] == 0xFF and magic[1:2] >= b"\xe0"):
        return _check_mp3(magic + stream.read(size - 4))
    return None


def ark_entry(stream: BinaryIO) -> bytes:
    """Return the audio file stored at this offset of an archive (Kaldi's wav.ark, kaldiio's AUDIO entries)."""
    head = stream.read(12)
    if head[:4] == b"RIFF":
        (length,) = struct.unpack("<I", head[4:8])
        return head + (stream.read() if length == 0 or length >= _STREAMED else stream.read(length - 4))
    if head[:5] == b"AUDIO":
        # One byte gives the size of the length field that follows.
        width = head[5]
        head += stream.read(max(0, 6 + width - len(head)))
        length = int.from_bytes(head[6 : 6 + width], "little")
        body = head[6 + width :]
        body = (body + stream.read(length - len(body)))[:length]
        if len(body) < length:
            raise ValueError(f"truncated: only {len(body)} of {length} bytes exist")
        return body
    if head[:4] in (b"fLaC", b"OggS", b"NIST"):
        return head + stream.read()
    if head[:2] == b"\0B":
        raise ValueError("this archive contains a feature matrix, not audio")
    raise ValueError("no audio starts at this offset of the archive")


def _check_wav(stream: BinaryIO, size: int, order: str) -> str | None:
    position = 12
    stream.seek(8, 1)
    while position + 8 <= size:
        name, length = struct.unpack(f"{order}4sI", stream.read(8))
        position += 8
        if name == b"data":
            streamed = length == 0 or length >= _STREAMED
            if not streamed and position + length > size:
                return f"truncated: the header says {length} bytes of audio, but only {size - position} exist"
            return None
        position += length + length % 2
        stream.seek(length + length % 2, 1)
    return "truncated: the wav file ends before its audio begins"


def _check_sphere(header: bytes, stream: BinaryIO, size: int) -> str | None:
    if not header.startswith(b"NIST_1A"):
        return "truncated: the NIST sphere header is incomplete"
    length = int(header[8:16])
    header += stream.read(max(0, length - len(header)))
    fields = {key.decode(): value.decode("ascii", "replace").strip() for key, value in _SPHERE_FIELD.findall(header)}
    coding = fields.get("sample_coding", "pcm")
    if "shorten" in coding or "wavpack" in coding or "shortpack" in coding:
        return (
            f"the NIST sphere file is compressed ({coding}), which is not supported. "
            "Convert it with NIST's w_decode or sph2pipe: sph2pipe -f wav IN.sph OUT.wav"
        )
    promised = (
        int(fields.get("sample_count", 0)) * int(fields.get("channel_count", 1)) * int(fields.get("sample_n_bytes", 2))
    )
    if size - length < promised:
        return f"truncated: the header says {promised} bytes of audio, but only {size - length} exist"
    return None


def _check_ogg(stream: BinaryIO, size: int) -> str | None:
    """The last page of an Ogg stream has an end-of-stream flag; a page has at most 65,307 bytes."""
    start = stream.seek(0, 1) - 4
    stream.seek(start + max(0, size - 65_307))
    tail = stream.read(min(size, 65_307))
    page = tail.rfind(b"OggS")
    if page < 0 or len(tail) < page + 27:
        return "truncated: the last Ogg page is incomplete"
    segments = tail[page + 26]
    body = sum(tail[page + 27 : page + 27 + segments])
    if not tail[page + 5] & 0x04 or len(tail) < page + 27 + segments + body:
        return "truncated: the Ogg stream has no end-of-stream page"
    return None


_MP3_KBPS = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
_MP3_HZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}


def _check_mp3(content: bytes) -> str | None:
    """Without a length header, libsndfile guesses the length of an mp3 from its first frame and drops the rest."""
    position = 0
    if content[:3] == b"ID3" and len(content) >= 10:
        first, second, third, fourth = content[6:10]
        position = 10 + (first << 21 | second << 14 | third << 7 | fourth)
    if any(mark in content[position : position + 200] for mark in (b"Xing", b"Info", b"VBRI")):
        return None
    rates = set()
    while position + 4 <= len(content) and content[position] == 0xFF:
        version, layer = content[position + 1] >> 3 & 3, content[position + 1] >> 1 & 3
        bits = content[position + 2]
        if version == 1 or layer != 1 or bits >> 2 & 3 == 3:
            break
        kbps = _MP3_KBPS[3 if version == 3 else 2][bits >> 4]
        if not kbps:
            break
        rates.add(kbps)
        if len(rates) > 1:
            return (
                "this is a variable bit rate mp3 without a length header, which would be truncated. "
                "Convert it, for example to flac: ffmpeg -i IN.mp3 OUT.flac"
            )
        length = (144000 if version == 3 else 72000) * kbps // _MP3_HZ[version][bits >> 2 & 3]
        position += length + (bits >> 1 & 1)
    return None
