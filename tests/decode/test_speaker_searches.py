"""Decoding of models for several speakers: ESPnet2's n-best lists (benchmarks/peer_speakers.py), files and messages."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.models import speaker_cases as cases
from tests.models.test_speakers import GOLDEN, filled
from tympan.bin import asr_inference, pack
from tympan.config import dump_config
from tympan.config.asr import AsrTrainConfig
from tympan.config.read import make_training_config
from tympan.decode.hypothesis import Hypothesis, by_speaker
from tympan.decode.journal import Result
from tympan.decode.output import clear_output_tree, write_output_tree
from tympan.decode.recognizer import Recognizer
from tympan.errors import UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment directory with the model of ESPnet2's n-best lists, and its features."""
    made = tmp_path_factory.mktemp("speakers")
    config = make_training_config(AsrTrainConfig, [], cases.MODELS["two"])
    (made / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    torch.save(filled("two").state_dict(), made / "valid.acc.best.pth")
    lines = []
    for index, speech in enumerate(features()):
        np.save(made / f"{index}.npy", speech)
        lines.append(f"mix{index} {made / f'{index}.npy'}\n")
    (made / "feats.scp").write_text("".join(lines), encoding="utf-8")
    return made


def features() -> list[np.ndarray]:
    return [speech.numpy() for speech in cases.batch(2)["speech"]]


def assert_lists(found: Sequence[Sequence[Hypothesis]], expected: list[list[Any]]) -> None:
    """N-best lists of the speakers of one recording."""
    for speaker, (ranked, values) in enumerate(zip(found, expected, strict=True), start=1):
        assert [hypothesis.text for hypothesis in ranked] == [text for text, _, _ in values]
        assert [list(hypothesis.token_ids) for hypothesis in ranked] == [ids for _, ids, _ in values]
        assert [hypothesis.score for hypothesis in ranked] == pytest.approx([score for *_, score in values], abs=1e-4)
        assert {hypothesis.speaker for hypothesis in ranked} == {speaker}


@pytest.mark.parametrize("name", cases.SEARCHES)
def test_lists_of_each_speaker_are_those_of_espnet2(name: str, folder: Path) -> None:
    recognizer = Recognizer.from_pretrained(folder, **cases.SEARCHES[name])
    together = recognizer.decode(features())
    for speech, hypotheses, expected in zip(features(), together, GOLDEN[f"search {name}"], strict=True):
        assert_lists(by_speaker(hypotheses), expected)
        (alone,) = recognizer.decode([speech])
        assert_lists(by_speaker(alone), expected)


def test_a_data_directory_is_decoded_into_files_of_each_speaker(folder: Path, tmp_path: Path) -> None:
    options = [f"--{name}={value}" for name, value in cases.SEARCHES["joint"].items()]
    arguments = ["--output_dir", str(tmp_path), "--asr_model_file", str(folder / "valid.acc.best.pth"), *options]
    arguments += ["--data_path_and_name_and_type", f"{folder / 'feats.scp'},speech,npy", "--multi_asr", "true"]
    assert asr_inference.main(arguments) == 0
    for speaker in range(2):
        for rank in range(3):
            golden = [utterance[speaker][rank] for utterance in GOLDEN["search joint"]]
            written = {
                kind: (tmp_path / f"{rank + 1}best_recog" / f"{kind}_spk{speaker + 1}").read_text().splitlines()
                for kind in ("text", "token", "token_int", "score")
            }
            assert written["text"] == [f"mix{index} {text}" for index, (text, _, _) in enumerate(golden)]
            assert written["token"] == [f"mix{index} {' '.join(text)}" for index, (text, _, _) in enumerate(golden)]
            ids = [f"mix{index} {' '.join(map(str, numbers))}" for index, (_, numbers, _) in enumerate(golden)]
            assert written["token_int"] == ids
            scores = [float(line.split()[1]) for line in written["score"]]
            assert scores == pytest.approx([score for *_, score in golden], abs=1e-4)
        best = (tmp_path / "1best_recog" / f"text_spk{speaker + 1}").read_text()
        assert (tmp_path / f"text_spk{speaker + 1}").read_text() == best
    assert not (tmp_path / "text").exists()
    entries = [json.loads(line) for line in (tmp_path / "hyps.jsonl").read_text().splitlines()]
    assert [(entry["id"], entry["speaker"]) for entry in entries] == [(f"mix{i}", n) for i in range(5) for n in (1, 2)]
    assert {tuple(line.split()[:2]) for line in (tmp_path / "ctm").read_text().splitlines()} == {
        (f"mix{index}", channel) for index in range(5) for channel in "12"
    }
    # A decode that continues reads the speakers from its journal
    before = (tmp_path / "2best_recog" / "text_spk2").read_text()
    (tmp_path / "2best_recog" / "text_spk2").unlink()
    assert asr_inference.main(arguments) == 0
    assert (tmp_path / "2best_recog" / "text_spk2").read_text() == before


def test_files_of_a_job_without_results_and_of_an_earlier_decode(tmp_path: Path) -> None:
    one = Hypothesis("a", ("a",), (2,), -1.0, {}, times=((0.0, 0.1),), token_confidences=(0.5,), speaker=1)
    two = dataclasses.replace(one, text="b", speaker=2)
    results = {"u": Result("u", (one, dataclasses.replace(one, text="c"), two))}
    written = write_output_tree(tmp_path, ["u"], results, nbest=2, nj=2)
    assert written == [tmp_path / "text_spk1", tmp_path / "text_spk2"]
    assert (tmp_path / "2best_recog" / "text_spk1").read_text() == "u c\n"
    assert (tmp_path / "2best_recog" / "text_spk2").read_text() == ""
    assert (tmp_path / "logdir" / "output.2" / "1best_recog" / "text_spk2").read_text() == ""
    clear_output_tree(tmp_path)
    assert not list(tmp_path.rglob("*_spk*"))
    single = {"u": Result("u", (dataclasses.replace(one, speaker=None),))}
    assert write_output_tree(tmp_path, ["u"], single, nbest=1, nj=1) == [tmp_path / "text"]


def test_what_a_model_of_several_speakers_can_not_do(folder: Path, tmp_path: Path) -> None:
    recognizer = Recognizer.from_pretrained(folder)
    speech = features()[0]
    with pytest.raises(UserError, match=r"recognizes 2 speakers of a recording: use `recognizer.speakers\(audio\)`"):
        recognizer(speech)
    with pytest.raises(UserError, match="alignment is for models of one speaker"):
        recognizer.align(speech, "abc")
    with pytest.raises(UserError, match="no single output"):
        recognizer.encode(speech)


def test_hypotheses_keep_their_speaker_in_json() -> None:
    hypothesis = Hypothesis("a", ("a",), (2,), -1.0, {}, speaker=2)
    assert Hypothesis.from_dict(json.loads(json.dumps(hypothesis.as_dict()))) == hypothesis
    assert hypothesis.to_dict()["speaker"] == 2
    assert "speaker" not in dataclasses.replace(hypothesis, speaker=None).as_dict()


def test_a_packed_model_gives_the_same_lists(folder: Path, tmp_path: Path) -> None:
    files = ["--asr_train_config", str(folder / "config.yaml"), "--asr_model_file", str(folder / "valid.acc.best.pth")]
    assert pack.main([str(tmp_path / "model"), *files]) == 0
    recognizer = Recognizer.from_pretrained(tmp_path / "model", **cases.SEARCHES["attention"])
    (hypotheses,) = recognizer.decode(features()[:1])
    assert_lists(by_speaker(hypotheses), GOLDEN["search attention"][0])
