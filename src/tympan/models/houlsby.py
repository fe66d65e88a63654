"""Bottleneck adapters (Houlsby et al. 2019, https://arxiv.org/abs/1902.00751), with ESPnet2's options.

An adapter follows the last linear layer of a feed-forward block: y + up(gelu(down(y))). ESPnet2 adds them to the layers
of an s3prl frontend only; here they can be added to every linear layer. `up` is zero at first, so that a new adapter
changes nothing; in ESPnet2 it is random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from torch import Tensor, nn

from tympan.config.range import Range
from tympan.errors import UserError
from tympan.models.adapter import candidates, train_only, why_no_linear

PRETRAINED, OWN, WHISPER = "feed_forward.output_dense", "feed_forward.w_2", "mlp.2"
"""Ends of the names of the last linear layer of a feed-forward block: of `transformers`, ours, and Whisper's."""


class HoulsbyLinear(nn.Linear):
    """A linear layer followed by a bottleneck adapter."""

    def __init__(self, layer: nn.Linear, *, bottleneck: int) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        kind: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
        up = nn.Linear(bottleneck, layer.out_features, **kind)
        nn.init.zeros_(up.weight)
        nn.init.zeros_(up.bias)
        self.houlsby_adapter = nn.Sequential(nn.Linear(layer.out_features, bottleneck, **kind), nn.GELU(), up)

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        added: Tensor = self.houlsby_adapter(out)
        return out + added


class Houlsby:
    """The adapter `houlsby`: its parameters are the keys of `adapter_conf`."""

    MERGES: ClassVar[bool] = False
    scale = 1.0

    def __init__(
        self,
        bottleneck: Annotated[int, Range(1, 100000)] = 32,
        target_layers: Annotated[tuple[int, ...], Range(0, 10_000)] = (),
        target_modules: tuple[str, ...] = (),
    ) -> None:
        """`target_layers`: indices of the layers; empty: all. `target_modules`: ends of the names of linear layers;
        empty: those of a pretrained frontend as in ESPnet2, or else of all feed-forward blocks.
        """
        self.bottleneck = bottleneck
        self.target_layers = tuple(target_layers)
        self.target_modules = tuple(target_modules)

    def add_to(self, model: nn.Module, *, freezes: bool, also_train: Sequence[str] = ()) -> list[str]:
        """Put adapters into the model, in place; returns the names of the adapted layers. `freezes` as in `Lora`."""
        names = self._targets(model)
        for name in names:
            layer = model.get_submodule(name)
            if not isinstance(layer, nn.Linear):
                raise UserError(
                    f"--adapter_conf target_modules: {name} is a {type(layer).__name__}; adapters can follow only "
                    f"linear layers. Use other names{why_no_linear(name)}"
                )
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, HoulsbyLinear(layer, bottleneck=self.bottleneck))
        if freezes:
            train_only(model, also_train)
        return names

    def _targets(self, model: nn.Module) -> list[str]:
        every = [name for name, _ in model.named_modules()]
        if self.target_modules:
            found = [name for name in every if name.endswith(self.target_modules)]
        else:
            frontend = [name for name in every if name.startswith("frontend.") and name.endswith(PRETRAINED)]
            found = frontend or [name for name in every if name.endswith((OWN, PRETRAINED, WHISPER))]
        if self.target_layers:
            wanted = {str(index) for index in self.target_layers}
            found = [name for name in found if wanted & set(name.split("."))]
        if not found:
            what = ", ".join(self.target_modules) or OWN
            layers = f" in the layers {', '.join(map(str, self.target_layers))}" if self.target_layers else ""
            raise UserError(
                f"--adapter_conf: no layer's name ends in {what}{layers}; linear layers of this model are named "
                f"{', '.join(candidates(model))}. Name some of them, or set --use_adapter false"
            )
        return found
