"""`tympan recipe new`: what it finds in the data, and the sizes and tokens that it chooses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from long_data import long_data_dir
from small_data import SENTENCES, data_dir

from tympan.bin import asr_train
from tympan.bin.recipe import main
from tympan.config import parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.errors import UserError
from tympan.recipe.custom import new_recipe
from tympan.recipe.options import NewOptions
from tympan.recipe.recipe import Recipe, parse_options
from tympan.recipe.sizing import Plan, choose_tokens, make_plan, size_for, spelled
from tympan.recipe.survey import Survey, common_rate, low_rates, several_channels, shared, survey
from tympan.recipe.training_steps import asr_arguments


def of_hours(hours: float, sentences: Sequence[str] = SENTENCES) -> Survey:
    """A survey of that many hours in utterances of 5 s."""
    number = round(720 * hours)
    return Survey(
        path=Path("train"), utterances=number, speakers=frozenset({"a"}), seconds=5.0 * number, lengths_s=[5.0] * 100,
        rates={16000: 100}, channels=1, recordings=frozenset(), sentences=sentences,
    )  # fmt: skip


def plan_of(hours: float, memory_bytes: int | None = 64_000_000_000) -> Plan:
    train = of_hours(hours)
    tokens = choose_tokens(train, train, given=None, known=list(train.words), nbpe=None)
    return make_plan(train, tokens, memory_bytes=memory_bytes)


def test_segments_up_to_the_end_have_the_length_of_their_recording(tmp_path: Path) -> None:
    """An end of -1 in segments."""
    whole = survey(data_dir(tmp_path / "train"))
    scp = (tmp_path / "train" / "wav.scp").read_text().splitlines()
    (tmp_path / "train" / "segments").write_text(
        "".join(f"{row.split()[0]} {row.split()[0]}-r 0.1 -1\n" for row in scp)
    )
    (tmp_path / "train" / "wav.scp").write_text("".join(row.replace(" ", "-r ", 1) + "\n" for row in scp))
    found = survey(tmp_path / "train")
    assert found.lengths_s == pytest.approx([length - 0.1 for length in whole.lengths_s])
    assert found.seconds == pytest.approx(whole.seconds - 0.1 * len(scp))


def test_survey(tmp_path: Path) -> None:
    found = survey(data_dir(tmp_path / "train"))
    assert (found.utterances, found.seconds, found.longest_s, found.rate) == (3, 3.0, 1.0, 8000)
    assert found.words == {"GO": 3, "STOP": 2, "A": 2, "B": 1}
    assert set(found.characters) == set("GOSTPAB")
    assert found.has_spaces
    assert not replace(found, sentences=["你好", "hi 世界和平"]).has_spaces
    assert found.describe().startswith("0.00 h, 3 utterances of 1 speakers, 1.0 s on average, 1.0 s at most, 8000 Hz")


def test_what_sets_share(tmp_path: Path) -> None:
    train, dev = survey(data_dir(tmp_path / "train")), survey(data_dir(tmp_path / "dev", rate=16000, channels=2))
    assert shared(train, dev) == []
    assert (common_rate([train]), common_rate([train, dev])) == (0, 8000)
    assert several_channels([train]) == []
    (line,) = several_channels([train, dev])
    assert line.startswith(f"recordings with up to 2 channels in {tmp_path / 'dev'}: their mean is used.")
    same = shared(train, train)
    assert same[0].startswith("3 of 3 recordings of ")
    assert same[1].startswith("1 of 1 speakers of ")


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({16000: 99, 8000: 1}, 16000),
        ({16000: 1, 8000: 99}, 8000),
        ({48000: 60, 44100: 40}, 16000),
        ({11025: 10}, 0),
        ({44100: 10, 11025: 90}, 11025),
    ],
)
def test_the_rate_of_most_recordings_is_the_rate_of_the_model(rates: Mapping[int, int], expected: int) -> None:
    """Before, one recording of 8 kHz among a thousand of 16 kHz took half the band from all of them."""
    assert common_rate([replace(of_hours(1.0), rates=rates)]) == expected


def test_recordings_with_less_than_the_rate_of_the_model_are_counted() -> None:
    train = replace(of_hours(1.0), rates={16000: 98, 8000: 2})
    assert "16000 Hz (2 of 100 recordings have 8000 Hz)" in train.describe()
    (line,) = low_rates([train], 16000)
    assert line == (
        "2 of 100 recordings of train have a lower sample rate than the model's 16000 Hz (8000 Hz): "
        "they lack the upper part of the band"
    )
    assert low_rates([train], 8000) == []


def test_missing_audio_is_reported_with_the_command_that_lists_all(tmp_path: Path) -> None:
    directory = data_dir(tmp_path / "train")
    (directory / "train1.wav").unlink()
    with pytest.raises(UserError, match=rf"train1\.wav: .*`tympan validate_data {directory}` lists every fault"):
        survey(directory)


def test_stereo_training_data_is_named(tmp_path: Path) -> None:
    """Before, only the other sets were: a mean with a silent channel, or with another speaker, went unnoticed."""
    train, dev = data_dir(tmp_path / "train", channels=2), data_dir(tmp_path / "dev")
    said = new_recipe(NewOptions(name=tmp_path / "mine", train_dir=train, dev_dir=dev))
    assert f"warning: recordings with up to 2 channels in {train}: their mean is used." in "\n".join(said)


def test_words_that_the_lexicon_lacks(tmp_path: Path) -> None:
    """They become <unk> in training, so a lexicon without most of them is a mistake."""
    sets = {f"{name}_dir": data_dir(tmp_path / name) for name in ("train", "dev")}
    lexicon = tmp_path / "lexicon.txt"
    lexicon.write_text("GO g\nSTOP s t\n")
    said = new_recipe(NewOptions(name=tmp_path / "mine", lexicon=lexicon, **sets))
    expected = f"training text: 3 of 8 words (37.5 %) are not in {lexicon} and become <unk>: A, B; add them to "
    assert any(line.startswith(expected) for line in said)
    lexicon.write_text("go g\nstop s t\nB b\n")
    text = re.escape(str(tmp_path / "train" / "text"))
    with pytest.raises(UserError, match=rf"lacks 7 of the 8 words of {text}, such as GO, A, STOP: check its language"):
        new_recipe(NewOptions(name=tmp_path / "other", lexicon=lexicon, **sets))


@pytest.mark.parametrize(
    ("rates", "fs", "resample"),
    [((16000, 16000), 16000, False), ((44100, 44100), 16000, True), ((16000, 8000), 8000, True)],
)
def test_recordings_are_resampled_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rates: tuple[int, int], fs: int, resample: bool
) -> None:
    """At 44.1 kHz, the few mel bands would cover 22 kHz, and other rates than the model's could not be trained on."""
    train, dev = data_dir(tmp_path / "train", rate=rates[0]), data_dir(tmp_path / "dev", rate=rates[1])
    said = "\n".join(new_recipe(NewOptions(name=tmp_path / "mine", train_dir=train, dev_dir=dev)))
    assert (f"recordings are resampled to {fs} Hz" in said) is resample
    config = yaml.safe_load((tmp_path / "mine" / "conf" / "train.yaml").read_text(encoding="utf-8"))
    assert (config["frontend_conf"]["fs"], config["resample"]) == (fs, resample)
    assert config["batch_bins"] == pytest.approx(28.125 * fs, abs=1)
    monkeypatch.chdir(tmp_path / "mine")
    assert main(["custom", "--config", "conf/recipe.yaml", "--nj", "1", "--check", "--stop_stage", "2"]) == 0


