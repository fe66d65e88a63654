"""Dynamic quantization: layers with 8-bit or 16-bit weights, for decoding on a CPU.

The scale of a layer's input is computed over the whole batch, so a result depends on what is decoded together.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import nn

from tympan.nn.frozen import NeverFrozen

QUANTIZABLE: dict[str, type[nn.Module]] = {
    "Linear": nn.Linear,
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "LSTMCell": nn.LSTMCell,
    "GRUCell": nn.GRUCell,
}
"""The classes of torch.nn that can be quantized, by name."""


def quantize(model: nn.Module, modules: Sequence[str], dtype: str) -> int:
    """Replace the layers of these classes by quantized ones, in place, and return their number.

    The model must be on the CPU, in float32, and only be evaluated from now on. Layers of other packages, which read
    the weights of their parts, are left as they are.
    """
    from torch.ao import quantization

    kinds = {QUANTIZABLE[name] for name in modules}
    kept = {inner for module in model.modules() if isinstance(module, NeverFrozen) for inner in module.modules()}
    names = [name for name, module in model.named_modules() if type(module) in kinds and module not in kept]
    is_half = dtype == "float16"
    config = quantization.float16_dynamic_qconfig if is_half else quantization.default_dynamic_qconfig
    with warnings.catch_warnings():
        # torch recommends the package torchao instead.
        warnings.filterwarnings("ignore", message=".*quantiz")
        number_format = torch.float16 if is_half else torch.qint8
        quantization.quantize_dynamic(model, dict.fromkeys(names, config), dtype=number_format, inplace=True)  # type: ignore[no-untyped-call]
    return len(names)
