"""Training works with every dtype, and dtypes that a device lacks are rejected before training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_asr import FeatureBatches, small_asr
from tiny import IDENTITY, MemoryBatches, tiny_trainer, tiny_updater, weights

from tympan.errors import UserError
from tympan.runtime.comm import Solo
from tympan.runtime.precision import choose_precision
from tympan.training.checkpoint import load_checkpoint
from tympan.training.reporter import EpochReporter


@pytest.fixture(autouse=True)
def keep_onednn() -> Iterator[None]:
    """If the CPU faults on a dtype, oneDNN is switched off for the whole process."""
    before = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = before  # type: ignore[assignment]


FORMATS = ["float16", "bfloat16", "float32", "float64", "O0", "O1", "O2", "O3"]


@pytest.mark.parametrize("name", [*FORMATS, "amp"])
def test_each_format_lowers_the_loss(name: str) -> None:
    kinds = {"use_amp": True} if name == "amp" else {"train_dtype": name}
    updater = tiny_updater(model=small_asr(), lr=0.005, **kinds)
    data = FeatureBatches([3] * 4)
    losses = []
    for _ in range(5):
        part = EpochReporter("train", 1, comm=Solo())
        batches = data.build_iter(1)
        for _ in range(4):
            updater.learn(batches, number=1, reporter=part)
        losses.append(part.means()["loss"])
    assert losses[-1] < 0.75 * losses[0], losses
    assert updater.skipped_total == 0
    kind = {"float16": torch.float16, "O2": torch.float16, "O3": torch.float16, "bfloat16": torch.bfloat16}.get(
        name, torch.float64 if name == "float64" else torch.float32
    )
    assert updater.parallel.module.decoder.output_layer.weight.dtype == kind
    states = updater.optimizer.state.values()
    assert all(s["exp_avg"].dtype in (torch.float32, torch.float64) for s in states)


def test_o2_keeps_normalisation_and_masters_in_float32() -> None:
    updater = tiny_updater(model=small_asr(), train_dtype="O2")
    module = updater.parallel.module
    assert module.encoder.after_norm.weight.dtype == torch.float32
    assert module.encoder.encoders[0].feed_forward.w_1.weight.dtype == torch.float16
    assert {m.dtype for m in updater.masters.masters} == {torch.float32}


@pytest.mark.parametrize("name", ["O1", "O2", "O3", "float16", "bfloat16"])
def test_resuming_in_half_precision_gives_the_same_bits(tmp_path: Path, name: str) -> None:
    whole = tiny_trainer(tmp_path / "a", updater=tiny_updater(train_dtype=name), max_epoch=2)
    whole.fit()
    tiny_trainer(tmp_path / "b", updater=tiny_updater(train_dtype=name), max_epoch=1).fit()
    resumed = tiny_trainer(tmp_path / "b", updater=tiny_updater(train_dtype=name, seed=9), max_epoch=2)
    state = load_checkpoint(tmp_path / "b", identity=IDENTITY, model_state=weights(resumed))
    assert state is not None
    resumed.load_state_dict(state)
    resumed.fit()
    for key, tensor in weights(whole).items():
        assert torch.equal(tensor, weights(resumed)[key]), key


def test_a_static_loss_scale_stays() -> None:
    updater = tiny_updater(train_dtype="O1", loss_scale=512.0)
    data = MemoryBatches([4, 4])
    data.spoiled = {0: float("inf")}
    updater.learn(data.build_iter(1), number=2, reporter=EpochReporter("train", 1, comm=Solo()))
    assert updater.scaler.value == 512.0


def test_a_dynamic_loss_scale_finds_its_range() -> None:
    """An overflow halves the loss scale and skips the update, without a warning about the data."""
    updater = tiny_updater(train_dtype="O1")
    updater.scaler._torch._init_scale = 2.0**60
    data = MemoryBatches([4] * 3)
    batches = data.build_iter(1)
    for _ in range(3):
        updater.learn(batches, number=1, reporter=EpochReporter("train", 1, comm=Solo()))
    assert updater.scaler.value < 2.0**60
    assert updater.skipped_total == 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="can't be used with --train_dtype"):
        choose_precision("O2", device_type="cpu", use_amp=True)
    with pytest.raises(UserError, match="npu has no float64"):
        choose_precision("float64", device_type="npu")
    with pytest.raises(UserError, match="one of float16, bfloat16"):
        choose_precision("int8", device_type="cpu")