def test_a_dataset_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra 'datasets' is not installed")
    directory = data_dir(tmp_path / "wavs")
    rows = {"audio": [str(directory / f"wavs{row}.wav") for row in range(3)], "text": list(SENTENCES)}
    table = datasets.Dataset.from_dict(rows).cast_column("audio", datasets.Audio(decode=False))
    table.save_to_disk(str(tmp_path / "saved"))
    new_recipe(NewOptions(name=tmp_path / "mine", train_dir=tmp_path / "saved", dev_dir=tmp_path / "saved"))
    assert survey(tmp_path / "mine" / "corpus" / "train").utterances == 3


def test_a_dataset_with_splits(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UserError, match=r"with several splits: name one, such as .*saved/train"):
        new_recipe(NewOptions(name=tmp_path / "mine", train_dir=tmp_path / "saved", dev_dir=tmp_path / "saved"))


def test_sizes_grow_with_the_hours() -> None:
    assert [size_for(hours).name for hours in (0.5, 2.9, 3, 29, 30, 299, 300, 5000)] == [
        "small", "small", "medium", "medium", "large", "large", "very large", "very large",
    ]  # fmt: skip
    plans = [plan_of(hours) for hours in (1, 10, 100, 1000)]
    assert [plan.tokens.kind for plan in plans] == ["phn", "bpe", "bpe", "bpe"]
    assert [plan.has_decoder for plan in plans] == [False, True, True, True]
    assert [plan.size.dim for plan in plans] == [144, 192, 256, 512]
    assert [plan_of(hours).epochs for hours in (0.1, 0.75, 1, 2.25, 10)] == [95, 80, 60, 40, 60]


