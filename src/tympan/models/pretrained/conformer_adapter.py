"""The Conformer layers of wav2vec 2.0 in `transformers`, applied after another encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tympan.errors import UserError
from tympan.models.pretrained.folder import require_transformers

_NOT_ARCHITECTURE = ("model_type", "torch_dtype", "dtype", "auto_map", "architectures", "transformers_version")


class ConformerAdapter(nn.Module):
    """`architecture` is the content of a config.json of type wav2vec2-conformer.

    Differs from `transformers` in a padded batch: convolutions see zeros after the end of an utterance.
    """

    IS_NEVER_FROZEN = True
    """The layers of `transformers` read the dtypes of their weights."""

    def __init__(self, architecture: Mapping[str, Any], size: int) -> None:
        super().__init__()
        transformers = require_transformers()
        values = {key: item for key, item in architecture.items() if key not in _NOT_ARCHITECTURE}
        config = transformers.AutoConfig.for_model("wav2vec2-conformer", **values)
        if config.hidden_size != size:
            raise UserError(
                f"encoder_conf adapter_config: hidden_size is {config.hidden_size}, but the encoder has {size}"
            )
        encoder = transformers.AutoModel.from_config(config, dtype=torch.float32).encoder
        self.embed_positions, self.pos_conv_embed = encoder.embed_positions, encoder.pos_conv_embed
        self.layer_norm, self.layers = encoder.layer_norm, encoder.layers
        self.pos_conv_embed.requires_grad_(False)  # not used
        self._encoder = (encoder,)  # its layers are registered once, under their own names

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (batch, time, size); mask (batch, time), true for valid frames."""

        def clear(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (inputs[0] * mask.unsqueeze(1).to(inputs[0].dtype), *inputs[1:])

        hooks = [layer.conv_module.depthwise_conv.register_forward_pre_hook(clear) for layer in self.layers]
        encoder = self._encoder[0].train(self.training)
        try:
            out: Tensor = encoder(x.clone(), attention_mask=mask).last_hidden_state
        finally:
            for hook in hooks:
                hook.remove()
        return out
