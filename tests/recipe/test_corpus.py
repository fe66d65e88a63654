"""A corpus defined here, outside the package: the recipe needs only one object and one name."""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tympan.bin.recipe import main
from tympan.data.kaldi_dir import DataDir
from tympan.errors import UserError
from tympan.recipe.corpus import CORPORA, Archive, Corpus
from tympan.recipe.recipe import Recipe, parse_options
from tympan.recipe.run import build_stages

SETS = {"learn": ("anna-1", "anna-2", "bert-1"), "choose": ("cleo-1",), "exam": ("dora-1",)}


def read_beeps(data: Path) -> Mapping[str, DataDir]:
    """`beeps/SET/anna-1.wav` with its sentence in `anna-1.txt`."""
    sets = {}
    for name in SETS:
        wavs = {path.stem: path for path in (data / "beeps" / name).glob("*.wav")}
        tables = {
            "wav.scp": {key: str(path.resolve()) for key, path in wavs.items()},
            "text": {key: path.with_suffix(".txt").read_text().strip() for key, path in wavs.items()},
        }
        sets[name] = DataDir(data, tables)
    return sets


BEEPS = Corpus(
    name="beeps",
    train="learn",
    dev="choose",
    tests=("exam",),
    archives=(Archive(name="beeps", file="beeps.tgz", makes="beeps", size_bytes=1_000_000),),
    prepare=read_beeps,
    sources=lambda data: [data / "beeps"],
    speaker=lambda utterance: utterance.partition("-")[0],
    clean_text=str.upper,
    defaults={"feats_type": "fbank", "speeds": "1.0", "lm_config": "", "n_gram": 2},
    hours={"learn": 200.0, "choose": 2.0, "exam": 1.0},
    vocab_sizes={"char": 28},
    utterance_s=0.5,
)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the archive and the settings, where 'beeps' is a registered name."""
    for name, utterances in SETS.items():
        folder = tmp_path / "made" / "beeps" / name
        folder.mkdir(parents=True)
        for number, utterance in enumerate(utterances):
            samples = np.random.default_rng(number).normal(0, 0.1, 8000)
            soundfile.write(folder / f"{utterance}.wav", samples, 16_000)
            (folder / f"{utterance}.txt").write_text(f"beep {utterance[0]}\n")
    (tmp_path / "archives").mkdir()
    with tarfile.open(tmp_path / "archives" / "beeps.tgz", "w:gz") as tar:
        tar.add(tmp_path / "made" / "beeps", "beeps")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "fbank.conf").write_text("--num-mel-bins=80\n")
    (tmp_path / "conf" / "train.yaml").write_text(
        "encoder: conformer\nencoder_conf: {output_size: 8, attention_heads: 2, linear_units: 8, num_blocks: 1}\n"
        "decoder: transformer\ndecoder_conf: {attention_heads: 2, linear_units: 8, num_blocks: 1}\n"
        "batch_type: unsorted\nbatch_size: 2\nmax_epoch: 2\n"
    )
    (tmp_path / "conf" / "decode.yaml").write_text("beam_size: 2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(CORPORA, "beeps", BEEPS)
    return tmp_path


def test_first_stages(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["beeps", "--data_url", "archives", "--stage", "-1", "--stop_stage", "3", "--ngpu", "0"]) == 0
    said = capfd.readouterr().out
    assert "learn: 3 utterances of 2 speakers" in said
    learn = DataDir.read(Path("data", "learn"))
    assert learn.utt2spk == {"anna-1": "anna", "anna-2": "anna", "bert-1": "bert"}
    assert learn.text == {"anna-1": "BEEP A", "anna-2": "BEEP A", "bert-1": "BEEP B"}
    tokens = Path("data", "lang_1char", "tokens.txt").read_text().split()
    assert tokens == ["<blank>", "<unk>", "<space>", "A", "B", "E", "P", "<sos/eos>"]
    entries = json.loads(Path("dump", "learn", "deltafalse", "data.json").read_text())["utts"]
    assert entries["bert-1"]["utt2spk"] == "bert"
    assert entries["bert-1"]["input"][0]["shape"][1] == 80
    assert Path("exp", "train_ngram", "2gram.arpa").is_file()
    assert main(["beeps", "--data_url", "archives", "--stage", "-1", "--stop_stage", "3", "--ngpu", "0"]) == 0
    said = capfd.readouterr().out
    assert "done in" not in said
    assert "unpack beeps: beeps is unpacked in downloads already" in said


def test_check_before_anything_is_there(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["beeps", "--data_url", "archives", "--stage", "-1", "--ngpu", "0", "--check"]) == 0
    said = capfd.readouterr().out
    assert "none in downloads: stage -1 downloads them from archives" in said
    hours = 200 * (workplace / "archives" / "beeps.tgz").stat().st_size / 1_000_000
    assert f"{hours:.1f} hours of training data (from the size of the archives); speed perturbation: none" in said
    assert "all checks passed" in said
    assert not Path("downloads").exists()


def test_names_of_the_sets_are_in_every_stage(workplace: Path) -> None:
    recipe = Recipe.of(parse_options(["beeps", "--ngpu", "0", "--speeds", "0.9 1.0"]))
    for name in ("choose", "exam"):
        (workplace / "data" / name).mkdir(parents=True)
        (workplace / "data" / name / "wav.scp").touch()
    names = {stage.name: [step.name for step in stage.steps()] for stage in build_stages(recipe)}
    assert names == {
        "download": ["download beeps", "unpack beeps"],
        "data": ["prepare data"],
        "features": [
            "speed learn", "features learn_sp", "features choose", "features exam", "cmvn", "dump learn_sp",
            "dump choose", "dump exam",
        ],
        "dictionary": ["dictionary", "lengths learn_sp", "lengths choose", "lengths exam"],
        "lm": ["n-gram text", "n-gram 2gram"],
        "train": ["train learn_sp_pytorch_train", "features of learn_sp_pytorch_train"],
        "decode": [
            "average learn_sp_pytorch_train",
            *(
                f"{deed} {name}_model.last10.avg_decode_2gram"
                for name in ("choose", "exam")
                for deed in ("decode", "score cer", "report")
            ),
            "pack learn_sp_pytorch_train",
        ],
    }  # fmt: skip


def test_a_corpus_of_a_module_needs_no_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_beeps.py").write_text(
        "from tympan.recipe.corpus import Corpus\n"
        "HUM = Corpus(name='hum', prepare=lambda data: {}, defaults={'token_type': 'word'})\n"
        "WRONG = 3\n"
        "ODD = Corpus(name='odd', prepare=lambda data: {}, defaults={'tokens': 'word'})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    options = parse_options(["my_beeps:HUM"])
    assert options.token_type == "word"
    assert Recipe.of(options).corpus.name == "hum"
    with pytest.raises(UserError, match=r"the module 'my_beeps' has no .*\.Corpus 'WRONG'"):
        parse_options(["my_beeps:WRONG"])
    with pytest.raises(UserError, match=r"corpus 'my_beeps:ODD': `defaults` has 'tokens', which is not an option"):
        parse_options(["my_beeps:ODD"])
    sys.modules.pop("my_beeps")


def test_the_tutorials_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of the documentation, on an archive with the layout of the real one."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
    (code,) = [block for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "Corpus(" in block]
    (tmp_path / "yesno.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("waves_yesno").mkdir()
    Path("conf").mkdir()
    Path("conf", "fbank.conf").write_text("--sample-frequency=8000\n--num-mel-bins=20\n")
    for name in ("0_0_1_0", "0_1_1_1", "1_0_0_1"):
        soundfile.write(Path("waves_yesno", f"{name}.wav"), np.random.default_rng(0).normal(0, 0.1, 4000), 8000)
    with tarfile.open("waves_yesno.tar.gz", "w:gz") as tar:
        tar.add("waves_yesno")
    arguments = ["yesno:YESNO", "--data_url", str(tmp_path), "--stage", "-1", "--stop_stage", "2", "--speeds", "1.0"]
    assert main(arguments) == 0
    sets = {name: DataDir.read(Path("data", name)) for name in ("train", "dev", "test")}
    assert {name: one.text for name, one in sets.items()} == {
        "train": {"0_0_1_0": "NO NO YES NO"},
        "dev": {"0_1_1_1": "NO YES YES YES"},
        "test": {"1_0_0_1": "YES NO NO YES"},
    }
    assert sets["test"].utt2spk == {"1_0_0_1": "speaker1"}
    assert Path("data/lang_word/tokens.txt").read_text().split() == ["<blank>", "<unk>", "NO", "YES", "<sos/eos>"]
    sys.modules.pop("yesno")


def test_archive_of_another_name(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(BEEPS, archives=(Archive(name="beeps", file="beeps.tgz", makes="boops"),))
    monkeypatch.setitem(CORPORA, "beeps", other)
    with pytest.raises(UserError, match="does not contain boops: it is not the archive of beeps"):
        main(["beeps", "--data_url", "archives", "--stage", "-1", "--stop_stage", "-1"])


def test_missing_training_set(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CORPORA, "beeps", replace(BEEPS, present=lambda data: ["learn", "exam"]))
    with pytest.raises(UserError, match="has 'learn' and 'exam', but training needs 'learn' and 'choose'"):
        main(["beeps", "--data_url", "archives", "--stage", "-1", "--stop_stage", "0"])
