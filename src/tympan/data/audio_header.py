"""What a recording's header promises, so that a file cut off in copying is found without decoding it.

libsndfile silently shortens a wav or sphere file to what is left of it.
"""

from __future__ import annotations

import re
import struct
from typing import BinaryIO

_STREAMED = 0x7FFFF000
"""Programs that write to a pipe can't know the length; they write 0 or something from here up to 2**32 - 1."""

_SPHERE_FIELD = re.compile(rb"^(\w+) -(?:i|r|s\d+) (.*)$", re.MULTILINE)


def check_whole(stream: BinaryIO, size: int) -> str | None:
    """Why the audio of `size` bytes that starts here can't be read whole, as far as its header tells; else None."""
    magic = stream.read(4)
    if not magic:
        return "the file is empty"
    if magic in (b"RIFF", b"RIFX"):
        return _check_wav(stream, size, "<" if magic == b"RIFF" else ">")
    if magic == b"NIST":
        return _check_sphere(magic + stream.read(1020) if size >= 1024 else b"", stream, size)
    if magic == b"OggS":
        return _check_ogg(stream, size)
    return None


def ark_entry(stream: BinaryIO) -> bytes:
    """The audio file that is stored at this place of an archive (Kaldi's wav.ark, kaldiio's AUDIO entries)."""
    head = stream.read(12)
    if head[:4] == b"RIFF":
        (length,) = struct.unpack("<I", head[4:8])
        return head + (stream.read() if length == 0 or length >= _STREAMED else stream.read(length - 4))
    if head[:5] == b"AUDIO":
        # One byte tells how many bytes hold the length that follows.
        width = head[5]
        head += stream.read(max(0, 6 + width - len(head)))
        length = int.from_bytes(head[6 : 6 + width], "little")
        body = head[6 + width :]
        body = (body + stream.read(length - len(body)))[:length]
        if len(body) < length:
            raise ValueError(f"truncated: {len(body)} of {length} bytes are there")
        return body
    if head[:4] in (b"fLaC", b"OggS", b"NIST"):
        return head + stream.read()
    if head[:2] == b"\0B":
        raise ValueError("this archive holds a feature matrix, not audio")
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
                return f"truncated: the header promises {length} bytes of audio, {size - position} are there"
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
            f"the NIST sphere file is compressed ({coding}), which can't be read here. "
            "Convert it once with NIST's w_decode or sph2pipe: sph2pipe -f wav IN.sph OUT.wav"
        )
    promised = (
        int(fields.get("sample_count", 0)) * int(fields.get("channel_count", 1)) * int(fields.get("sample_n_bytes", 2))
    )
    if size - length < promised:
        return f"truncated: the header promises {promised} bytes of audio, {size - length} are there"
    return None


def _check_ogg(stream: BinaryIO, size: int) -> str | None:
    """The last page of an Ogg stream carries an end mark; a page is at most 65,307 bytes."""
    start = stream.seek(0, 1) - 4
    stream.seek(start + max(0, size - 65_307))
    tail = stream.read(min(size, 65_307))
    page = tail.rfind(b"OggS")
    if page < 0 or len(tail) < page + 27:
        return "truncated: the last Ogg page is incomplete"
    segments = tail[page + 26]
    body = sum(tail[page + 27 : page + 27 + segments])
    if not tail[page + 5] & 0x04 or len(tail) < page + 27 + segments + body:
        return "truncated: the Ogg stream has no end mark"
    return None
