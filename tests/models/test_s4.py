"""`decoder: s4` against ESPnet2's class (benchmarks/peer_recipes.py), state space models against their definition."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models import part_cases
from tests.models import recipe_cases as cases
from tests.models.test_peer_parts import assert_same, padded, shapes
from tympan.config import choices
from tympan.errors import UserError
from tympan.models.decoder.s4 import S4Decoder
from tympan.nn.state_space import KERNEL_LENGTH, StateSpace, convolve, hippo_legs
from tympan.training.optimizers import build_optimizer, names_without_decay, own_rates

GOLDEN = json.loads((Path(__file__).parent / "golden_recipes.json").read_text(encoding="utf-8"))
CONF = cases.S4["untrained"][0]


def build(conf: dict[str, Any], size: int = 8) -> S4Decoder:
    decoder: S4Decoder = choices.DECODERS.build(
        "s4", copy.deepcopy(conf), vocab_size=cases.VOCABULARY, encoder_output_size=size
    )
    return decoder.eval()


def filled(name: str) -> S4Decoder:
    conf, stored = cases.S4[name]
    decoder = build(conf)
    part_cases.fill(decoder)
    for module in decoder.modules():
        if isinstance(module, StateSpace):
            store_length(module, stored)
    return decoder


def store_length(space: StateSpace, length: int) -> None:
    space.load_state_dict({**space.state_dict(), "L": torch.tensor(length)})


def stepped(decoder: S4Decoder, memory: Tensor, lengths: Tensor, tokens: Tensor) -> Tensor:
    """(batch, beams, length, vocabulary): log probabilities from steps for tokens (batch, beams, length)."""
    state, found = decoder.start(memory, lengths, tokens.size(1)), []
    for position in range(tokens.size(2)):
        log_probs, state = decoder.step(tokens[:, :, position], state)
        found.append(log_probs)
    return torch.stack(found, dim=2)


@pytest.mark.parametrize("name", cases.S4)
@torch.no_grad()
def test_decoder_equals_espnet2(name: str) -> None:
    golden = GOLDEN[f"s4 {name}"]
    decoder = filled(name)
    assert shapes(decoder) == golden["shapes"]
    before = copy.deepcopy(decoder.state_dict())
    texts = [part_cases.tokens(index) for index in range(3)]
    text_lengths = torch.tensor([text.size(1) for text in texts])
    memory, lengths = padded([part_cases.memory(index) for index in range(3)], 5.0), torch.tensor(part_cases.LENGTHS)
    together = decoder(memory, lengths, padded(texts, 3), text_lengths)
    steps = stepped(decoder, memory, lengths, padded(texts, 3).unsqueeze(1))
    for index, text in enumerate(texts):
        alone = decoder(part_cases.memory(index), lengths[index : index + 1], text, text_lengths[index : index + 1])
        assert_same(alone[0], golden["outputs"][index])
        assert_same(together[index, : text.size(1)], golden["outputs"][index])
        assert_same(steps[index, 0, : text.size(1)], golden["steps"][index])
    torch.testing.assert_close(decoder.state_dict(), before, atol=0, rtol=0)


@torch.no_grad()
def test_frozen_weights_give_the_same_steps() -> None:
    decoder = filled("stored length")
    memory, text = part_cases.memory(0), part_cases.tokens(0).unsqueeze(1)
    lengths = torch.tensor([memory.size(1)])
    expected = stepped(decoder, memory, lengths, text)
    spaces = [module for module in decoder.modules() if isinstance(module, StateSpace)]
    for space in spaces:
        space.freeze()
        assert space.recurrence() is space.recurrence()
    torch.testing.assert_close(stepped(decoder, memory, lengths, text), expected, atol=0, rtol=0)


@torch.no_grad()
def test_hypotheses_continue_their_own_states() -> None:
    decoder = filled("untrained")
    memory, lengths = padded([part_cases.memory(0), part_cases.memory(1)], 5.0), torch.tensor(part_cases.LENGTHS[:2])
    sos = cases.VOCABULARY - 1
    texts = torch.tensor([[[sos, 1, 2], [sos, 5, 4]], [[sos, 7, 7], [sos, 3, 8]]])
    state = decoder.start(memory, lengths, 2)
    _, state = decoder.step(texts[:, :, 0], state)
    _, state = decoder.step(texts[:, :, 1], state)
    parents = torch.tensor([[1, 0], [1, 1]])
    found, _ = decoder.step(texts[:, :, 2], state.reorder(parents))
    kept, _ = decoder.step(texts[1:, :, 2], state.reorder(parents).keep(torch.tensor([1])))
    torch.testing.assert_close(kept, found[1:], atol=1e-5, rtol=0)
    for utterance in range(2):
        for beam in range(2):
            history = texts[utterance, parents[utterance, beam], :2]
            text = torch.cat([history, texts[utterance, beam, 2:]]).unsqueeze(0)
            one = slice(utterance, utterance + 1)
            logits = decoder(memory[one], lengths[one], text, torch.tensor([3]))
            torch.testing.assert_close(found[utterance, beam], logits[0, -1].log_softmax(-1), atol=1e-5, rtol=0)


def test_the_first_model_is_hippo_legs() -> None:
    states = 8
    w, p, b = hippo_legs(states)
    order = torch.arange(states, dtype=torch.float64)
    matrix = torch.zeros(states, states, dtype=torch.float64)
    for row in range(states):
        for column in range(row):
            matrix[row, column] = -(((2 * row + 1) * (2 * column + 1)) ** 0.5)
        matrix[row, row] = -(row + 1)
    # What enters and leaves through P or B does not depend on the basis: compare the moments Bt A^k B and Pt A^k B.
    both = [torch.cat([item, item.conj()]) for item in (w, p, b)]
    full = (torch.diag(both[0]) - torch.outer(both[1], both[1].conj())).to(torch.cdouble)
    entry, low_rank = both[2].to(torch.cdouble), both[1].to(torch.cdouble)
    expected_entry, expected_low_rank = (2 * order + 1).sqrt(), (order + 0.5).sqrt()
    for power in range(4):
        scale = float(states ** (2 * power + 2))
        found = torch.linalg.matrix_power(full, power) @ entry
        expected = torch.linalg.matrix_power(matrix, power) @ expected_entry
        for one, other in ((entry, expected_entry), (low_rank, expected_low_rank)):
            assert abs(complex(one.conj() @ found) - float(other @ expected)) / scale < 1e-5


@pytest.mark.parametrize("stored", [KERNEL_LENGTH, 0, 21])
def test_kernel_and_recurrence_equal_the_dense_discretized_model(stored: int) -> None:
    torch.manual_seed(0)
    space = StateSpace(6, states=10, copies=3, dt_min=0.01, dt_max=0.1, lr=None).double()
    store_length(space, stored)
    u = torch.randn(2, 50, 6, dtype=torch.float64)
    with torch.no_grad():
        found = convolve(u, space.kernel(50))
        steps, outputs = space.recurrence(), []
        state = torch.zeros(2, 6, 5, dtype=torch.cdouble)
        for position in range(50):
            state = steps.advance(state, u[:, position])
            outputs.append(steps.read(state))
    torch.testing.assert_close(torch.stack(outputs, dim=1), found, atol=1e-11, rtol=0)
    torch.testing.assert_close(dense_outputs(space, u, stored), found, atol=1e-9, rtol=0)


def dense_outputs(space: StateSpace, u: Tensor, stored: int) -> Tensor:
    """From the matrices of one channel after the other."""
    outputs = torch.zeros_like(u)
    c, b, p = (torch.view_as_complex(item.detach()) for item in (space.C, space.B, space.P))
    for channel in range(space.channels):
        copy_of = channel % b.size(1)
        w = torch.complex(-space.inv_w_real[copy_of].detach().exp(), space.w_imag[copy_of].detach())
        poles, low_rank, entry = (torch.cat([item, item.conj()]) for item in (w, p[0, copy_of], b[0, copy_of]))
        row = torch.cat([c[0, channel], c[0, channel].conj()])
        matrix = torch.diag(poles) - torch.outer(low_rank, low_rank.conj())
        half, one = space.log_dt[channel].detach().exp() / 2, torch.eye(len(poles), dtype=matrix.dtype)
        step = torch.linalg.solve(one - half * matrix, one + half * matrix)
        entry = torch.linalg.solve(one - half * matrix, 2 * half * entry)
        if stored:
            row = torch.linalg.solve((one - torch.linalg.matrix_power(step, stored)).T, row)
        state = torch.zeros(len(u), len(poles), dtype=matrix.dtype)
        for position in range(u.size(1)):
            state = state @ step.T + u[:, position, channel, None] * entry
            outputs[:, position, channel] = (state @ row).real
    return outputs


@pytest.mark.parametrize("length", [-5, 2**40, 1j])
def test_a_damaged_length_is_rejected(length: complex) -> None:
    """A negative one never ended, a large one took memory in proportion."""
    decoder = filled(next(iter(cases.S4)))
    weights = decoder.state_dict()
    name = next(name for name in weights if name.endswith(".L"))
    with pytest.raises(UserError, match=rf"{name} must be between 0 and 16384, found .*: the file is damaged"):
        decoder.load_state_dict({**weights, name: torch.tensor(length)})
    decoder.load_state_dict({**weights, name: torch.tensor(512)})


def test_a_kernel_reads_nothing_from_the_device() -> None:
    """Reading a tensor of the meta device is an error."""
    space = StateSpace(4, states=6, copies=1, dt_min=0.01, dt_max=0.1, lr=None).to("meta")
    assert convolve(torch.zeros(2, 9, 4, device="meta"), space.kernel(9)).shape == (2, 9, 4)


def test_64_states_in_float32_are_precise() -> None:
    torch.manual_seed(0)
    space = StateSpace(16, states=64, copies=1, dt_min=0.001, dt_max=0.1, lr=None)
    u = torch.randn(1, 300, 16)
    with torch.no_grad():
        found = convolve(u, space.kernel(300))
        expected = convolve(u.double(), copy.deepcopy(space).double().kernel(300))
        steps, state = space.recurrence(), torch.zeros(1, 16, 32, dtype=torch.cfloat)
        for position in range(300):
            state = steps.advance(state, u[:, position])
            torch.testing.assert_close(steps.read(state)[0], found[0, position], atol=1e-4, rtol=0)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=0)


def test_gradients_through_kernels_of_every_length() -> None:
    torch.manual_seed(0)
    space = StateSpace(2, states=4, copies=1, dt_min=0.01, dt_max=0.1, lr=None).double()
    names = [name for name, _ in space.named_parameters()]
    for stored, length in ((0, 5), (8, 5), (4, 13)):
        store_length(space, stored)

        def kernel(*values: Tensor, length: int = length) -> Tensor:
            given = dict(zip(names, values, strict=True))
            return torch.func.functional_call(_Kernel(space), {f"space.{k}": v for k, v in given.items()}, (length,))

        assert torch.autograd.gradcheck(kernel, tuple(item.detach().requires_grad_() for item in space.parameters()))


class _Kernel(torch.nn.Module):
    def __init__(self, space: StateSpace) -> None:
        super().__init__()
        self.space = space

    def forward(self, length: int) -> Tensor:
        return self.space.kernel(length)


def test_learning_rates_and_weight_decay_equal_espnet2() -> None:
    """With --exclude_weight_decay true; `lr` has no effect without it."""
    decoder = build(CONF)
    optimizer = build_optimizer(
        torch.optim.AdamW, cases.S4_OPTIMIZER, list(decoder.named_parameters()),
        without_decay=names_without_decay(decoder), own_rates=own_rates(decoder),
    )  # fmt: skip
    names = {id(parameter): name for name, parameter in decoder.named_parameters()}
    found = {
        names[id(parameter)]: [group["lr"], group["weight_decay"]]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert found == GOLDEN["s4 optimizer"]
    assert found["decoder.layers.0.layer.kernel.kernel.log_dt"] == [0.0025, 0.0]


def test_layer_decay_scales_own_learning_rates() -> None:
    decoder = build(CONF)
    name = "decoder.layers.0.layer.kernel.kernel.log_dt"
    optimizer = build_optimizer(
        torch.optim.AdamW, cases.S4_OPTIMIZER, list(decoder.named_parameters()),
        lr_factors={name: 0.5}, own_rates=own_rates(decoder),
    )  # fmt: skip
    parameter = decoder.get_parameter(name)
    rates = [group["lr"] for group in optimizer.param_groups if any(item is parameter for item in group["params"])]
    assert rates == [0.00125]


def test_stochastic_depth_drops_utterances_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    block = build({**CONF, "drop_path": 0.25, "dropout": 0.0}).decoder.layers[2].train()
    x = torch.zeros(4000, 1, 8)
    with torch.no_grad():
        factors = (block(x, x, x) - x).abs().sum((1, 2))
    kept = factors > 0
    assert 0.72 < kept.float().mean() < 0.78
    whole = block.eval()(x[:1], x[:1], x[:1]).abs().sum()
    torch.testing.assert_close(factors[kept], whole.expand(int(kept.sum())) / 0.75)


def test_recomputed_activations_give_the_same_gradients() -> None:
    gradients = []
    for is_on in (False, True):
        decoder = filled("stored length").train()
        decoder.set_grad_checkpointing(is_on)
        torch.manual_seed(1)
        memory, text = part_cases.memory(0), part_cases.tokens(0)
        decoder(memory, torch.tensor([memory.size(1)]), text, torch.tensor([text.size(1)])).square().sum().backward()
        gradients.append([item.grad for item in decoder.parameters()])
    assert all(gradient is not None for gradient in gradients[0])
    torch.testing.assert_close(gradients[0], gradients[1], atol=0, rtol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer": None}, "decoder_conf layer: list the layers"),
        ({"layer": [{"n_head": 2}]}, "decoder_conf layer 1: _name_ must be one of s4, mha, ff, found None"),
        ({"layer": [{"_name_": "os:system"}]}, "layer 1: _name_ must be one of s4, mha, ff, found os:system"),
        ({"layer": [{"_name_": "ff"}, {"_name_": "mha"}]}, "decoder_conf layer 2: n_head: the layer 'mha' needs it"),
        (
            {"layer": {"_name_": "mha", "n_head": 3}},
            "decoder_conf layer 1: layer_conf: n_head must divide the encoder's",
        ),
        ({"layer": [{"_name_": "s4", "n_ssm": 3}]}, "n_ssm must divide the encoder's output size 8, found 3"),
        ({"layer": [{"_name_": "s4", "d_state": 7}]}, "d_state must be even, found 7"),
        ({"layer": [{"_name_": "s4", "dt_min": 0.2}]}, "dt_min must be at most dt_max, found 0.2 and 0.1"),
        ({"layer": [{"_name_": "s4", "measure": "legt"}]}, "layer 1: measure: expects legs, found 'legt'"),
        ({"layer": [{"_name_": "s4", "l_max": 50}]}, "layer 1: l_max: expects null, found 50"),
        ({"layer": [{"_name_": "s4", "bidirectional": True}]}, "layer 1: bidirectional: expects false"),
        ({"layer": [{"_name_": "ff", "dropout": 1.5}]}, "layer 1: dropout: must be at least 0 and below 1, found 1.5"),
        ({"layer": [{"_name_": "ff", "expnd": 4}]}, "has no key 'expnd'. Did you mean 'expand'"),
        ({"residual": "highway"}, "residual: expects residual | null, found 'highway'"),
        ({"norm": "batch"}, "norm: expects layer | null, found 'batch'"),
        ({"pool": {"_name_": "pool"}}, "pool: expects null"),
        ({"transposed": True}, "transposed: expects false"),
    ],
)
def test_other_configurations_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build({**CONF, **changes})
    assert message in str(caught.value)
