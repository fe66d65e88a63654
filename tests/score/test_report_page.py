"""Speakers, rates, errors and missing hypotheses on the page, in its data and in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.score.report_page import page_data, probed
from tympan.bin.report import main
from tympan.score.report import write_report
from tympan.score.result import ScoreResult, score
from tympan.score.sclite_table import speakers_of
from tympan.score.transcripts import Transcript, Unit

SHOWN_RATES = """for (const name of ["speakers", "lengths"])
  seen.push([...$(name).rows].slice(1).map(row => [...row.cells].slice(1).map(cell => cell.textContent.trim())));
seen.push([...document.querySelectorAll(".head")].map(head => head.textContent));"""


def scored(said: dict[str, str], heard: dict[str, str], *, case_sensitive: bool = False) -> ScoreResult:
    references, hypotheses = (
        [Transcript(name, name.split("-")[0], tuple(text.split())) for name, text in side.items()]
        for side in (said, heard)
    )
    return score(references, hypotheses, name="hyp", case_sensitive=case_sensitive)


@pytest.mark.parametrize("case_sensitive", [True, False])
def test_speakers_are_those_of_the_score(tmp_path: Path, case_sensitive: bool) -> None:
    said = {"S1-a": "x y", "s1-b": "x", "s2-c": "x"}
    result = scored(said, {**said, "s1-b": "z"}, case_sensitive=case_sensitive)
    write_report(tmp_path / "report.html", [result], unit="word", title="speakers")
    data = page_data(tmp_path / "report.html")
    found = {group["name"]: group["sentences"] for group in data["speakers"]}
    assert found == {name: len(utterances) for name, utterances in speakers_of(result).items()}
    assert found == ({"S1": 1, "s1": 1, "s2": 1} if case_sensitive else {"s1": 2, "s2": 1})
    assert {utterance["s"] for utterance in data["utterances"]} == found.keys()


def test_rates_are_of_the_words_that_each_system_was_aligned_with(tmp_path: Path) -> None:
    (tmp_path / "ref.trn").write_text("{ a b c d / e } f (s-1)\n")
    (tmp_path / "one.trn").write_text("e x (s-1)\n")
    (tmp_path / "two.trn").write_text("a b c d x (s-1)\n")
    ref, one, two, page = (str(tmp_path / name) for name in ("ref.trn", "one.trn", "two.trn", "report.html"))
    assert main([ref, one, "--compare", two, "--output", page]) == 0
    data = page_data(Path(page))
    rates = [50.0, 20.0]
    assert [system["rate"] for system in data["systems"]] == rates
    for entry, errors, words in (
        *((group, "errors", "words") for group in (*data["speakers"], *data["lengths"])),
        (data["utterances"][0], "e", "n"),
    ):
        assert [100 * e / n for e, n in zip(entry[errors], entry[words], strict=True)] == rates
    groups = [["1", "2 / 5", "50.0 % 20.0 %"]]
    assert probed(Path(page), SHOWN_RATES) == [groups, groups, ["s-1s1 error (50.0 %) → 1 error (20.0 %)"]]


@pytest.mark.parametrize(
    ("case_sensitive", "found"),
    [
        (True, {"S:A > a": "s-1", "S:a > A": "s-2", "S:É > é": "s-3", "S:é > É": "s-4", "S:B > x": "s-5"}),
        (False, {"S:É > é": "s-3", "S:é > É": "s-4", "S:b > x": "s-5"}),
    ],
)
def test_a_click_on_an_error_lists_what_it_counts(tmp_path: Path, case_sensitive: bool, found: dict[str, str]) -> None:
    said = {"s-1": "A", "s-2": "a", "s-3": "É", "s-4": "é", "s-5": "B"}
    heard = {"s-1": "a", "s-2": "A", "s-3": "é", "s-4": "É", "s-5": "x"}
    page = tmp_path / "report.html"
    write_report(page, [scored(said, heard, case_sensitive=case_sensitive)], unit="word", title="case")
    script = """for (const row of [...$("confusions").rows].slice(1)) {
      row.click(); seen.push([$("filter").value, chosen.map(u => u.id).join()]); }"""
    assert dict(probed(page, script)) == found


@pytest.mark.parametrize(
    ("unit", "noun", "heading"),
    [
        ("char", "characters", "chars"),
        ("word", "words", "words"),
        ("token", "tokens", "tokens"),
        ("mixed", "characters and words", "units"),
    ],
)
def test_units_are_named_on_the_page(tmp_path: Path, unit: Unit, noun: str, heading: str) -> None:
    page = tmp_path / "report.html"
    write_report(page, [scored({"s1-1": "a b"}, {"s1-1": "c"})], unit=unit, title="units")
    script = """seen.push($("subtitle").textContent);
      for (const name of ["speakers", "lengths"]) {
        const box = $(name).parentElement;
        seen.push([$(name).rows[0].cells[2].textContent, box.scrollWidth <= box.clientWidth]); }"""
    subtitle, *headings = probed(page, script, "--window-size=1100,900")
    assert subtitle.startswith(f"1 utterances, 2 reference {noun}. Tympan")
    assert headings == [[heading, True], [heading, True]]


def test_players_and_scrollbars_follow_the_scheme(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(page, [scored({"s-1": "a"}, {"s-1": "a"})], unit="word", title="scheme")
    assert probed(page, "seen.push(getComputedStyle(document.documentElement).colorScheme);") == ["light dark"]


def test_references_without_a_hypothesis_are_listed_on_the_page(tmp_path: Path) -> None:
    said = {f"s-{n}": "a" for n in range(7)}
    whole, partial = scored(said, said), scored(said, {"s-6": "a"})
    told = "References without a hypothesis, counted as deletions: 6 (s-0, s-1, s-2, s-3, s-4 and 1 more)"
    for results, shown in (([whole], []), ([partial], [told]), ([whole, partial], [f"hyp: {told}"])):
        page = tmp_path / "report.html"
        write_report(page, results, unit="word", title="missing")
        assert probed(page, 'seen.push(...[...$("missing").children].map(line => line.textContent));') == shown
