"""From a training config to batches, with and without shape files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.config.read import parse_training
from tympan.data.shapes import write_shapes
from tympan.errors import UserError
from tympan.runtime.comm import Solo
from tympan.tasks.asr import AsrTask
from tympan.tasks.lm import LmTask
from tympan.training.data import TrainingData, build_data, build_plain_data
from tympan.training.task import check_data_names

IDS = [f"spk-{number}" for number in range(7)]
FRAMES = [4000 + 700 * number for number in range(7)]


@dataclass(frozen=True)
class OneOfTwo(Solo):
    size = 2


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for key, frames in zip(IDS, FRAMES, strict=True):
        soundfile.write(tmp_path / f"{key}.wav", 0.1 * rng.standard_normal(frames), 16000)
    (tmp_path / "wav.scp").write_text("".join(f"{key} {key}.wav\n" for key in IDS))
    (tmp_path / "text").write_text("".join(f"{key} {'ab' * (n + 1)}\n" for n, key in enumerate(IDS)))
    (tmp_path / "tokens.txt").write_text("<blank>\n<unk>\na\nb\n<sos/eos>\n")
    return tmp_path


def asr_config(corpus: Path, *extra: str) -> Any:
    data = [
        f"--{split}_data_path_and_name_and_type={corpus}/{file},{name},{kind}"
        for split in ("train", "valid")
        for file, name, kind in (("wav.scp", "speech", "sound"), ("text", "text", "text"))
    ]
    common = ["--encoder=conformer", "--model_conf=ctc_weight=1.0", "--token_type=char", "--num_workers=0"]
    files = [f"--token_list={corpus}/tokens.txt", f"--output_dir={corpus}/exp"]
    return parse_training(AsrTrainConfig, [*data, *common, *files, *extra], prog="asr_train")


def data_of(config: Any, comm: Any = None) -> TrainingData:
    task = AsrTask() if isinstance(config, AsrTrainConfig) else LmTask()
    return build_data(task, task.complete(config), comm=comm or Solo())


def test_training_and_validation_from_one_config(corpus: Path) -> None:
    data = data_of(asr_config(corpus, "--batch_type=numel", "--batch_bins=12000", "--valid_batch_bins=40000"))
    assert len(data.train.batch_sizes(1)) > len(data.valid.batch_sizes(1))
    assert "augment_seed" in next(data.train.build_iter(1)).tensors
    batch = next(data.valid.build_iter(1))
    assert "augment_seed" not in batch.tensors
    assert batch.tensors["text"].shape[1] == int(batch.tensors["text_lengths"].max())
    assert batch.tensors["text"][0][:4].tolist() == [2, 3, 2, 3]


@pytest.mark.parametrize("batch_type", ["numel", "length", "bucket", "sorted", "unsorted"])
def test_measured_lengths_plan_as_the_shape_files_do(corpus: Path, batch_type: str) -> None:
    write_shapes(corpus / "speech_shape", [(key, [frames]) for key, frames in zip(IDS, FRAMES, strict=True)])
    write_shapes(corpus / "text_shape.char", [(key, [2 * (n + 1), 5]) for n, key in enumerate(IDS)])
    options = [f"--batch_type={batch_type}", "--batch_bins=15000", "--batch_size=3"]
    shape_files = [f"--train_shape_file={corpus}/{name}" for name in ("speech_shape", "text_shape.char")]
    measured, read = (data_of(asr_config(corpus, *options, *more)).train for more in ([], shape_files))
    steps = range(measured.num_steps(1))
    assert [measured.batch_ids(1, step) for step in steps] == [read.batch_ids(1, step) for step in steps]
    assert measured.describe() == read.describe()


def test_shape_files_choose_the_utterances(corpus: Path) -> None:
    write_shapes(corpus / "speech_shape", {"spk-4": [6800], "spk-1": [4700]})
    write_shapes(corpus / "text_shape.char", {key: [2 * (n + 1)] for n, key in enumerate(IDS)})
    shape_files = [f"--train_shape_file={corpus}/{name}" for name in ("speech_shape", "text_shape.char")]
    folds = ["--fold_length=1000", "--fold_length=150"]
    factory = data_of(asr_config(corpus, *shape_files, *folds)).train
    assert [shape.lengths.tolist() for shape in factory.plan.shapes] == [[6800, 4700], [10, 4]]
    assert {key for step in range(factory.num_steps(1)) for key in factory.batch_ids(1, step)} == {"spk-4", "spk-1"}


def test_batch_size_per_device_counts_each_rank(corpus: Path) -> None:
    config = asr_config(corpus, "--batch_type=unsorted", "--batch_size=3", "--batch_size_per_device=true")
    assert data_of(config, OneOfTwo()).train.batch_sizes(1) == (7,)
    assert len(data_of(config).train.batch_sizes(1)) == 2


def test_language_model_text(corpus: Path) -> None:
    data = [f"--{split}_data_path_and_name_and_type={corpus}/text,text,text" for split in ("train", "valid")]
    options = ["--token_type=char", f"--token_list={corpus}/tokens.txt", "--batch_type=length", "--batch_bins=30"]
    config = parse_training(LmTrainConfig, [*data, *options, f"--output_dir={corpus}/lm"], prog="lm_train")
    batches = list(data_of(config).train.build_iter(1))
    assert sorted(key for batch in batches for key in batch.ids) == IDS
    assert set(batches[0].tensors) == {"text", "text_lengths", "augment_seed"}
    assert batches[0].tensors["text"].dtype == torch.int64


def test_augmentation_is_for_training_alone(corpus: Path) -> None:
    config = asr_config(corpus, "--batch_type=unsorted", "--speed_perturb=0.5")
    data = data_of(config)
    assert next(data.train.build_iter(1)).tensors["speech_lengths"].max() == pytest.approx(2 * max(FRAMES), abs=2)
    for factory in (data.valid, build_plain_data(AsrTask(), AsrTask().complete(config)).train):
        assert next(factory.build_iter(1)).tensors["speech_lengths"].max() == max(FRAMES)


def test_the_log_has_the_speeds(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    data_of(asr_config(corpus, "--batch_type=unsorted", "--speed_perturb=0.9"))
    assert "speed perturbation: one of 0.9 for each utterance" in caplog.text
    for none in ([], ["--speed_perturb=1.0"]):
        caplog.clear()
        data_of(asr_config(corpus, "--batch_type=unsorted", *none))
        assert "speed perturbation: none" in caplog.text


def test_effects_of_preprocessor_conf(corpus: Path) -> None:
    (corpus / "conf.yaml").write_text(
        "preprocessor_conf:\n"
        "  data_aug_prob: 1.0\n"
        "  data_aug_effects:\n"
        "  - [0.5, polarity_inverse, {}]\n"
        "  - - 0.5\n"
        "    - - [0.5, speed_perturb, {factor: 0.5}]\n"
        "  data_aug_num: [2, 2]\n"
    )
    data = data_of(asr_config(corpus, "--batch_type=unsorted", "--config", str(corpus / "conf.yaml")))
    assert next(data.train.build_iter(1)).tensors["speech_lengths"].max() == pytest.approx(2 * max(FRAMES), abs=2)


def test_mistakes_in_what_is_asked_for(corpus: Path) -> None:
    with pytest.raises(UserError, match="speed_perturb: only works with audio input, but input_size"):
        data_of(asr_config(corpus, "--speed_perturb=0.9", "--input_size=83", "--batch_type=numel"))
    with pytest.raises(UserError, match="16000 Hz, but 8000 Hz is expected"):
        list(data_of(asr_config(corpus, "--frontend_conf", "fs=8000", "--batch_type=numel")).train.build_iter(1))


def test_data_names_are_those_of_the_task(corpus: Path) -> None:
    config = asr_config(corpus)
    check_data_names(AsrTask(), config)
    with pytest.raises(UserError, match="does not know the data name 'speech'; it knows text"):
        check_data_names(LmTask(), config)
    check_data_names(LmTask(), replace(config, allow_variable_data_keys=True))
    only_speech = replace(config, valid_data_path_and_name_and_type=config.valid_data_path_and_name_and_type[:1])
    with pytest.raises(UserError, match=r"--valid_data_path_and_name_and_type is needed for text.*found speech"):
        check_data_names(AsrTask(), only_speech)


def stereo(corpus: Path, keys: list[str]) -> dict[str, np.ndarray]:
    """Replace these recordings by stereo ones with speech in the second channel. Returns the speech."""
    speech = {}
    for key in keys:
        speech[key], rate = soundfile.read(corpus / f"{key}.wav", dtype="float32")
        both = np.stack([np.zeros_like(speech[key]), speech[key]], axis=1)
        soundfile.write(corpus / f"{key}.wav", both, rate, subtype="FLOAT")
    return speech


def first_speech(config: Any) -> dict[str, np.ndarray]:
    """Utterance id -> samples of all batches of the training data, without the padding."""
    data = data_of(config).train
    batches = list(data.build_iter(1))
    return {
        key: batch.tensors["speech"][row, : batch.tensors["speech_lengths"][row]].numpy()
        for batch in batches
        for row, key in enumerate(batch.ids)
    }


def test_stereo_recordings_are_averaged(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    speech = stereo(corpus, IDS[:5])  # the others have one channel
    with caplog.at_level("INFO"):
        found = first_speech(asr_config(corpus, "--batch_type=numel", "--batch_bins=30000"))
    assert len(found) == len(IDS)
    for key, samples in speech.items():
        np.testing.assert_allclose(found[key], samples / 2, rtol=1e-6)
    assert "recordings with up to 2 channels; the mean of all is used" in caplog.text
    assert f"the channels of 5 of 5 recordings that were checked differ, such as those of '{IDS[0]}'" in caplog.text
    assert "choose one with --channel N" in caplog.text


def test_one_channel_is_chosen(corpus: Path, caplog: pytest.LogCaptureFixture) -> None:
    speech = stereo(corpus, IDS[:5])
    with caplog.at_level("INFO"):
        found = first_speech(asr_config(corpus, "--channel=1", "--batch_type=numel", "--batch_bins=30000"))
    for key, samples in speech.items():
        np.testing.assert_array_equal(found[key], samples)
    assert found[IDS[6]].any()
    assert "channel 1 is used" in caplog.text
    assert "differ" not in caplog.text
    with pytest.raises(UserError, match="there is no channel 2; the number of channels is 2"):
        first_speech(asr_config(corpus, "--batch_type=unsorted", "--channel=2"))
    with pytest.raises(UserError, match="--channel"):
        asr_config(corpus, "--channel=-1")
    with pytest.raises(UserError, match="--channel"):
        asr_config(corpus, "--channel=left")


@pytest.mark.parametrize(
    "options",
    [["--channel=all"], ["--frontend=sliding_window", "--frontend_conf=channels=2"]],
)
def test_all_channels_reach_a_frontend_that_takes_them(corpus: Path, options: list[str]) -> None:
    speech = stereo(corpus, IDS)
    found = first_speech(asr_config(corpus, "--batch_type=unsorted", *options))
    np.testing.assert_array_equal(found[IDS[0]][:, 1], speech[IDS[0]])


def test_force_single_channel_uses_the_first_as_in_espnet2(corpus: Path) -> None:
    stereo(corpus, IDS)
    found = first_speech(asr_config(corpus, "--batch_type=unsorted", "--preprocessor_conf=force_single_channel=true"))
    assert found[IDS[0]].shape == (FRAMES[0],)
    assert not found[IDS[0]].any()


def test_lengths_of_stereo_recordings_count_once(corpus: Path) -> None:
    one = data_of(asr_config(corpus, "--batch_type=numel", "--batch_bins=15000")).train
    stereo(corpus, IDS)
    plain = data_of(asr_config(corpus, "--batch_type=numel", "--batch_bins=15000")).train
    again = data_of(asr_config(corpus, "--batch_type=numel", "--batch_bins=15000")).train
    assert one.describe() == plain.describe() == again.describe()
    both = data_of(asr_config(corpus, "--channel=all", "--batch_type=numel", "--batch_bins=15000")).train
    assert both.num_steps(1) > plain.num_steps(1)
    shapes = build_plain_data(AsrTask(), AsrTask().complete(asr_config(corpus))).train.utterance(0)
    assert shapes.arrays["speech"].shape == (FRAMES[0],)


def test_cached_lengths_of_replaced_recordings_are_measured_again(corpus: Path) -> None:
    before = data_of(asr_config(corpus, "--batch_type=unsorted")).train.lengths()["speech"]
    soundfile.write(corpus / f"{IDS[2]}.wav", np.zeros(12345), 16000)
    after = data_of(asr_config(corpus, "--batch_type=unsorted")).train.lengths()["speech"]
    assert before[2] == FRAMES[2]
    assert after.tolist() == [*FRAMES[:2], 12345, *FRAMES[3:]]


def test_channels_in_separate_files_are_kept(corpus: Path) -> None:
    lines = "".join(f"{key} {key}.wav {key}.wav\n" for key in IDS)
    (corpus / "wav2.scp").write_text(lines)
    config = asr_config(corpus, "--batch_type=unsorted")
    data = [(str(corpus / "wav2.scp"), "speech", "multi_columns_sound"), (str(corpus / "text"), "text", "text")]
    found = first_speech(replace(config, train_data_path_and_name_and_type=data))
    assert found[IDS[0]].shape == (FRAMES[0], 2)
