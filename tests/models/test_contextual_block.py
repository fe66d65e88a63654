"""Contextual block encoders beside ESPnet2's own classes (benchmarks/peer_parts.py)."""

from __future__ import annotations

import pytest
import torch

from tests.models import part_cases as cases
from tests.models.test_peer_parts import GOLDEN, assert_same, padded, shapes
from tests.models.tiny import tiny_batch, tiny_model
from tympan.config import choices
from tympan.errors import UserError


@pytest.mark.parametrize("name", cases.BLOCKS)
@torch.no_grad()
def test_it_equals_espnet2_alone_and_in_a_batch(name: str) -> None:
    golden = GOLDEN[f"blocks {name}"]
    kind = f"contextual_block_{name.split()[0]}"
    encoder = choices.ENCODERS.build(kind, cases.BLOCKS[name], input_size=cases.FEATURES).eval()
    assert shapes(encoder) == golden["shapes"]
    cases.fill(encoder)
    utterances = [cases.features(index) for index in range(len(cases.LENGTHS))]
    together = encoder(padded(utterances, 0.0), torch.tensor(cases.LENGTHS))
    for index, (utterance, expected) in enumerate(zip(utterances, golden["outputs"], strict=True)):
        alone = encoder(utterance, torch.tensor([utterance.size(1)]))
        assert_same(alone.out[0], expected)
        assert int(together.lengths[index]) == alone.out.size(1)
        assert_same(together.out[index, : alone.out.size(1)], expected)


@torch.no_grad()
def test_a_frame_sees_its_block_and_no_later_frame() -> None:
    """The output of a block does not change with the frames after its look-ahead."""
    conf = {**cases.BLOCKS["conformer"], "input_layer": "linear"}
    encoder = choices.ENCODERS.build("contextual_block_conformer", conf, input_size=20).eval()
    features = torch.randn(1, 40, 20)
    changed = features.clone()
    changed[:, 20:] = torch.randn(1, 20, 20)
    outs = [encoder(x, torch.tensor([40])).out[0] for x in (features, changed)]
    # Block b has the frames 2b to 2b + 5 and outputs those from 2b + 2 to 2b + 3: block 7 ends with frame 19.
    torch.testing.assert_close(outs[0][:18], outs[1][:18])
    assert (outs[0][18] - outs[1][18]).abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["contextual_block_transformer", "contextual_block_conformer"])
def test_it_trains_with_utterances_of_every_length(kind: str) -> None:
    conf = {**cases.BLOCKS["transformer"], "init_average": False}
    model = tiny_model(encoder=kind, encoder_only=conf)
    model.set_grad_checkpointing(True)
    loss = model(**tiny_batch((60, 41, 12, 52))).value
    loss.backward()
    assert loss.isfinite()
    assert all(item.grad is not None and item.grad.isfinite().all() for item in model.encoder.parameters())


def test_blocks_that_are_too_small() -> None:
    conf = {**cases.BLOCKS["transformer"], "hop_size": 5}
    with pytest.raises(UserError, match="hop_size 5 and look_ahead 2 together must not exceed block_size 6"):
        choices.ENCODERS.build("contextual_block_transformer", conf, input_size=20)


@pytest.mark.parametrize("name", [name for name in cases.BLOCKS if cases.BLOCKS[name].get("block_size") != 0])
@pytest.mark.parametrize("length", [3, 20, 21, 26, 27, 60, 61, 62, 63, 64, 65, 66, 67, 200])
@torch.no_grad()
def test_a_stream_equals_the_whole_utterance(name: str, length: int) -> None:
    encoder = choices.ENCODERS.build(f"contextual_block_{name.split()[0]}", cases.BLOCKS[name], input_size=20).eval()
    cases.fill(encoder)
    features = torch.randn(1, length, 20)
    whole = encoder(features, torch.tensor([length]))
    for sizes in ([1] * length, [7] * (length // 7) + [length % 7], [length], [0, length, 0]):
        state, pieces = encoder.start_stream(), []
        for number, piece in enumerate(torch.split(features, sizes, dim=1)):
            out, state = encoder.encode_chunk(piece, state, is_last=number == len(sizes) - 1)
            pieces.append(out)
        torch.testing.assert_close(torch.cat(pieces, dim=1), whole.out[:, : int(whole.lengths)])
        assert sum(piece.size(1) > 0 for piece in pieces) > 1 or length < 30 or len(sizes) < 4


def test_options_that_need_the_whole_utterance() -> None:
    for change, message in (({"block_size": 0}, "block_size 0"), ({"input_layer": None, "output_size": 20}, "null")):
        conf = {**cases.BLOCKS["transformer"], **change}
        encoder = choices.ENCODERS.build("contextual_block_transformer", conf, input_size=20)
        with pytest.raises(UserError, match=message):
            encoder.start_stream()