def test_the_schedule_is_as_long_as_the_training() -> None:
    """An hour in utterances of 5 s: six fit into a batch of 28 s, since ESPnet2's cut keeps the one over the limit."""
    plan = plan_of(1.0)
    assert plan.batch_bins == 450_000
    assert plan.total_steps == 60 * 120 * 1.05


def test_batches_fit_the_memory() -> None:
    plan = plan_of(100.0, memory_bytes=4_000_000_000)
    assert plan.accum_grad > 1
    assert plan.batch_bins * plan.accum_grad == pytest.approx(400 * 16000, rel=0.01)
    assert plan_of(100.0, memory_bytes=None).accum_grad == 1


def test_tokens_and_their_reasons() -> None:
    train, other = of_hours(1.0), of_hours(1.0, ["GO SOMEWHERE ELSE"])

    def tokens(dev: Survey, **options: object) -> tuple[str, bool]:
        given = {"given": None, "known": list(train.words), "nbpe": None, **options}
        found = choose_tokens(train, dev, **given)  # type: ignore[arg-type]
        return found.kind, found.spells

    assert tokens(train) == ("phn", True)
    assert tokens(other) == ("char", False), "too many words are unknown"
    assert tokens(other, known=["GO", "SOMEWHERE", "ELSE"]) == ("phn", True)
    assert tokens(train, given="phn") == ("phn", False)
    assert tokens(train, given="word") == ("word", False)
    chinese = of_hours(1.0, ["你好", "世界"])
    assert choose_tokens(chinese, chinese, given=None, known=[], nbpe=None).kind == "char"


def test_a_letter_alone_has_a_token_of_its_own() -> None:
    assert spelled(["GO", "A"]) == ["A A_", "GO G O"]


@pytest.mark.parametrize(
    ("announced", "allowed", "ngpu", "expected"),
    [(True, True, 0, True), (True, False, 0, False), (False, True, 0, False), (True, True, 1, False)],
)
def test_mixed_precision_where_the_cpu_has_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: bool, allowed: bool, ngpu: int, expected: bool
) -> None:
    """A virtual machine may announce instructions that it forbids. The trial finds out."""
    monkeypatch.setattr("tympan.runtime.precision.has_fast_bfloat16", lambda: announced)
    monkeypatch.setattr("tympan.runtime.precision._survives", lambda kind, *, onednn: allowed)
    sets = {f"{name}_dir": data_dir(tmp_path / name) for name in ("train", "dev")}
    new_recipe(NewOptions(name=tmp_path / "mine", ngpu=ngpu, **sets))
    conf = tmp_path / "mine" / "conf" / "train.yaml"
    assert parse_training(AsrTrainConfig, ["--config", str(conf)], prog="asr_train").use_amp is expected
    line = next(line for line in conf.read_text().splitlines() if line.startswith("use_amp"))
    assert ("this CPU has bfloat16 instructions" in line) is expected


@pytest.mark.parametrize("lm_text", [False, True])
def test_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lm_text: bool) -> None:
    train, dev = data_dir(tmp_path / "train"), data_dir(tmp_path / "dev", ["GO A", "STOP POST"])
    (tmp_path / "more.txt").write_text("POST GO\nQUIT\n")
    more = [tmp_path / "more.txt"] if lm_text else []
    said = new_recipe(NewOptions(name=tmp_path / "mine", train_dir=train, dev_dir=dev, lm_text=more))
    monkeypatch.chdir(tmp_path / "mine")
    recipe = yaml.safe_load(Path("conf/recipe.yaml").read_text(encoding="utf-8"))
    assert (recipe["train_dir"], recipe["feats_type"], recipe["ngpu"]) == (str(train), "raw", 0)
    assert parse_options(["custom", "--config", "conf/recipe.yaml"]).lm_text == [str(path) for path in more]
    lines = Path("conf/recipe.yaml").read_text(encoding="utf-8").splitlines()[1:]
    assert all(line.startswith("# ") for line in lines[::2]), "every choice has its reason in the line before"
    config = parse_training(AsrTrainConfig, ["--config", "conf/train.yaml"], prog="asr_train")
    assert (config.frontend_conf["fs"], config.frontend_conf["n_fft"], config.frontend_conf["hop_length"]) == (
        8000,
        256,
        80,
    )
    # 1 of 4 dev words is unknown without the LM text: too many for a word list.
    assert recipe["token_type"] == ("phn" if lm_text else "char")
    if lm_text:
        assert "POST P O S T" in Path("conf/lexicon.txt").read_text(encoding="utf-8").splitlines()
        assert not any("QUIT" in line for line in Path("conf/lexicon.txt").read_text().splitlines()), (
            "Q was never heard"
        )
    else:
        assert "1 of 4 dev words (25.0 %) are unknown to the language model, such as POST" in "\n".join(said)


