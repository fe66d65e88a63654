"""Activation functions of the joint network, with values of ESPnet2's (espnet2/asr_transducer/activation.py)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tympan.config.choices import JOINT_NETWORKS
from tympan.errors import UserError
from tympan.models.joint_network import JointNetwork

POINTS = torch.tensor([-3.0, -0.5, 0.0, 0.3, 2.0, 25.0])
ESPNET2: list[tuple[str, dict[str, float], list[float]]] = [
    ("ftswish", {}, [-0.2, -0.2, -0.2, -0.2, 1.561594, 24.8]),
    (
        "ftswish",
        {"ftswish_threshold": -0.1, "ftswish_mean_shift": 0.25},
        [-0.35, -0.35, -0.35, -0.177667, 1.411594, 24.65],
    ),
    ("hardtanh", {}, [-1.0, -0.5, 0.0, 0.3, 1.0, 1.0]),
    ("hardtanh", {"hardtanh_min_val": -2.0, "hardtanh_max_val": 0.5}, [-2.0, -0.5, 0.0, 0.3, 0.5, 0.5]),
    ("leaky_relu", {}, [-0.03, -0.005, 0.0, 0.3, 2.0, 25.0]),
    ("leaky_relu", {"leakyrelu_neg_slope": 0.2}, [-0.6, -0.1, 0.0, 0.3, 2.0, 25.0]),
    ("mish", {}, [-0.145647, -0.220744, 0.0, 0.208001, 1.943959, 25.0]),
    (
        "mish",
        {"softplus_beta": 2.0, "softplus_threshold": 10},
        [-0.145647, -0.220744, 0.0, 0.208001, 1.943959, 25.0],
    ),
    ("relu", {}, [0.0, 0.0, 0.0, 0.3, 2.0, 25.0]),
    ("selu", {}, [-1.670569, -0.691758, 0.0, 0.31521, 2.101402, 26.267525]),
    ("smish", {}, [-0.138907, -0.154889, 0.0, 0.12753, 1.118437, 15.0]),
    ("smish", {"smish_alpha": 2.0, "smish_beta": 0.5}, [-0.996101, -0.347969, 0.0, 0.243249, 1.99828, 29.999941]),
    ("smish", {"smish_alpha": -1.0, "smish_beta": 0.0}, [-0.138907, -0.154889, 0.0, 0.12753, 1.118437, 15.0]),
    ("swish", {}, [-0.142278, -0.18877, 0.0, 0.172333, 1.761594, 25.0]),
    ("swish", {"swish_beta": 1.5}, [-0.213416, -0.283156, 0.0, 0.258499, 2.642391, 37.5]),
    ("swish", {"swish_beta": 0.5}, [-0.142278, -0.18877, 0.0, 0.172333, 1.761594, 25.0]),
    ("tanh", {}, [-0.995055, -0.462117, 0.0, 0.291313, 0.964028, 1.0]),
    ("identity", {}, [-3.0, -0.5, 0.0, 0.3, 2.0, 25.0]),
]


def joint_of(**conf: Any) -> JointNetwork:
    joint: JointNetwork = JOINT_NETWORKS.build("joint", conf, vocab_size=5, encoder_size=4, decoder_size=3)
    return joint


@pytest.mark.parametrize(("kind", "parameters", "expected"), ESPNET2)
def test_the_values_are_those_of_espnet2(kind: str, parameters: dict[str, float], expected: list[float]) -> None:
    joint = joint_of(joint_activation_type=kind, **parameters)
    torch.testing.assert_close(joint.joint_activation(POINTS.clone()), torch.tensor(expected), atol=2e-6, rtol=1e-6)
    assert sorted(joint.state_dict()) == [
        f"lin_{part}.{name}" for part in ("dec", "enc", "out") for name in ("bias", "weight")
    ]


@pytest.mark.parametrize("kind", sorted({kind for kind, _, _ in ESPNET2}))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_it_keeps_the_data_type(kind: str, dtype: torch.dtype) -> None:
    joint = joint_of(joint_activation_type=kind, ftswish_mean_shift=0.1, swish_beta=1.5)
    assert joint.joint_activation(POINTS.to(dtype)).dtype == dtype


def test_the_threshold_of_ftswish_is_negative() -> None:
    with pytest.raises(UserError, match="ftswish_threshold: must be below 0, found 0"):
        joint_of(joint_activation_type="ftswish", ftswish_threshold=0.0)


def test_hardtanh_needs_an_interval() -> None:
    with pytest.raises(UserError, match=r"hardtanh_max_val is 0\.5: the first must be smaller"):
        joint_of(joint_activation_type="hardtanh", hardtanh_min_val=1.0, hardtanh_max_val=0.5)
