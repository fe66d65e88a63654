"""A data directory from a folder of recordings with a text file beside each: anna/one.wav and anna/one.txt."""

from __future__ import annotations

from pathlib import Path

from tympan.data.kaldi_dir import DataDir
from tympan.data.recordings import find_recordings
from tympan.errors import UserError
from tympan.files import read_text

_SHOWN = 20


def read_folder(folder: Path) -> DataDir:
    """The data directory that a folder describes. All recordings without text are reported together.

    The speaker is the directory of a recording. In a folder without subdirectories every recording counts as a speaker
    of its own. Ids are the paths below the folder, so that they begin with the speaker.
    """
    tables: dict[str, dict[str, str]] = {"wav.scp": {}, "text": {}, "utt2spk": {}}
    faults = []
    for recording in find_recordings([folder]):
        beside = recording.path.with_suffix(".txt")
        if not beside.exists():
            faults.append(f"{recording.path}: there is no transcript {beside.name} beside it")
            continue
        try:
            text = " ".join(read_text(beside, encoding="utf-8-sig").split())
        except UserError as error:
            faults.append(str(error))
            continue
        if not text:
            faults.append(f"{beside}: the file is empty")
        utterance = "_".join(recording.name.replace("/", "-").split())
        directory = Path(recording.name).parent
        speaker = utterance if directory == Path() else "_".join(str(directory).replace("/", "-").split())
        for table, value in (("wav.scp", str(recording.path.resolve())), ("text", text), ("utt2spk", speaker)):
            tables[table][utterance] = value
    if faults:
        more = [f"... and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        raise UserError("\n".join([*faults[:_SHOWN], *more]))
    return DataDir(folder, tables)
