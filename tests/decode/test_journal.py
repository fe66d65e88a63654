"""The journal of a decode: truncated lines, other settings, failures, and the order of the output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tympan.decode.hypothesis import Hypothesis
from tympan.decode.journal import Journal, Result, Utterance, origin_of
from tympan.decode.output import clear_output_tree, write_output_tree
from tympan.decode.segments import plan_by_length
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


def test_a_decode_without_results_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out" / "logdir" / "results.jsonl"
    with Journal(path, {"beam_size": 10}) as journal:
        journal.add([Result("a", error="broken")])
    with Journal(path, {"beam_size": 20}) as journal:
        journal.add([result("a", "X")])
    assert list(Journal(path, {"beam_size": 20}).done) == ["a"]


@pytest.mark.parametrize("line", ["123", "[]", '{"id": "b"}', '{"id": "b", "nbest": 3, "duration_s": 1}'])
def test_a_broken_line_ends_the_valid_results(tmp_path: Path, line: str) -> None:
    path = tmp_path / "results.jsonl"
    with Journal(path, {}) as journal:
        journal.add([result("a", "X")])
    whole = path.read_text()
    path.write_text(f"{whole}{line}\n")
    assert list(Journal(path, {}).done) == ["a"]
    assert path.read_text() == whole
    path.write_text(f"{line}\n")
    assert Journal(path, {}).done == {}


def test_files_of_a_larger_tree_are_removed(tmp_path: Path) -> None:
    results = {name: result(name, "X", "Y", "Z") for name in "abcd"}
    write_output_tree(tmp_path, list("abcd"), results, nbest=3, nj=3)
    (tmp_path / "logdir" / "output.log").touch()
    (tmp_path / "3best_recog" / "notes").touch()
    write_output_tree(tmp_path, list("ab"), results, nbest=1, nj=2)
    left = {path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("text")}
    assert left == {".", "1best_recog", "logdir/output.1/1best_recog", "logdir/output.2/1best_recog"}
    clear_output_tree(tmp_path)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"logdir/output.log", "3best_recog/notes"}


def test_a_kill_before_the_first_line_was_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"conditi')
    with Journal(path, {"beam_size": 1}) as journal:
        journal.add([result("a", "X")])
    assert list(Journal(path, {"beam_size": 1}).done) == ["a"]


def test_results_of_another_recording_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Journal(path, {}) as journal:
        journal.add([replace(result(name, "X"), origin=f"{name}.wav 9 1") for name in "abc"] + [result("old", "Y")])
    again = Journal(path, {})
    origins = {"a": "a.wav 9 1", "b": "b.wav 9 2", "old": "old.wav 9 1"}
    assert again.drop_changed(origins) == 2
    assert set(again.done) == {"a", "c"}
    with again:
        again.add([replace(result("b", "Z"), origin=origins["b"])])
    assert Journal(path, {}).done["b"].hypotheses[0].text == "Z"


def test_a_journal_without_origins_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text('{"conditions": {}}\n{"id": "a", "duration_s": 1.5, "nbest": []}\n')
    assert Journal(path, {}).done["a"].origin is None


def test_the_origin_changes_with_the_recording(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).write_bytes(b"xx")
    (tmp_path / "wav.scp").write_text("rec a.wav\n")
    one = Utterance("u", "a.wav", "sound", tmp_path)
    part = Utterance("u", "rec 0.5 1.5", "segments", tmp_path)
    before = [origin_of(source) for source in (one, part)]
    assert before == [origin_of(source) for source in (one, part)]
    (tmp_path / "a.wav").write_bytes(b"xxx")
    after = [origin_of(source) for source in (one, part)]
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert origin_of(replace(one, value="b.wav")) != after[0]
    assert origin_of(replace(one, value="cat a.wav |")) == "cat a.wav |; cat a.wav |"
    assert origin_of(replace(one, value="1 2", data_type="text_int")) == "1 2"


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
    assert batches[0] == [6]  # longer than the limit: a batch of its own
    for batch in batches[1:]:
        assert len(batch) <= 3
        assert len(batch) * max(lengths[place] for place in batch) <= 60.0
