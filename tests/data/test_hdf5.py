"""Data type hdf5: one dataset per utterance."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

from tympan.data.index import UtteranceIndex
from tympan.data.readers import Context, read_value, require_type, value_length
from tympan.errors import UserError


def write(path: Path, **arrays: np.ndarray) -> Path:
    h5py = pytest.importorskip("h5py", reason="the extra 'hdf5' is not installed")
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def test_arrays_are_read_by_utterance(tmp_path: Path) -> None:
    first, second = np.arange(6, dtype=np.float32).reshape(3, 2), np.arange(4, dtype=np.float64)
    path = write(tmp_path / "a.h5", utt2=second, utt1=first)
    index = pickle.loads(pickle.dumps(UtteranceIndex({"speech": path})))
    assert [index.id(row) for row in range(len(index))] == ["utt1", "utt2"]
    context = Context(tmp_path)
    assert require_type("hdf5") == "hdf5"
    np.testing.assert_array_equal(read_value("hdf5", index.value(0, "speech"), context), first)
    np.testing.assert_array_equal(read_value("hdf5", index.value(1, "speech"), context), second)
    assert value_length("hdf5", index.value(0, "speech"), context) == (3, 2)
    assert value_length("hdf5", index.value(1, "speech"), context) == (4, 1)


def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.h5", utt=np.zeros(3), text=np.array(b"abc"))
    with pytest.raises(UserError, match="there is no dataset 'other'"):
        read_value("hdf5", f"{path}:other", Context(tmp_path))
    with pytest.raises(UserError, match="expected an array of shape"):
        read_value("hdf5", f"{path}:text", Context(tmp_path))
    with pytest.raises(UserError, match="it has no datasets"):
        UtteranceIndex({"speech": write(tmp_path / "empty.h5")})
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="is not an HDF5 file"):
        UtteranceIndex({"speech": damaged})
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"needs the package h5py: .*tympan\[hdf5\]"):
        UtteranceIndex({"speech": path})
