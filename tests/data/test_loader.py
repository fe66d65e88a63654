"""The iterator gives the same batches for any number of workers and ranks and any first step."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from tympan.config.batches import BatchOptions
from tympan.config.text import TextConfig
from tympan.data.augment import WaveformAugmentation
from tympan.data.batch import Batch
from tympan.data.batch_plan import plan_batches
from tympan.data.dataset import UtteranceDataset
from tympan.data.loader import EpochBatches
from tympan.data.preprocess import Preprocessor, SpeechPreprocessor
from tympan.data.readers import Value
from tympan.data.seeds import derive_seed
from tympan.data.shapes import Shapes
from tympan.errors import UserError
from tympan.text.codec import build_codec

TOKENS = ["<blank>", "<unk>", "a", "b", "<space>", "<sos/eos>"]
COUNT = 21


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        samples = 0.1 * rng.standard_normal(int(rng.integers(800, 3200)))
        soundfile.write(folder / f"u{number:02d}.wav", samples, 16000)
    ids = [f"u{number:02d}" for number in range(COUNT)]
    (folder / "wav.scp").write_text("".join(f"{key} {key}.wav\n" for key in ids))
    (folder / "text").write_text("".join(f"{key} {'ab '[: n % 3 + 1] * (n % 4)}\n" for n, key in enumerate(ids)))
    return folder


def make_dataset(folder: Path) -> UtteranceDataset:
    preprocess = Preprocessor(
        texts={"text": build_codec(TextConfig(token_list=TOKENS, token_type="char"))},
        speech=SpeechPreprocessor(
            WaveformAugmentation(seed=5, rate=16000, speed_perturb=(0.9, 1.0, 1.1), volume_perturb=(0.5, 2.0))
        ),
    )
    triples = [(folder / "wav.scp", "speech", "sound"), (folder / "text", "text", "text")]
    return UtteranceDataset(triples, preprocess=preprocess)


def make_factory(folder: Path, batch_type: str = "numel", **options: object) -> EpochBatches:
    dataset = make_dataset(folder)
    lengths = [soundfile.info(folder / f"u{number:02d}.wav").frames for number in range(COUNT)]
    shapes = [Shapes("speech", np.array(lengths)), Shapes("text", np.full(COUNT, 9))]
    plan = plan_batches(
        shapes, BatchOptions(batch_type=batch_type, batch_size=4, batch_bins=9000, fold_length=(1500, 80))
    )
    assert isinstance(dataset.preprocess, Preprocessor)
    stretch = dataset.preprocess.stretch
    return EpochBatches(dataset, plan, seed=5, shuffle=True, stretch=stretch, **options)  # type: ignore[arg-type]


def same(one: Batch, other: Batch) -> bool:
    return (
        one.ids == other.ids
        and one.global_size == other.global_size
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    )


def test_batches_carry_espnet2s_names(corpus: Path) -> None:
    factory = make_factory(corpus)
    batch = next(factory.build_iter(1))
    size = len(batch)
    assert set(batch.tensors) == {"speech", "speech_lengths", "text", "text_lengths", "augment_seed"}
    assert batch.tensors["speech"].dtype == torch.float32
    assert batch.tensors["speech"].shape == (size, int(batch.tensors["speech_lengths"].max()))
    assert batch.tensors["augment_seed"].tolist() == [derive_seed(5, 1, key, "augment") for key in batch.ids]
    for row, length in zip(batch.tensors["text"], batch.tensors["text_lengths"], strict=True):
        assert (row[length:] == -1).all()
        assert (row[:length] >= 0).all()
    for row, length in zip(batch.tensors["speech"], batch.tensors["speech_lengths"], strict=True):
        assert not row[length:].any()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(corpus: Path, workers: int) -> None:
    alone = list(make_factory(corpus).build_iter(2))
    helped = list(make_factory(corpus, num_workers=workers).build_iter(2))
    assert len(alone) == len(helped) > 3
    assert all(same(one, other) for one, other in zip(alone, helped, strict=True))


@pytest.mark.parametrize("batch_type", ["unsorted", "sorted", "folded", "length", "numel", "bucket"])
def test_any_step_can_be_reached_directly(corpus: Path, batch_type: str) -> None:
    factory = make_factory(corpus, batch_type, num_iters_per_epoch=4)
    for epoch in (1, 3):
        whole = list(factory.build_iter(epoch))
        assert len(whole) == factory.num_steps(epoch) == 4
        for step in range(4):
            direct = list(make_factory(corpus, batch_type, num_iters_per_epoch=4).build_iter(epoch, step))
            assert len(direct) == 4 - step
            assert all(same(one, other) for one, other in zip(whole[step:], direct, strict=True))


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_ranks_share_the_same_global_batches(corpus: Path, world_size: int) -> None:
    alone = make_factory(corpus)
    ranks = [make_factory(corpus, rank=rank, world_size=world_size) for rank in range(world_size)]
    shares = [list(factory.build_iter(1)) for factory in ranks]
    for step, whole in enumerate(alone.build_iter(1)):
        parts = [share[step] for share in shares]
        assert sorted(key for part in parts for key in part.ids) == sorted(whole.ids)
        assert {part.global_size for part in parts} == {len(whole)}
        assert alone.batch_ids(1, step) == whole.ids == ranks[-1].batch_ids(1, step)
        for part in parts:
            for place, key in enumerate(part.ids):
                length = int(part.tensors["speech_lengths"][place])
                own, other = part.tensors["speech"][place], whole.tensors["speech"][whole.ids.index(key)]
                assert torch.equal(own[:length], other[:length])
    assert alone.batch_sizes(1) == tuple(len(batch) for batch in alone.build_iter(1))


def test_a_rank_without_utterances_gets_empty_tensors(corpus: Path) -> None:
    factory = make_factory(corpus, rank=7, world_size=8)
    batch = next(batch for batch in factory.build_iter(1) if not batch.ids)
    assert batch.global_size > 0
    assert all(tensor.shape[0] == 0 for tensor in batch.tensors.values())
    assert batch.tensors["speech"].ndim == 2


def test_epochs_are_augmented_differently_and_repeatably(corpus: Path) -> None:
    dataset = make_dataset(corpus)
    first, again, second = dataset["u03", 1], dataset[3, 1], dataset["u03", 2]
    assert np.array_equal(first.arrays["speech"], again.arrays["speech"])
    assert not np.array_equal(first.arrays["speech"], second.arrays["speech"])


def test_buckets_pad_to_their_shape(corpus: Path) -> None:
    factory = make_factory(corpus, "bucket")
    shapes = {tuple(batch.tensors["speech"].shape) for batch in factory.build_iter(1)}
    wanted = {
        (int(size), int(length / 0.9 + 0.999))
        for size, (length, _) in zip(factory.plan.sizes, factory.plan.padded_lengths(), strict=True)
    }
    assert shapes == wanted


def test_buckets_need_shapes_by_the_names_of_the_data(corpus: Path) -> None:
    plan = plan_batches([Shapes("feats", np.arange(COUNT) + 1)], BatchOptions(batch_type="bucket", batch_bins=90))
    with pytest.raises(UserError, match="'feats' matches none of the data"):
        EpochBatches(make_dataset(corpus), plan)


def test_validation_is_in_order_and_has_no_seeds(corpus: Path) -> None:
    dataset = make_dataset(corpus)
    plan = plan_batches([Shapes("speech", np.arange(COUNT) + 1)], BatchOptions(batch_type="unsorted", batch_size=4))
    factory = EpochBatches(dataset, plan)
    batches = list(factory.build_iter(1))
    assert [key for batch in batches for key in batch.ids] == [f"u{number:02d}" for number in range(COUNT)]
    assert "augment_seed" not in batches[0].tensors
    assert all(same(one, other) for one, other in zip(batches, factory.build_iter(1), strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_broken_data_is_named_from_a_worker(corpus: Path, tmp_path: Path, workers: int) -> None:
    lines = (corpus / "wav.scp").read_text().replace(" u", f" {corpus}/u").replace("u07.wav", "gone.wav")
    (tmp_path / "wav.scp").write_text(lines)
    dataset = UtteranceDataset([(tmp_path / "wav.scp", "speech", "sound")])
    plan = plan_batches([Shapes("speech", np.arange(COUNT) + 1)], BatchOptions(batch_type="unsorted", batch_size=4))
    with pytest.raises(UserError) as caught:
        list(EpochBatches(dataset, plan, num_workers=workers).build_iter(1))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'wav.scp'}:8: utterance 'u07': ")
    assert "gone.wav" in message
    assert "Traceback" not in message


class Deadly:
    """A preprocessor whose process is killed, as when memory runs out."""

    def __init__(self) -> None:
        self.parent = os.getpid()

    def __call__(self, _utterance_id: str, values: Mapping[str, Value], _epoch: int) -> Mapping[str, Value]:
        assert os.getpid() != self.parent
        os.kill(os.getpid(), signal.SIGKILL)
        return values


def test_a_killed_worker_is_explained(corpus: Path) -> None:
    dataset = UtteranceDataset([(corpus / "wav.scp", "speech", "sound")], preprocess=Deadly())
    plan = plan_batches([Shapes("speech", np.arange(COUNT) + 1)], BatchOptions(batch_type="unsorted", batch_size=4))
    with pytest.raises(UserError, match=r"exited unexpectedly .*worker.*--num_workers"):
        list(EpochBatches(dataset, plan, num_workers=1).build_iter(1))


def test_factories_can_be_pickled(corpus: Path) -> None:
    factory = make_factory(corpus)
    again = pickle.loads(pickle.dumps(factory))
    assert same(next(factory.build_iter(1)), next(again.build_iter(1)))


def test_the_description_answers_what_users_ask(corpus: Path) -> None:
    text = make_factory(corpus).describe()
    for part in ("batches of 21 utterances", "utterances per batch:", "padding", "audio:", "s per batch"):
        assert part in text
    assert "fixed shapes:" in make_factory(corpus, "bucket").describe()
