"""Add to tests/golden/s3prl: the adapters and hidden states of ESPnet2's own Houlsby classes in tiny s3prl models.

    pip install espnet==202511 transformers
    pip download s3prl==0.4.18 --no-deps --no-binary :all: && tar xzf s3prl-0.4.18.tar.gz
    python tests/golden/make_houlsby.py s3prl-0.4.18/s3prl

ESPnet2 imports torchaudio for other classes; a stand-in is enough here. The adapters are stored under the names of an
ESPnet2 checkpoint with `save_strategy: adapter_only`.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from make_s3prl import OUTPUT, audio, config_of, hidden_states, load_classes

PREFIX = "frontend.upstream.upstream.model."
BOTTLENECK = 4
CASES = (("wav2vec2", False), ("wav2vec2", True), ("hubert", True))


def adapted(model: Any) -> Any:
    """The model with ESPnet2's adapters in all layers, with random weights of a size that changes the output."""
    for name in ("torchaudio", "torchaudio.functional", "torchaudio.transforms"):
        sys.modules.setdefault(name, MagicMock(__spec__=ModuleSpec(name, None)))
    from espnet2.layers.create_adapter_fn import create_new_houlsby_module

    layers = model.encoder.layers
    for index, layer in enumerate(layers):
        layers[index] = create_new_houlsby_module(layer, BOTTLENECK)
        for parameter in layers[index].adapter.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def main() -> None:
    classes = load_classes(Path(sys.argv[1]))
    for family, is_layer_norm in CASES:
        torch.manual_seed(2)
        name = f"{family}_{'layer' if is_layer_norm else 'group'}"
        model = classes[family](config_of(family, is_layer_norm))
        model.load_state_dict(torch.load(OUTPUT / f"{name}.pt", weights_only=True)["model_weight"])
        model = adapted(model)
        speech = audio()
        normalized = torch.nn.functional.layer_norm(speech, speech.shape[1:]) if is_layer_norm else speech
        states = torch.cat(hidden_states(model, family, normalized))
        own = {f"{PREFIX}{key}": value for key, value in model.state_dict().items() if ".adapter." in key}
        torch.save(own, OUTPUT / f"{name}_houlsby.pth")
        np.save(OUTPUT / f"{name}_houlsby.npy", states.numpy())


if __name__ == "__main__":
    main()
