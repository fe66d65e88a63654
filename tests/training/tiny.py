"""Small objects for training tests: a model with a few hundred weights, and batches from memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tympan.config.train import LoopOptions, UpdateOptions
from tympan.data.batch import Batch
from tympan.models.loss import Loss, LossTerm, Stat
from tympan.runtime.comm import Comm, Solo
from tympan.runtime.parallel import Parallel, ParallelOptions
from tympan.runtime.precision import MasterWeights, choose_precision
from tympan.runtime.seed import set_all_seeds
from tympan.training.checkpoint import Identity
from tympan.training.optimizers import build_optimizer
from tympan.training.trainer import Trainer
from tympan.training.update import Updater, trainable
from tympan.training.writer import ExperimentWriter


class TinyModel(nn.Module):
    """Classifies sequences, with dropout and layer normalization as in real models."""

    def __init__(self, dim: int = 6, classes: int = 5, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, 12)
        self.norm = nn.LayerNorm(12)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(12, classes)

    def forward(self, speech: Tensor, speech_lengths: Tensor, text: Tensor, text_lengths: Tensor) -> Loss:
        mean = speech.sum(1) / speech_lengths.unsqueeze(1)
        logits = self.out(self.dropout(self.norm(torch.relu(self.hidden(mean.to(self.hidden.weight.dtype))))))
        losses = nn.functional.cross_entropy(
            logits.float() if logits.dtype != torch.float64 else logits, text[:, 0], reduction="none"
        )
        count = losses.new_tensor(float(len(losses)))
        correct = (logits.argmax(-1) == text[:, 0]).sum().to(losses.dtype)
        stats = {"loss": Stat(losses.detach().sum(), count), "acc": Stat(correct, count)}
        return Loss((LossTerm(losses.sum(), count),), stats)


class MemoryBatches:
    """Sequences in batches of `sizes`, split over ranks. If shuffled, the order depends on the epoch."""

    def __init__(
        self,
        sizes: list[int],
        *,
        dim: int = 6,
        classes: int = 5,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        is_shuffled: bool = True,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        total = sum(sizes)
        self.sizes = sizes
        self.is_shuffled = is_shuffled
        self.rank, self.world_size = rank, world_size
        self.text = torch.randint(0, classes, (total, 1), generator=generator)
        self.lengths = torch.randint(3, 9, (total,), generator=generator)
        self.speech = torch.randn(total, 8, dim, generator=generator)
        for row, length in enumerate(self.lengths.tolist()):
            self.speech[row, length:] = 0
        self.speech[:, 0, 0] += 3.0 * self.text[:, 0]
        self.spoiled: dict[int, float] = {}

    def num_steps(self, epoch: int) -> int:
        return len(self.sizes)

    def build_iter(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        torch.rand(1)  # as torch's DataLoader does when it starts
        order = list(range(len(self.text)))
        if self.is_shuffled:
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(epoch)).tolist()
        position = 0
        for step, size in enumerate(self.sizes):
            rows = order[position : position + size]
            position += size
            if step >= start_step:
                yield self._batch(rows[self.rank :: self.world_size], size)

    def _batch(self, rows: list[int], size: int) -> Batch:
        speech = self.speech[rows].clone()
        for place, row in enumerate(rows):
            if row in self.spoiled:
                speech[place, 0] = self.spoiled[row]
        tensors = {
            "speech": speech,
            "speech_lengths": self.lengths[rows],
            "text": self.text[rows],
            "text_lengths": torch.ones(len(rows), dtype=torch.int64),
        }
        return Batch(tuple(f"utt{row}" for row in rows), tensors, size)


IDENTITY = Identity(task="asr", optim="adam", scheduler=None, tokens={"text": ("<blank>", "a", "<sos/eos>")})


def tiny_updater(
    *,
    train_dtype: str = "float32",
    use_amp: bool = False,
    loss_scale: float | None = None,
    dropout: float = 0.1,
    comm: Comm | None = None,
    parallel_options: ParallelOptions | None = None,
    scheduler: Any = None,
    optim: type[torch.optim.Optimizer] = torch.optim.Adam,
    lr: float = 0.01,
    model: nn.Module | None = None,
    seed: int = 1,
    defers: bool | None = None,
    **options: Any,
) -> Updater:
    set_all_seeds(seed)
    comm = comm or Solo()
    device = torch.device("cpu")
    precision = choose_precision(train_dtype, device_type="cpu", use_amp=use_amp, loss_scale=loss_scale)
    model = model or TinyModel(dropout=dropout)
    precision.prepare(model)
    parallel = Parallel(model, comm=comm, device=device, options=parallel_options or ParallelOptions())
    named = trainable(model)
    masters = MasterWeights([p for _, p in named], updates=precision.updates)
    moved = [(name, master) for (name, _), master in zip(named, masters.masters, strict=True)]
    optimizer = build_optimizer(optim, {"lr": lr}, moved)
    return Updater(
        parallel,
        optimizer,
        scheduler(optimizer) if scheduler else None,
        masters=masters,
        precision=precision,
        comm=comm,
        device=device,
        options=UpdateOptions(**options),
        defers=defers,
    )


def tiny_trainer(
    directory: Path, *, data: MemoryBatches | None = None, updater: Updater | None = None, **options: Any
) -> Trainer:
    data = data or MemoryBatches([4, 4, 3, 4])
    chosen = LoopOptions(**{"max_epoch": 2, "log_interval": 2, **options})
    writer = ExperimentWriter(
        directory,
        identity=IDENTITY,
        criteria=chosen.best_model_criterion,
        nbests=chosen.keep_nbest_models,
        averaging_interval=chosen.nbest_averaging_interval,
    )
    # Not shuffled, like all validation data: another order may change the rounding, which counts as an improvement.
    valid_data = MemoryBatches([5], seed=9, is_shuffled=False)
    updater = updater or tiny_updater()
    return Trainer(updater, train_data=data, valid_data=valid_data, comm=Solo(), writer=writer, options=chosen)


def weights(trainer_or_updater: Any) -> dict[str, Tensor]:
    updater = getattr(trainer_or_updater, "updater", trainer_or_updater)
    return updater.parallel.full_model_state()
