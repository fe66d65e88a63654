"""`--lm_text` and the reports of dev words that the lexicon and the language models lack."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tympan.bin import lm_calc_perplexity, lm_train
from tympan.errors import UserError
from tympan.recipe.check import check_configuration
from tympan.recipe.recipe import Recipe, parse_options
from tympan.recipe.tokens import dictionary_step
from tympan.recipe.training_steps import lm_arguments, lm_steps


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("train_nodev", "a GO NO\nb NO\n"), ("train_dev", "c GO STOP STOP\n")):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "text").write_text(text)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "lexicon.txt").write_text("GO G OW\nNO N OW\n")
    (tmp_path / "conf" / "lm.yaml").write_text("{}")
    (tmp_path / "more.txt").write_text("GO  GO\n\n NO GO\n")
    return tmp_path


def recipe(*arguments: str) -> Recipe:
    return Recipe.of(parse_options(["an4", "--ngpu", "0", *arguments]))


def test_text_for_both_language_models(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = recipe("--lm_text", "more.txt", "--lm_config", "conf/lm.yaml", "--token_type", "word")
    first, neural, units, _ = lm_steps(made)
    assert [first.name, neural.name, units.name] == ["LM text", "rnnlm", "n-gram text"]
    first.run()
    joined = here / "data" / "local" / "lm_train" / "text"
    assert joined.read_text() == "a GO NO\nb NO\nlm0-000000000 GO GO\nlm0-000000001 NO GO\n"
    assert "data/local/lm_train/text,text,text" in lm_arguments(made)
    assert "data/train_dev/text,text,text" in lm_arguments(made)
    units.run()
    assert (here / "data" / "local" / "lm_train" / "train.txt").read_text() == "GO NO\nNO\nGO GO\nNO GO\n"
    said = capsys.readouterr().out
    assert "more.txt: 2 sentences for the language models" in said
    assert "2 of 3 units of data/train_dev/text (66.7 %) are not in the LM text: STOP" in said


def test_dev_words_that_the_lexicon_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    dictionary_step(recipe().tokens, "train_nodev", "train_dev").run()
    said = capsys.readouterr().out
    expected = "2 of 3 words (66.7 %) are not in conf/lexicon.txt and become <unk>: STOP"
    assert f"data/train_dev/text: {expected}" in said
    assert "data/train_nodev/text:" not in said


def test_a_missing_file_is_found_before_any_stage() -> None:
    with pytest.raises(UserError, match=r"nothing\.txt: no such file of --lm_text"):
        check_configuration(recipe("--lm_text", "nothing.txt"), 3, 3)


def perplexity_of(sentence: str, lm_dir: Path, capsys: pytest.CaptureFixture[str]) -> float:
    Path("sentence").write_text(f"x {sentence}\n")
    files = ["--train_config", str(lm_dir / "config.yaml"), "--model_file", str(lm_dir / "valid.loss.best.pth")]
    data = ["--data_path_and_name_and_type", "sentence,text,text", "--output_dir", "ppl"]
    assert lm_calc_perplexity.main([*files, *data]) == 0
    capsys.readouterr()
    return float(Path("ppl/ppl").read_text())


def test_the_neural_lm_learns_the_text_of_the_files(
    here: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    conf = {
        "lm": "seq_rnn", "lm_conf": {"unit": 8, "nlayers": 1}, "optim": "adam", "optim_conf": {"lr": 0.1},
        "batch_type": "unsorted", "max_epoch": 4, "num_workers": 0, "use_tensorboard": False, "use_matplotlib": False,
    }  # fmt: skip
    (here / "conf" / "lm.yaml").write_text(yaml.safe_dump(conf))
    (here / "data" / "train_nodev" / "text").write_text("".join(f"a{row} GO NO\n" for row in range(6)))
    (here / "data" / "train_dev" / "text").write_text("c GO NO\n")
    (here / "more.txt").write_text("STOP STOP GO\n" * 20)
    (here / "other.txt").write_text("NO STOP\n" * 14)
    tokens = ["<blank>", "<unk>", "GO", "NO", "STOP", "<sos/eos>"]
    found = []
    for files in ([], ["--lm_text", "more.txt", "--lm_text", "other.txt"]):
        made = recipe(*files, "--lm_config", "conf/lm.yaml", "--token_type", "word")
        made.tokens.token_list.parent.mkdir(parents=True, exist_ok=True)
        made.tokens.token_list.write_text("\n".join(tokens) + "\n")
        for step in lm_steps(made)[: 1 if files else 0]:
            step.run()
        with caplog.at_level("INFO"):
            assert lm_train.main([*lm_arguments(made), "--output_dir", f"lm{len(files)}"]) == 0
        found.append(perplexity_of("STOP STOP GO", here / f"lm{len(files)}", capsys))
    assert "of 6 utterances" in caplog.text
    assert "of 40 utterances" in caplog.text
    assert found[1] < 0.5 * found[0]
