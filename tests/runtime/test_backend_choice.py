"""--dist_backend: ESPnet2's default selects the backend of the device; any other value must match the device."""

from __future__ import annotations

import pytest

from tympan.errors import UserError
from tympan.runtime.device import backend_for


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [
        ("cpu", "nccl", "gloo"),
        ("cuda", "nccl", "nccl"),
        ("cuda", "gloo", "gloo"),
        ("npu", "hccl", "hccl"),
        ("npu", "nccl", "hccl"),
    ],
)
def test_backend(kind: str, asked: str, expected: str) -> None:
    assert backend_for(kind, asked) == expected


def test_backend_that_does_not_fit() -> None:
    with pytest.raises(UserError, match="--dist_backend hccl: cpu uses gloo; remove the option"):
        backend_for("cpu", "hccl")
