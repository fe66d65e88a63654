"""A small real ASR model (Conformer with batch normalization, Transformer decoder, CTC) on synthetic features."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tympan.config.asr import AsrTrainConfig
from tympan.config.read import parse_training
from tympan.data.batch import Batch
from tympan.models.build import build_asr_model
from tympan.models.hybrid import HybridModel
from tympan.runtime.seed import set_all_seeds

TOKENS = ["<blank>", "<unk>", "a", "b", "c", "d", "<sos/eos>"]


def small_asr(
    *, dropout: float = 0.0, seed: int = 5, output_size: int = 16, linear_units: int = 24, num_blocks: int = 2
) -> HybridModel:
    sizes = f"output_size: {output_size}, attention_heads: 2, linear_units: {linear_units}, num_blocks: {num_blocks}"
    rates = f"dropout_rate: {dropout}, positional_dropout_rate: {dropout}"
    config = parse_training(
        AsrTrainConfig,
        [
            "--token_list", str(TOKENS),
            "--input_size", "8",
            "--normalize", "none",
            "--token_type", "char",
            "--encoder", "conformer",
            "--encoder_conf", f"{{{sizes}, {rates}}}",
            "--encoder_conf", "{use_cnn_module: true, cnn_module_kernel: 7, macaron_style: true, rel_pos_type: latest}",
            "--encoder_conf", "{pos_enc_layer_type: rel_pos, selfattention_layer_type: rel_selfattn}",
            "--encoder_conf", f"attention_dropout_rate={dropout}",
            "--decoder", "transformer",
            "--decoder_conf", f"{{attention_heads: 2, linear_units: 24, num_blocks: 1, {rates}}}",
            "--decoder_conf", f"{{self_attention_dropout_rate: {dropout}, src_attention_dropout_rate: {dropout}}}",
            "--model_conf", "{ctc_weight: 0.3, lsm_weight: 0.1}",
        ],
        prog="test",
    )  # fmt: skip
    set_all_seeds(seed)
    return build_asr_model(config)


class FeatureBatches:
    """Features (time, 8) and token ids in batches of `sizes`, equal for any number of ranks."""

    def __init__(
        self, sizes: list[int], *, rank: int = 0, world_size: int = 1, seed: int = 0, frames: tuple[int, int] = (40, 70)
    ) -> None:
        self.sizes, self.rank, self.world_size = sizes, rank, world_size
        generator = torch.Generator().manual_seed(seed)
        total = sum(sizes)
        self.frames = torch.randint(*frames, (total,), generator=generator)
        self.tokens = torch.randint(2, 6, (total,), generator=generator)
        self.speech = [torch.randn(int(n), 8, generator=generator) for n in self.frames]
        self.text = [torch.randint(2, 6, (int(n),), generator=generator) for n in self.tokens]

    def num_steps(self, epoch: int) -> int:
        return len(self.sizes)

    def build_iter(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        order = torch.randperm(len(self.speech), generator=torch.Generator().manual_seed(epoch)).tolist()
        start = 0
        for step, size in enumerate(self.sizes):
            rows, start = order[start : start + size], start + size
            if step >= start_step:
                yield self._batch(rows[self.rank :: self.world_size], rows, size)

    def _batch(self, rows: list[int], everyone: list[int], size: int) -> Batch:
        shown = rows or everyone[:1]
        tensors = {
            "speech": _padded([self.speech[row] for row in shown], 0.0),
            "speech_lengths": self.frames[shown],
            "text": _padded([self.text[row] for row in shown], -1),
            "text_lengths": self.tokens[shown],
        }
        if not rows:
            tensors = {name: tensor[:0] for name, tensor in tensors.items()}
        return Batch(tuple(f"utt{row}" for row in rows), tensors, size)


def _padded(rows: list[Tensor], value: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)
