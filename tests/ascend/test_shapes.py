"""Where every shape is compiled, training and decoding use a fixed set of shapes (on the stand-in device)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tympan.models import ctc_loss as module
from tympan.models.ctc_loss import ctc_loss

pytestmark = pytest.mark.timeout(1000)
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    paths = [HERE.parent / "runtime" / "stand_in", HERE.parent / "integration"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "steady_shapes.py"), str(tmp_path_factory.mktemp("shapes"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", ["training", "validation"])
def test_batches_of_a_bucket_bring_no_new_shape(result: dict[str, Any], part: str) -> None:
    """The lengths are spread like AISHELL's: 4 buckets and the last, smaller batch."""
    found = result[part]
    assert found["batches"] >= 2 * found["shapes"], "every shape must occur again"
    assert found["shapes"] <= 4 + 1
    assert found["new after the first of a shape"] == 0, found["examples"]


@pytest.mark.slow
def test_decoding_gives_the_hypotheses_of_the_cpu_with_few_new_shapes(result: dict[str, Any]) -> None:
    found = result["decoding"]
    assert [[text for text, _ in hypotheses] for hypotheses in found["npu"]] == [
        [text for text, _ in hypotheses] for hypotheses in found["cpu"]
    ]
    scores = [[score for hypotheses in found[name] for _, score in hypotheses] for name in ("npu", "cpu")]
    assert scores[0] == pytest.approx(scores[1], abs=2e-3)
    assert found["together"] == [hypotheses[0][0] for hypotheses in found["cpu"][:3]]
    assert found["new"][0] > 50
    assert max(found["new"][1:]) <= 50, found["new"]


def test_ctc_with_a_dummy_transcript_equals_plain_ctc() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 12, 5, requires_grad=True)
    lengths, text = torch.tensor([12, 9, 7]), torch.randint(1, 5, (3, 8))
    text_lengths = torch.tensor([4, 5, 2])
    losses = ctc_loss(logits, lengths, text, text_lengths, blank_id=0, zero_infinity=True)
    (expected,) = torch.autograd.grad(losses.sum(), logits)
    fixed = module._in_fixed_shapes(
        logits.log_softmax(-1).transpose(0, 1), lengths, text, text_lengths, blank_id=0, zero_infinity=True
    )
    (gradient,) = torch.autograd.grad(fixed.sum(), logits)
    torch.testing.assert_close(fixed, losses)
    torch.testing.assert_close(gradient, expected)
