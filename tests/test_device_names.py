"""Device names and torch.distributed are used only in `runtime/` (option choices and documentation are exempt)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "tympan"
DEVICE = re.compile(r"(cuda|npu|mps|xpu|nccl|hccl|gloo)(:\d+)?")
METHODS = {"cuda", "npu", "mps"}


def violations(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    exempt = {id(inner) for node in ast.walk(tree) if _is_exempt(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in exempt:
            continue
        if isinstance(node, ast.Import) and any(_is_distributed(item.name) for item in node.names):
            yield f"{node.lineno}: import of torch.distributed"
        elif (
            isinstance(node, ast.ImportFrom)
            and node.module
            and (
                _is_distributed(node.module)
                or (node.module == "torch" and any(x.name == "distributed" for x in node.names))
            )
        ):
            yield f"{node.lineno}: import from torch.distributed"
        elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith(
            ("torch.distributed", "torch.cuda", "torch.npu", "torch.mps")
        ):
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            yield f"{node.lineno}: .{node.func.attr}()"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DEVICE.fullmatch(node.value):
            yield f"{node.lineno}: {node.value!r}"


def _is_distributed(name: str) -> bool:
    return name == "torch.distributed" or name.startswith("torch.distributed.") or name == "torch_npu"


def _is_exempt(node: ast.AST) -> bool:
    """`Literal["cpu", "cuda", ...]` and what `option(...)` declares are choices of the user."""
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.value).endswith("Literal")
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("option", "choice", "not_yet")


@pytest.mark.parametrize(
    "path",
    sorted(path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "runtime"),
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_only_runtime_knows_devices(path: Path) -> None:
    assert list(violations(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed as dist",
        "from torch import distributed",
        "from torch.distributed import all_reduce",
        "x = y.cuda()",
        "x = y.to('cuda:0')",
        "if torch.cuda.is_available(): pass",
        "backend = 'nccl'",
    ],
)
def test_the_scan_finds(text: str) -> None:
    assert list(violations(text))


@pytest.mark.parametrize(
    "text", ["device: Literal['cpu', 'cuda'] = option(None, help='cuda')", "x.to('cpu')", "'''cuda is fast'''"]
)
def test_the_scan_lets_pass(text: str) -> None:
    assert not list(violations(text))
