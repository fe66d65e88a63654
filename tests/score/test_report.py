"""The page: its data, and how it looks and works in a real browser."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.score.report_page import browse, page_data, probed
from tympan.bin.report import main
from tympan.errors import UserError
from tympan.score.report import write_report
from tympan.score.result import score
from tympan.score.transcripts import Transcript


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Two utterances with audio, one correct and one wrong hypothesis, and a tag that would end a script."""
    rng = np.random.default_rng(0)
    for name in ("s1-a", "s2-b"):
        soundfile.write(tmp_path / f"{name}.wav", 0.1 * rng.standard_normal(8000), 16000)
    (tmp_path / "wav.scp").write_text("".join(f"{n} {tmp_path}/{n}.wav\n" for n in ("s1-a", "s2-b")))
    (tmp_path / "utt2spk").write_text("s1-a s1\ns2-b s2\n")
    (tmp_path / "text").write_text("s1-a 今天 天气\ns2-b </script> x\n", encoding="utf-8")
    (tmp_path / "hyp").write_text("s1-a 今天 天汽\ns2-b </script> x\n", encoding="utf-8")
    return tmp_path


def test_page_holds_the_result(data_dir: Path) -> None:
    page = data_dir / "out" / "report.html"
    arguments = [str(data_dir / "text"), str(data_dir / "hyp"), "--unit", "char", "--remove_space", "true"]
    assert main([*arguments, "--data_dir", str(data_dir), "--output", str(page)]) == 0
    data = page_data(page)
    assert data["systems"][0]["rate"] == pytest.approx(100 / 6)
    first, second = data["utterances"]
    assert first["a"] == [["今", "天", "天", ["S", "气", "汽"]]]
    assert (page.parent / first["audio"]).resolve() == data_dir / "s1-a.wav"
    assert first["picture"].startswith("data:image/jpeg")
    assert second["a"] == [["</script>", "x"]]


def test_sound_can_be_embedded(data_dir: Path) -> None:
    page = data_dir / "report.html"
    embedded = ["--data_dir", str(data_dir), "--embed_audio", "true", "--output", str(page)]
    assert main([str(data_dir / "text"), str(data_dir / "hyp"), *embedded]) == 0
    assert page_data(page)["utterances"][0]["audio"].startswith("data:audio/mpeg;base64,")


@pytest.mark.parametrize(("rate", "played"), [(96000, 48000), (10000, 11025), (6000, 8000), (16000, 16000)])
def test_sound_of_any_rate_and_with_nan_can_be_embedded(data_dir: Path, rate: int, played: int) -> None:
    samples = 0.1 * np.random.default_rng(0).standard_normal(rate)
    samples[[10, 20, 30]] = np.nan, np.inf, 1e30
    soundfile.write(data_dir / "s2-b.wav", samples, rate, subtype="FLOAT")
    page = data_dir / "report.html"
    # In a separate process: the MP3 encoder aborts the process on a NaN.
    files = [str(data_dir / "text"), str(data_dir / "hyp"), "--data_dir", str(data_dir), "--output", str(page)]
    command = [sys.executable, "-m", "tympan.bin.report", *files, "--embed_audio", "true"]
    subprocess.run(command, check=True, timeout=120)
    utterance = page_data(page)["utterances"][1]
    sound = base64.b64decode(utterance["audio"].removeprefix("data:audio/mpeg;base64,"))
    assert soundfile.info(io.BytesIO(sound)).samplerate == played
    assert utterance["t"] == 1.0
    assert utterance["picture"].startswith("data:image/jpeg")


