"""Make tests/golden/s3prl: hidden states of s3prl's own classes for tiny random models and computed audio.

    pip download s3prl==0.4.18 --no-deps --no-binary :all: && tar xzf s3prl-0.4.18.tar.gz
    python tests/golden/make_s3prl.py s3prl-0.4.18/s3prl

Only the files with the models are imported: the package itself needs torchaudio.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

OUTPUT = Path(__file__).parent / "s3prl"
SIZES = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 2,
    "conv_feature_layers": "[(8,10,5)] + [(8,3,2)] * 4 + [(8,2,2)] * 2",
    "conv_pos": 16,
    "conv_pos_groups": 4,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
}


def load_classes(package: Path) -> dict[str, Any]:
    for name in ("s3prl", *(f"s3prl.upstream{part}" for part in ("", ".wav2vec2", ".hubert", ".wavlm"))):
        module = types.ModuleType(name)
        module.__path__ = [str(package.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module
    from s3prl.upstream.hubert.hubert_model import HubertConfig, HubertModel, HubertPretrainingConfig
    from s3prl.upstream.wav2vec2.wav2vec2_model import Wav2Vec2Config, Wav2Vec2Model
    from s3prl.upstream.wavlm.WavLM import WavLM, WavLMConfig

    return {
        "wav2vec2": lambda cfg: Wav2Vec2Model(Wav2Vec2Config(**cfg, final_dim=8, latent_vars=4)),
        "hubert": lambda cfg: HubertModel(
            HubertConfig(**cfg, final_dim=8, label_rate=50), HubertPretrainingConfig(label_rate=50), [["a", "b"]]
        ),
        "wavlm": lambda cfg: WavLM(WavLMConfig({**cfg, "relative_position_embedding": True, "gru_rel_pos": True})),
    }


def config_of(family: str, is_layer_norm: bool) -> dict[str, Any]:
    cfg = {**SIZES, "extractor_mode": "layer_norm" if is_layer_norm else "default", "layer_norm_first": is_layer_norm}
    if family == "wavlm":
        return {**cfg, "conv_bias": False, "num_buckets": 32, "max_distance": 80, "normalize": is_layer_norm}
    return {**cfg, "conv_bias": is_layer_norm}


def audio() -> torch.Tensor:
    time = torch.arange(6400) / 16000
    return (0.3 * torch.sin(2 * torch.pi * (200 + 900 * time) * time)).unsqueeze(0)


def hidden_states(model: Any, family: str, speech: torch.Tensor) -> list[torch.Tensor]:
    """The input of every layer and the output of the encoder, as s3prl's hooks take them."""
    states: list[torch.Tensor] = []
    last: list[torch.Tensor] = []
    for layer in model.encoder.layers:
        layer.register_forward_pre_hook(lambda _, args: states.append(args[0].transpose(0, 1)))
    model.encoder.register_forward_hook(lambda _, args, output: last.append(output[0]))
    mask = torch.zeros(speech.shape, dtype=torch.bool)
    with torch.no_grad():
        if family == "wav2vec2":
            model.extract_features(speech, mask)
        else:
            model.extract_features(speech, padding_mask=mask, mask=False if family == "wavlm" else None)
    frames = last[0].size(1)
    return [state[:, :frames] for state in [*states, last[0]]]


def main() -> None:
    classes = load_classes(Path(sys.argv[1]))
    for family, build in classes.items():
        for is_layer_norm in (False, True):
            torch.manual_seed(1)
            model = build(config_of(family, is_layer_norm)).eval()
            for parameter in model.parameters():
                if parameter.dim() <= 1:
                    torch.nn.init.normal_(parameter, std=0.3)
            speech = audio()
            normalized = torch.nn.functional.layer_norm(speech, speech.shape[1:]) if is_layer_norm else speech
            states = torch.cat(hidden_states(model, family, normalized))
            task = {} if family == "wavlm" else {"task_cfg": {"normalize": is_layer_norm}}
            keys = ("cfg", "model") if family == "wavlm" else ("model_cfg", "model_weight")
            name = f"{family}_{'layer' if is_layer_norm else 'group'}"
            torch.save(
                {keys[0]: config_of(family, is_layer_norm), keys[1]: model.state_dict(), **task}, OUTPUT / f"{name}.pt"
            )
            np.save(OUTPUT / f"{name}.npy", states.numpy())


if __name__ == "__main__":
    main()
