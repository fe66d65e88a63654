"""Configuration files in which a value is of another kind, such as a list where a name is expected: one message."""

from __future__ import annotations

import copy
import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.damage import Reader, attempt
from tests.faults.file_readers import READERS as FILES
from tests.faults.model_readers import MODEL_READERS

KINDS: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    float("nan"),
    "",
    "x",
    [],
    ["x"],
    [1, [2]],
    {},
    {"x": 1},
    {"x": {}},
)
NAMES = (
    "YAML", "config of a model", "config in pack", "decode.yaml", "features.yaml", "manifest of a run",
    "config of an adapter", "config of a transducer", "ESPnet SSL config", "meta.yaml", "tokenizer.json",
    "hub config.json", "hub preprocessor_config.json", "hub tokenizer_config.json", "hub vocab.json",
    "hub added_tokens.json", "hub weight index", "DeepSpeed", "ESPnet1 transformer", "ESPnet1 RNN",
)  # fmt: skip
READERS = [reader for reader in (*FILES, *MODEL_READERS) if reader.name in NAMES]
IDS = [reader.name.replace(" ", "_") for reader in READERS]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)  # undone after the test, for the tests that read the log
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def places(value: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside of `value`, and of itself."""
    yield path
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, *path, key)


def replaced(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    content = copy.deepcopy(content)
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return content


def faults(reader: Reader, folder: Path, *, most: int | None = None) -> list[str]:
    """What went wrong with each value replaced by each kind, or with `most` of them."""
    path = reader.make(folder)
    whole = path.read_text(encoding="utf-8")
    is_json = path.suffix in (".json", "") and whole.lstrip().startswith(("{", "["))
    content = json.loads(whole) if is_json else yaml.safe_load(whole)
    trials = [(place, kind) for place in places(content) for kind in KINDS]
    random.Random(0).shuffle(trials)
    found = []
    for place, kind in trials[:most]:
        changed = replaced(content, place, kind)
        path.write_text(json.dumps(changed) if is_json else yaml.safe_dump(changed), encoding="utf-8")
        outcome, what = attempt(lambda: reader.read(path), reader.is_sane)
        if outcome not in ("rejected", "accepted"):
            found.append(f"{'.'.join(map(str, place))} = {kind!r}: {outcome}: {what}")
    return found


@pytest.mark.parametrize("reader", READERS, ids=IDS)
def test_values_of_other_kinds(reader: Reader, tmp_path: Path) -> None:
    assert faults(reader, tmp_path, most=60) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("reader", READERS, ids=IDS)
def test_every_value_of_every_other_kind(reader: Reader, tmp_path: Path) -> None:
    assert faults(reader, tmp_path) == []


def test_all_readers_are_there() -> None:
    assert [reader.name for reader in READERS if reader.name not in NAMES] == []
    assert len(READERS) == len(NAMES)
