"""Tokens and feature sources: stages call their methods and never check which kind they have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tympan.decode.search import find_search
from tympan.errors import UserError
from tympan.recipe.decode_steps import decode_steps
from tympan.recipe.recipe import Recipe, parse_options
from tympan.recipe.stage import Step
from tympan.recipe.stored_features import StoredFeatures

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "tympan" / "recipe"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "train.yaml").write_text("{normalize: global_mvn}")
    (tmp_path / "conf" / "fbank.conf").write_text("--num-mel-bins=80\n")
    (tmp_path / "conf" / "pitch.conf").write_text("")
    (tmp_path / "conf" / "lexicon.txt").write_text("GO G OW\nYES Y EH S\n")
    (tmp_path / "text").write_text("a GO YES\nb YES\n")
    return tmp_path


def recipe(*arguments: str) -> Recipe:
    return Recipe.of(parse_options(["aishell", *arguments]))


@pytest.mark.parametrize("option", ["feats_type", "token_type"])
def test_only_one_module_compares_the_option(option: str) -> None:
    found = [
        path.name
        for path in PACKAGE.glob("*.py")
        if re.search(rf"{option} *(==|!=|in )|(==|!=) *[\w.]*{option}\b", path.read_text(encoding="utf-8"))
    ]
    assert found == (["recipe.py"] if option == "feats_type" else [])


@pytest.mark.parametrize(
    ("arguments", "directory", "training", "decoding"),
    [
        ([], "lang_1char", [], []),
        (["--token_type", "word"], "lang_word", [], []),
        (
            ["--token_type", "bpe", "--nbpe", "50"],
            "lang_bpe50",
            ["--bpemodel", "data/lang_bpe50/bpe.model"],
            ["--bpemodel", "data/lang_bpe50/bpe.model"],
        ),
        (["--token_type", "phn"], "lang_phn", ["--g2p", "conf/lexicon.txt"], []),
    ],
)
def test_tokens_for_the_commands(
    arguments: list[str], directory: str, training: list[str], decoding: list[str]
) -> None:
    tokens = recipe(*arguments).tokens
    kind = arguments[1] if arguments else "char"
    assert tokens.token_list == Path("data", directory, "tokens.txt")
    shared = ["--token_type", kind, "--token_list", str(tokens.token_list)]
    assert tokens.training_arguments() == [*shared, *training]
    assert tokens.decoding_arguments() == decoding


def test_units_of_the_n_gram_are_tokens_or_the_words_of_phones() -> None:
    assert recipe().tokens.ngram_units()("GO YES") == ["G", "O", "<space>", "Y", "E", "S"]
    phones = recipe("--token_type", "phn").tokens
    assert phones.tokenizer().text2tokens("GO YES") == ["G", "OW", "Y", "EH", "S"]
    assert phones.ngram_units()("GO YES") == ["GO", "YES"]
    assert (recipe().tokens.ngram_settings, phones.ngram_settings) == ({}, {"unit": "word"})


def test_token_lists() -> None:
    sentences = ["GO YES", "YES"]
    assert recipe("--token_type", "word").tokens.find(sentences, Path("text"))[2:-1] == ["GO", "YES"]
    assert recipe("--token_type", "phn").tokens.find(sentences, Path("text"))[2:-1] == ["EH", "G", "OW", "S", "Y"]
    with pytest.raises(UserError, match=r"conf/lexicon\.txt lacks 1 of the 1 words of text, such as STOP: check"):
        recipe("--token_type", "phn").tokens.find(["STOP"], Path("text"))
    with pytest.raises(UserError, match="text contains no text"):
        recipe().tokens.find([""], Path("text"))


def test_expected_sizes() -> None:
    sizes = {
        kind: recipe("--token_type", kind, "--nbpe", "50").tokens.expected_size(recipe().corpus)
        for kind in ("char", "word", "bpe", "phn")
    }
    assert sizes == {"char": 4233, "word": 1000, "bpe": 50, "phn": 100}


def test_phones_need_the_search_for_words() -> None:
    recipe().tokens.check_search(find_search("joint"), "conf/decode.yaml")
    phones = recipe("--token_type", "phn").tokens
    phones.check_search(find_search("lexicon"), "conf/decode.yaml")
    with pytest.raises(UserError, match="'search: lexicon' to output words; the file has search: joint"):
        phones.check_search(find_search("joint"), "conf/decode.yaml")


def test_raw_audio() -> None:
    raw = recipe("--feats_type", "raw")
    assert raw.train_set == "train"
    assert raw.features.feature_steps(raw.corpus) == []
    assert raw.features.length_steps(["train"]) == []
    arguments = raw.features.training_arguments(raw.corpus)
    stats = "exp/asr_stats_raw_char_train"
    assert arguments[:2] == ["--train_data_path_and_name_and_type", "data/train/wav.scp,speech,sound"]
    assert f"{stats}/valid/text_shape.char" in arguments
    assert arguments[-6:] == [
        "--normalize_conf", f"stats_file={stats}/train/feats_stats.npz", "--speed_perturb", "0.9", "1.0", "1.1",
    ]  # fmt: skip
    assert raw.features.recordings(["dev"]) == [Path("data/dev/wav.scp")]
    assert (raw.features.steps_per_second, raw.features.step_dim, raw.features.copies) == (16_000, 1, 1.0)
    assert raw.features.disk_bytes(100.0, changed_s=50.0) == 0


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        ("frontend_conf: {fs: 8k}", 8000),
        ("frontend_conf: {fs: 44100}", 44100),
        ("{preprocessor_conf: {fs: 8000}, frontend_conf: {fs: 16000}}", 8000),
        ("{}", 16000),
    ],
)
def test_seconds_of_raw_audio_have_the_sample_rate_of_the_training(
    written: str, rate: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, `--check` measured 5 s of noise at 16 kHz for every sample rate."""
    import torch

    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text(written)
    raw = recipe("--feats_type", "raw", "--train_config", "train.yaml")
    assert raw.features.steps_per_second == rate
    assert raw.features.noise(0.5, torch.device("cpu")).shape == (2, rate // 2)


def test_speeds_have_one_owner() -> None:
    with pytest.raises(UserError, match=r"--speeds 1\.0 and --asr_args '--speed_perturb \.\.\.' set the same factors"):
        recipe("--feats_type", "raw", "--speeds", "1.0", "--asr_args", "--speed_perturb 0.9 1.1").features.check()
    recipe("--feats_type", "raw", "--asr_args", "--speed_perturb 0.9 1.1").features.check()


@pytest.mark.parametrize(
    ("written", "typed", "expected"),
    [
        ("{}", [], ["--speed_perturb", "0.9", "1.0", "1.1"]),
        ("{}", ["--speeds", "1.0"], []),
        ("{}", ["--speeds", "0.8 1.0"], ["--speed_perturb", "0.8", "1.0"]),
        ("{speed_perturb: [0.85, 1.0, 1.25]}", [], []),
        ("{speed_perturb: [0.85, 1.0, 1.25]}", ["--speeds", "1.0"], ["--speed_perturb", "1.0"]),
        ("{speed_perturb: [0.85, 1.0, 1.25]}", ["--speeds", "0.9,1.1"], ["--speed_perturb", "0.9", "1.1"]),
    ],
)
def test_speeds_are_the_typed_ones_or_those_of_the_training_configuration(
    here: Path, written: str, typed: list[str], expected: list[str]
) -> None:
    (here / "conf" / "train.yaml").write_text(written)
    raw = recipe("--feats_type", "raw", *typed)
    arguments = raw.features.training_arguments(raw.corpus)
    start = arguments.index("--speed_perturb") if "--speed_perturb" in arguments else len(arguments)
    assert arguments[start:] == expected


def test_segments_are_read_where_they_are(here: Path) -> None:
    (here / "data" / "dev").mkdir(parents=True)
    (here / "data" / "dev" / "segments").touch()
    assert recipe("--feats_type", "raw").features.decoding_data("dev") == "data/dev/segments,speech,segments"


@pytest.mark.parametrize(
    ("arguments", "dim"),
    [([], 83), (["--feats_type", "fbank"], 80), (["--do_delta", "true"], 249)],
    ids=["pitch", "fbank", "deltas"],
)
def test_stored_features(arguments: list[str], dim: int) -> None:
    stored = recipe(*arguments)
    dump = f"dump/train_sp/delta{'true' if dim == 249 else 'false'}"
    assert stored.train_set == "train_sp"
    found = stored.features.training_arguments(stored.corpus)
    assert found[:2] == ["--train_data_path_and_name_and_type", f"{dump}/feats.scp,speech,kaldi_ark"]
    assert found[-6:] == ["--input_size", str(dim), "--frontend", "null", "--normalize", "null"]
    assert Path(dump, "text_shape.char") in stored.features.training_needs("train_sp")
    assert stored.features.recordings(["train_sp"]) == []
    assert (stored.features.steps_per_second, stored.features.step_dim) == (100, dim)
    assert stored.features.copies == pytest.approx(1 / 0.9 + 1 + 1 / 1.1)
    # Raw and normalized features, compressed to one byte per value, and flac of the perturbed audio.
    plain_dim = 83 if dim != 80 else 80
    assert stored.features.disk_bytes(10.0, changed_s=1.0) == 10 * 100 * (plain_dim + dim) + 32_000 * 0.55
    plain = recipe(*arguments, "--compress", "false")
    assert plain.features.disk_bytes(10.0, changed_s=1.0) == 10 * 100 * 4 * (plain_dim + dim) + 32_000 * 0.55


def test_compression_is_passed_to_both_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compression is the default and no new setting: a directory that an older version finished stays finished."""

    def steps(*arguments: str) -> dict[str, Step]:
        made = recipe(*arguments)
        found = {step.name: step for step in made.features.feature_steps(made.corpus)}
        return {name: found[name] for name in ("features train_sp", "dump train_sp")}

    commands: list[Sequence[str]] = []
    monkeypatch.setattr(
        "tympan.recipe.stored_features._make_features", lambda arguments, *_: commands.append(arguments)
    )
    for step in steps().values():
        assert "compress" not in step.settings
    for step in steps("--compress", "false").values():
        assert step.settings["compress"] is False
    steps()["features train_sp"].run()
    steps("--compress", "false")["features train_sp"].run()
    assert commands[0][-2:] == ["--compression_method", "2"]
    assert "--compression_method" not in commands[1]
    assert steps()["dump train_sp"].run.args[1][-2:] == ["--compression_method", "2"]
    assert "--compression_method" not in steps("--compress", "false")["dump train_sp"].run.args[1]


def test_stored_features_miss_their_settings(here: Path) -> None:
    (here / "conf" / "pitch.conf").unlink()
    with pytest.raises(UserError, match=r"--pitch_config: there is no file conf/pitch\.conf"):
        recipe().features.check()
    recipe("--feats_type", "fbank").features.check()
    assert isinstance(recipe().features, StoredFeatures)


def test_a_model_that_training_did_not_save(here: Path) -> None:
    """`--recog_model model.acc.best` of a model without a decoder: training it again would not help."""
    made = recipe("--feats_type", "raw", "--n_average", "0", "--recog_model", "model.acc.best")
    for path in (
        made.asr_dir / "3epoch.pth",
        made.asr_dir / "valid.cer_ctc.best.pth",
        here / "data" / "dev" / "wav.scp",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    step = next(step for step in decode_steps(made) if step.name.startswith("decode dev"))
    assert step.remedy == "--recog_model must be one of the models that training saved: 3epoch, valid.cer_ctc.best."
