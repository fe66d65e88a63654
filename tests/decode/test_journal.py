"""Results that are not lost: a cut-off line, other settings, failures, the order of the output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tympan.decode.hypothesis import Hypothesis
from tympan.decode.journal import Journal, Result
from tympan.decode.output_tree import write_output_tree
from tympan.decode.plan import plan_by_length
from tympan.errors import UserError


def result(name: str, *texts: str) -> Result:
    found = tuple(Hypothesis(text, tuple(text), tuple(map(ord, text)), -0.5 - i, {}) for i, text in enumerate(texts))
    return Result(name, found, duration_s=1.5)


def test_results_are_there_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "logdir" / "results.jsonl"
    with Journal(path, {"beam_size": 10}) as journal:
        journal.add([result("a", "X"), Result("b", error="broken"), result("c", "Y", "Z")])
    with path.open("a") as stream:
        stream.write('{"id": "d", "nbe')
    again = Journal(path, {"beam_size": 10})
    assert again.done == {"a": result("a", "X"), "c": result("c", "Y", "Z")}
    with again:
        again.add([result("d", "W")])
    assert set(Journal(path, {"beam_size": 10}).done) == {"a", "c", "d"}


def test_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "out" / "logdir" / "results.jsonl"
    with Journal(path, {"beam_size": 10, "dtype": "float32"}) as journal:
        journal.add([result("a", "X")])
    with pytest.raises(UserError, match="beam_size was 10, now 20"):
        Journal(path, {"beam_size": 20, "dtype": "float32"})
    assert Journal(path, {"beam_size": 20, "dtype": "float32"}, resume=False).done == {}


def test_a_kill_before_the_first_line_was_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"conditi')
    with Journal(path, {"beam_size": 1}) as journal:
        journal.add([result("a", "X")])
    assert list(Journal(path, {"beam_size": 1}).done) == ["a"]


def test_output_is_in_the_inputs_order(tmp_path: Path) -> None:
    results = {name: result(name, name.upper(), "?") for name in ("b", "a", "d")}
    write_output_tree(tmp_path, ["d", "c", "b", "a"], results, nbest=2, nj=2)
    assert (tmp_path / "text").read_text() == "d D\nb B\na A\n"
    assert (tmp_path / "1best_recog" / "token_int").read_text() == "d 68\nb 66\na 65\n"
    assert (tmp_path / "2best_recog" / "score").read_text() == "d -1.5\nb -1.5\na -1.5\n"
    shares = [(tmp_path / "logdir" / f"output.{job}" / "1best_recog" / "text").read_text() for job in (1, 2)]
    assert "".join(shares) == "d D\nb B\na A\n"
    assert all(shares)


def test_batches_are_bounded_and_complete() -> None:
    lengths = [3.0, 50.0, 2.0, 7.0, 7.5, 1.0, 300.0]
    batches = plan_by_length(lengths, batch_size=3, max_total=60.0)
    assert sorted(place for batch in batches for place in batch) == list(range(7))
    assert batches[0] == [6]  # longer than the bound: alone
    for batch in batches[1:]:
        assert len(batch) <= 3
        assert len(batch) * max(lengths[place] for place in batch) <= 60.0