CHOICES = {
    "accum_grad", "batch_bins", "batch_type", "beam_size", "best_model_criterion", "ctc_weight", "decoder",
    "dropout_rate", "freq_mask_width_range", "fs", "hop_length", "interctc_layer_idx", "keep_nbest_models", "lm",
    "lm_weight", "max_epoch", "max_lr", "n_mels", "ngram_weight", "nlayers", "normalize", "num_blocks", "patience",
    "resample", "search", "specaug", "speed_perturb", "time_mask_width_ratio_range", "total_steps", "use_amp",
    "weight_decay", "win_length",
}  # fmt: skip
"""Keys of the configuration files that are a choice, not a detail of a part."""


@pytest.mark.parametrize("hours", [0.2, 10.0])
def test_every_choice_has_a_comment(tmp_path: Path, hours: float) -> None:
    """At the end of its line, or in the line before."""
    train, dev = long_data_dir(tmp_path / "train", hours), long_data_dir(tmp_path / "dev", 0.1)
    new_recipe(NewOptions(name=tmp_path / "mine", train_dir=train, dev_dir=dev))
    for path in (tmp_path / "mine" / "conf").glob("*.yaml"):
        if path.name == "specaug.yaml":  # for stored features; of ESPnet1
            continue
        before = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            key = line.strip().removeprefix("- ").partition(":")[0]
            assert key not in CHOICES or "#" in line or before.lstrip().startswith("#"), f"{path.name}: {line}"
            before = line


def test_paths_relative_to_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kaldi's: run.sh works in the directory of the recipe, where such paths would not be found."""
    train, dev = data_dir(tmp_path / "data" / "train"), data_dir(tmp_path / "data" / "dev")
    lines = (train / "wav.scp").read_text().replace(" train", " data/train/train")
    (train / "wav.scp").write_text(lines)
    monkeypatch.chdir(tmp_path)
    new_recipe(NewOptions(name=Path("mine"), train_dir=Path("data/train"), dev_dir=Path("data/dev")))
    recipe = yaml.safe_load(Path("mine/conf/recipe.yaml").read_text(encoding="utf-8"))
    assert recipe["train_dir"] == str(tmp_path / "mine" / "corpus" / "train")
    assert recipe["dev_dir"] == str(dev), "its paths are relative to the data directory, so they are valid everywhere"
    monkeypatch.chdir(tmp_path / "mine")
    assert survey(Path(recipe["train_dir"])).utterances == 3
    for name in ("text", "utt2spk"):
        assert Path(recipe["train_dir"], name).read_text() == (train / name).read_text()


@pytest.mark.parametrize(
    ("hours", "blocks", "dim"),
    [(4.0, 3, 192), (31.0, 6, 256), pytest.param(301.0, 6, 512, marks=pytest.mark.slow)],
)
def test_training_accepts_recipes_of_every_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture, hours: float, blocks: int, dim: int,
) -> None:  # fmt: skip
    """`--check`, the first stages, and a dry run of training with all its data."""
    train, dev = long_data_dir(tmp_path / "train", hours), long_data_dir(tmp_path / "dev", 0.1)
    new_recipe(NewOptions(name=tmp_path / "mine", train_dir=train, dev_dir=dev))
    monkeypatch.chdir(tmp_path / "mine")
    command = ["custom", "--config", "conf/recipe.yaml", "--nj", "1"]
    assert main([*command, "--check"]) == 0
    said = capsys.readouterr().out
    counted = re.search(r"([\d.]+) hours of training data \(counted now\)", said)
    assert counted is not None
    assert float(counted[1]) == pytest.approx(hours, rel=0.02)
    assert said.endswith("all checks passed\n")
    assert main([*command, "--stop_stage", "2"]) == 0
    config = parse_training(AsrTrainConfig, ["--config", "conf/train.yaml"], prog="asr_train")
    assert (config.decoder_conf["num_blocks"], config.encoder_conf["output_size"]) == (blocks, dim)
    made = Recipe.of(parse_options(command))
    shapes = ("--train_shape_file", "--valid_shape_file")
    arguments = [item for item in asr_arguments(made) if "asr_stats" not in item and item not in shapes]
    with caplog.at_level("INFO"):
        assert asr_train.main([*arguments, "--dry_run", "true"]) == 0
    assert f"batches of {round(180 * hours):,} utterances" in caplog.text