def test_an_empty_recording_does_not_stop_the_report(data_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    soundfile.write(data_dir / "s2-b.wav", np.zeros(0), 16000)
    page = data_dir / "report.html"
    files = [str(data_dir / "text"), str(data_dir / "hyp"), "--data_dir", str(data_dir), "--output", str(page)]
    assert main([*files, "--embed_audio", "true"]) == 0
    assert ["audio" in utterance for utterance in page_data(page)["utterances"]] == [True, False]
    assert "s2-b.wav: has no samples" in caplog.text


@pytest.mark.parametrize("embed", ["true", "false"])
def test_a_lost_recording_does_not_stop_the_report(
    data_dir: Path, embed: str, caplog: pytest.LogCaptureFixture
) -> None:
    (data_dir / "s2-b.wav").unlink()
    page = data_dir / "report.html"
    files = [str(data_dir / "text"), str(data_dir / "hyp"), "--data_dir", str(data_dir), "--output", str(page)]
    assert main([*files, "--embed_audio", embed]) == 0
    assert ["audio" in utterance for utterance in page_data(page)["utterances"]] == [True, False]
    assert "1 utterances have no audio in the report: s2-b" in caplog.text


@pytest.mark.parametrize("pictures", ["0", "2"])
def test_a_missing_linked_recording_is_reported(
    data_dir: Path, pictures: str, caplog: pytest.LogCaptureFixture
) -> None:
    (data_dir / "s2-b.wav").unlink()
    page = data_dir / "report.html"
    files = [str(data_dir / "text"), str(data_dir / "hyp"), "--data_dir", str(data_dir), "--output", str(page)]
    assert main([*files, "--spectrograms", pictures]) == 0
    first, second = page_data(page)["utterances"]
    assert (first["t"], "audio" in second) == (0.5, False)
    assert "1 utterances have no audio in the report: s2-b" in caplog.text
    assert f"{data_dir / 's2-b.wav'}: there is no such file" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--embed_audio", "true"], "--embed_audio: needs the audio: give its data directory with --data_dir"),
        (["--nj", "0"], "--nj: must be at least 1, found 0"),
        (["--spectrograms", "-1"], "--spectrograms: must be at least 0, found -1"),
    ],
)
def test_invalid_options_are_rejected(data_dir: Path, options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        main([str(data_dir / "text"), str(data_dir / "hyp"), "--output", str(data_dir / "report.html"), *options])
    assert not (data_dir / "report.html").exists()


def test_browser_shows_two_decodes(data_dir: Path) -> None:
    page = data_dir / "report.html"
    (data_dir / "better").write_text("s1-a 今天 天气\ns2-b x\n", encoding="utf-8")
    both = [str(data_dir / "text"), str(data_dir / "hyp"), "--compare", str(data_dir / "better"), "--unit", "char"]
    assert main([*both, "--remove_space", "true", "--output", str(page)]) == 0
    dom = browse(page, "--dump-dom")
    assert dom.count('class="utt"') == 2
    assert "<s>气</s>汽" in dom
    assert "better against hyp" in dom


def test_a_page_of_one_utterance_shows_no_interval(data_dir: Path) -> None:
    page = data_dir / "report.html"
    for name in ("text", "hyp"):
        (data_dir / name).write_text((data_dir / name).read_text(encoding="utf-8").splitlines()[0], encoding="utf-8")
    files = [str(data_dir / "text"), str(data_dir / "hyp"), "--output", str(page)]
    for options, told in (([], "WER 50.0 %"), (["--compare", str(data_dir / "text")], "-50.00 points, p = 1.000")):
        assert main([*files, *options]) == 0
        dom = browse(page, "--dump-dom")
        assert 'class="utt"' in dom
        shown = " ".join(re.sub("<script.*?</script>|<[^>]*>", " ", dom, flags=re.S).split())
        assert told in shown
        assert "% CI:" not in shown


def test_two_files_of_one_name_are_distinguished(data_dir: Path) -> None:
    for name in ("small", "large"):
        (data_dir / "exp" / name / "decode").mkdir(parents=True)
        shutil.copy(data_dir / "hyp", data_dir / "exp" / name / "decode" / "text")
    first, second = (str(data_dir / "exp" / name / "decode" / "text") for name in ("small", "large"))
    page = data_dir / "report.html"
    assert main([str(data_dir / "text"), first, "--compare", second, "--output", str(page)]) == 0
    assert [system["name"] for system in page_data(page)["systems"]] == ["small", "large"]
    assert main([str(data_dir / "text"), first, "--compare", first, "--output", str(page)]) == 0
    assert [system["name"] for system in page_data(page)["systems"]] == ["text", "text"]


KEYS = """const focused = () => document.activeElement.querySelector(".id").textContent;
const key = name => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
key("j"); seen.push(focused()); key("s"); seen.push(!!document.activeElement.querySelector("img"));
key("j"); seen.push(focused()); key("k"); seen.push(focused());
key("/"); seen.push(document.activeElement.id); key("j"); seen.push(document.activeElement.id);
const errors = () => [...$("confusions").rows].slice(1).map(row => row.textContent);
seen.push(errors()); $("kind").value = "D"; $("kind").onchange(); seen.push(errors());
$("confusions").rows[1].click(); seen.push($("shown").textContent);
$("speakers").rows[0].cells[3].click(); seen.push([...$("speakers").rows].map(row => row.cells[0].textContent));
"""


def test_keys_and_clicks(data_dir: Path) -> None:
    page = data_dir / "report.html"
    (data_dir / "hyp").write_text("s1-a 今天 天汽\ns2-b </script> \n", encoding="utf-8")
    arguments = [str(data_dir / "text"), str(data_dir / "hyp"), "--data_dir", str(data_dir), "--output", str(page)]
    assert main(arguments) == 0
    assert probed(page, KEYS) == [
        *("s1-a", True, "s2-b", "s1-a", "filter", "filter"),
        ["1天气天汽sub", "1x–del"],
        ["1x–del"],
        "1 of 2",
        ["speaker", "s1", "s2"],
    ]


def test_a_click_finds_errors_of_any_token(tmp_path: Path) -> None:
    said = [("s-1", ("a", "b")), ("s-2", ("a", "b")), ("s-3", (">", "b", "<unk>")), ("s-4", ("x",)), ("s-5", ("a",))]
    heard = [("s-1", ("a", "<unk>")), ("s-2", ("a", ">")), ("s-3", ("<space>", "b"))]
    heard += [("s-4", ("x", "y>")), ("s-5", ("a",))]
    references, hypotheses = ([Transcript(u, "s", tokens) for u, tokens in side] for side in (said, heard))
    page = tmp_path / "report.html"
    write_report(page, [score(references, hypotheses, name="hyp")], unit="token", title="tokens")
    script = """for (const row of [...$("confusions").rows].slice(1)) {
      row.click(); seen.push([$("filter").value, chosen.map(u => u.id).join()]); }"""
    assert sorted(probed(page, script)) == [
        ["D:<unk> > ", "s-3"],
        ["I: > y>", "s-4"],
        ["S:> > <space>", "s-3"],
        ["S:b > <unk>", "s-1"],
        ["S:b > >", "s-2"],
    ]


def found_by(page: Path, *queries: str) -> object:
    script = "for (const query of %s) { search(query); seen.push(chosen.map(u => u.id).join()); }"
    return probed(page, script % json.dumps(queries))


def test_the_filter_finds_phrases_of_reference_and_hypothesis(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    said = [Transcript("s-1", "s", ("turn", "left")), Transcript("s-2", "s", ("go", "on"))]
    heard = [Transcript("s-1", "s", ("turn", "the", "light")), Transcript("s-2", "s", ("on",))]
    write_report(page, [score(said, heard, name="hyp")], unit="word", title="words")
    queries = ("turn left", "the light", "turn  The light ", "go on", "go  on", "left turn", "turnleft", "s s-2")
    assert found_by(page, *queries) == ["s-1", "s-1", "s-1", "s-2", "s-2", "", "s-1", ""]


def test_the_filter_finds_texts_of_characters(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    said = [Transcript("s-1", "s", tuple("今天天气")), Transcript("s-2", "s", ("h", "i", "<space>", "y", "o"))]
    heard = [Transcript("s-1", "s", tuple("今天汽")), Transcript("s-2", "s", ("h", "o", "<space>", "y", "o"))]
    write_report(page, [score(said, heard, name="hyp")], unit="char", title="characters")
    assert found_by(page, "天气", "今天汽", "hi yo", "ho yo", "<space>") == ["s-1", "s-1", "s-2", "s-2", "s-2"]


@pytest.mark.parametrize("results", [1, 2])
@pytest.mark.parametrize("width", [1300, 1000, 700])
def test_long_names_are_not_cut_off(tmp_path: Path, results: int, width: int) -> None:
    page = tmp_path / "report.html"
    speakers = [f"a_speaker_with_quite_a_long_name_of_the_year_{year}_{'x' * 20}" for year in range(2000, 2003)]
    said, heard = ([Transcript(f"{s}-1", s, (word,)) for s in speakers] for word in ("incomprehensibilities", "word"))
    names = ["conformer_large_with_a_long_name", "transformer_small_with_a_long_name"]
    scored = [score(said, heard, name=name) for name in names[:results]]
    write_report(page, scored, unit="word", title="long")
    script = """for (const name of ["confusions", "speakers", "lengths"]) {
      const box = $(name).parentElement; seen.push([name, box.scrollWidth <= box.clientWidth]); }
      seen.push(["page", document.documentElement.scrollWidth <= innerWidth]);"""
    found = probed(page, script, f"--window-size={width},900")
    assert found == [[name, True] for name in ("confusions", "speakers", "lengths", "page")]


def test_browser_opens_seven_thousand_utterances(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(50)]
    references = [Transcript(f"s{n % 20}-{n}", f"s{n % 20}", tuple(rng.choice(words, 15))) for n in range(7000)]
    heard = [Transcript(r.id, r.speaker, (*r.tokens[:-1], str(rng.choice(words)))) for r in references]
    page = tmp_path / "report.html"
    write_report(page, [score(references, heard, name="hyp")], unit="word", title="large")
    dom = browse(page, "--dump-dom", "--virtual-time-budget=5000")
    assert "7,000 of 7,000" in dom
    assert 0 < dom.count('class="utt"') < 1000
