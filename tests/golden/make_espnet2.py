"""Make tests/golden/espnet2 by running ESPnet2 on synthetic audio. Runs in ESPnet's environment.

usage: PYTHONPATH=STAND_IN ENV/bin/python tests/golden/make_espnet2.py

ENV is made by `benchmarks/peer_espnet.py --setup_only`, which also makes the stand-in for torchaudio. Needs kenlm.
Weights are random and rounded to float16, so that the files are small; ESPnet2 computes with them in float32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
import yaml
from espnet.nets.beam_search import BeamSearch
from espnet.nets.scorers.ctc import CTCPrefixScorer
from espnet.nets.scorers.length_bonus import LengthBonus
from espnet.nets.scorers.ngram import NgramFullScorer, NgramPartScorer
from espnet2.tasks.asr import ASRTask

HERE = Path(__file__).resolve().parent
RATE = 16000
TOKENS = ["<blank>", "<unk>", *(chr(0x4E00 + number) for number in range(40)), "<sos/eos>"]
UTTERANCES = {"glide": 22_400, "sweep": 15_000}
TEXTS = {"glide": [5, 9, 4, 4, 30, 12, 7, 22, 17], "sweep": [8, 3, 3, 41, 16, 6]}

_ENCODER = {"output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 2}
_CONFORMER = {**_ENCODER, "macaron_style": True, "use_cnn_module": True}
_LATEST = {"pos_enc_layer_type": "rel_pos", "selfattention_layer_type": "rel_selfattn", "rel_pos_type": "latest"}
_BRANCH = {"output_size": 16, "attention_heads": 2, "cgmlp_linear_units": 32, "cgmlp_conv_kernel": 15, "num_blocks": 2}
_DECODER = {
    "decoder": "transformer",
    "decoder_conf": {"attention_heads": 2, "linear_units": 24, "num_blocks": 2, "dropout_rate": 0.1},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "conformer": {
        "encoder": "conformer",
        "encoder_conf": {**_CONFORMER, **_LATEST, "cnn_module_kernel": 15, "activation_type": "swish"},
        **_DECODER,
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1},
        "frontend_conf": {"fs": 16000, "n_fft": 512, "hop_length": 160, "n_mels": 80},
    },
    "transformer": {"encoder": "transformer", "encoder_conf": _ENCODER, **_DECODER, "model_conf": {"ctc_weight": 0.3}},
    "e_branchformer": {
        "encoder": "e_branchformer",
        "encoder_conf": {**_BRANCH, "linear_units": 24, "use_ffn": True, "macaron_ffn": True, "merge_conv_kernel": 7},
        **_DECODER,
        "model_conf": {"ctc_weight": 0.3},
    },
    "branchformer": {
        "encoder": "branchformer",
        "encoder_conf": {**_BRANCH, "use_attn": True, "use_cgmlp": True, "merge_method": "concat"},
        **_DECODER,
        "model_conf": {"ctc_weight": 0.3},
    },
    "vgg_rnn": {
        "encoder": "vgg_rnn",
        "encoder_conf": {"rnn_type": "lstm", "num_layers": 1, "hidden_size": 8, "output_size": 8},
        "decoder": "rnn",
        "decoder_conf": {
            "num_layers": 1,
            "hidden_size": 16,
            "att_conf": {"atype": "location", "adim": 16, "aconv_chans": 4, "aconv_filts": 10},
        },
        "model_conf": {"ctc_weight": 0.5},
        "frontend_conf": {"n_mels": 16},
    },
    "ctc_only": {
        "encoder": "conformer",
        "encoder_conf": {**_CONFORMER, **_LATEST, "input_layer": "conv2d2", "cnn_module_kernel": 31},
        "decoder": None,
        "model_conf": {"ctc_weight": 1.0},
    },
}
SEARCH = {
    "beam_size": 5,
    "weights": {"decoder": 0.7, "ctc": 0.3, "length_bonus": 0.2},
    "maxlenratio": -15,
    "minlenratio": 0.0,
    "pre_beam_ratio": 1.5,
    "pre_beam_score_key": "full",
}
NGRAM_SEARCH = {
    **SEARCH,
    "beam_size": 6,
    "weights": {"decoder": 0.5, "ctc": 0.5, "ngram": 0.3, "length_bonus": 0.1},
    "maxlenratio": -12,
}


def main() -> None:
    torch.set_num_threads(1)
    speech = {name: write_audio(name, samples) for name, samples in UTTERANCES.items()}
    for name, settings in CONFIGS.items():
        config = {
            **settings,
            "normalize": "utterance_mvn",
            "frontend": "default",
            "token_type": "char",
            "token_list": TOKENS,
        }
        folder = HERE / "espnet2" / name
        folder.mkdir(exist_ok=True)
        model = write_model(config, folder)
        write_values(model, speech, folder)
        if name == "conformer":
            write_ngram_search(model, speech)


def write_audio(name: str, samples: int) -> torch.Tensor:
    """Harmonics of a gliding pitch with changing loudness and a little noise, as 16-bit samples."""
    rng = np.random.default_rng(len(name) + samples)
    time = np.arange(samples) / RATE
    pitch_hz = 110 + 60 * np.sin(2 * np.pi * (1.3 if name == "glide" else 2.9) * time)
    phase = 2 * np.pi * np.cumsum(pitch_hz) / RATE
    tones = sum(np.sin(k * phase + k) / k**0.7 * (1 + np.sin(2 * np.pi * (0.7 + k / 5) * time)) for k in range(1, 25))
    loud = 0.6 + 0.4 * np.sin(2 * np.pi * 3.1 * time)
    sound = np.rint(32767 * np.clip(0.02 * loud * tones + 0.03 * rng.standard_normal(samples), -1, 1)).astype(np.int16)
    path = HERE / "kaldi" / f"{name}.wav"
    soundfile.write(path, sound, RATE)
    return torch.from_numpy(soundfile.read(path, dtype="float32")[0])


def write_model(config: dict[str, Any], folder: Path) -> torch.nn.Module:
    text = yaml.safe_dump(config, allow_unicode=True, sort_keys=False)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    defaults = ASRTask.get_default_config()
    full = defaults | config | {"model_conf": defaults["model_conf"] | config["model_conf"]}
    torch.manual_seed(0)
    model = ASRTask.build_model(argparse.Namespace(**full)).eval()
    state = {}
    for name, tensor in model.state_dict().items():
        is_weight = tensor.is_floating_point() and not name.startswith("frontend.")
        if is_weight:  # running statistics and biases get values that are not all alike
            tensor.add_(0.02 * torch.randn_like(tensor)).copy_(tensor.half().float())
        state[name] = tensor.half() if is_weight else tensor
    torch.save(state, folder / "model.pth")
    return model


@torch.no_grad()
def write_values(model: torch.nn.Module, speech: dict[str, torch.Tensor], folder: Path) -> None:
    """What ESPnet2 computes for each utterance alone: its results depend on padding."""
    tensors, losses, nbest = {}, {}, {}
    for index, (name, samples) in enumerate(speech.items()):
        batch, length = samples[None], torch.tensor([len(samples)])
        feats, _ = model._extract_feats(batch, length)
        encoded, encoded_length = model.encode(batch, length)
        text = torch.tensor(TEXTS[name])
        found = {
            "feats": feats[0],
            "encoder_out": encoded[0],
            "ctc_log_probs": model.ctc.log_softmax(encoded)[0],
            "text": text,
        }
        if model.decoder is not None:
            ys_in = torch.tensor([model.sos, *TEXTS[name]])
            logits, _ = model.decoder(encoded, encoded_length, ys_in[None], torch.tensor([len(ys_in)]))
            found |= {"decoder_log_probs": logits[0].log_softmax(-1), "ys_in": ys_in}
            nbest[name] = search(model, encoded[0], SEARCH)
        tensors |= {f"{key}_{index}": value.numpy() for key, value in found.items()}
        loss, stats, _ = model(batch, length, text[None], torch.tensor([len(text)]))
        losses[name] = {key: None if value is None else float(value) for key, value in stats.items()} | {
            "loss": float(loss)
        }
    np.savez_compressed(folder / "tensors.npz", **tensors)
    write_json(
        folder / "expected.json",
        {"utterances": list(speech), "losses_single_utterance": losses, "search": SEARCH, "nbest": nbest},
    )


@torch.no_grad()
def write_ngram_search(model: torch.nn.Module, speech: dict[str, torch.Tensor]) -> None:
    folder = HERE / "espnet2" / "conformer_ngram"
    nbest: dict[str, dict[str, Any]] = {}
    for form, scorer in (("full", NgramFullScorer), ("part", NgramPartScorer)):
        ngram = scorer(str(folder / "4gram.arpa"), TOKENS)
        nbest[form] = {
            name: search(
                model, model.encode(samples[None], torch.tensor([len(samples)]))[0][0], NGRAM_SEARCH, ngram=ngram
            )
            for name, samples in speech.items()
        }
    write_json(folder / "expected.json", {"model": "conformer", "search": NGRAM_SEARCH, "nbest": nbest})


def search(
    model: torch.nn.Module, encoded: torch.Tensor, settings: dict[str, Any], **others: Any
) -> list[dict[str, Any]]:
    """ESPnet2's search of one utterance: tokens with sos and eos, the score, and the parts before weighting."""
    scorers = {
        "decoder": model.decoder,
        "ctc": CTCPrefixScorer(ctc=model.ctc, eos=model.eos),
        "length_bonus": LengthBonus(len(TOKENS)),
        **others,
    }
    beam = BeamSearch(
        beam_size=settings["beam_size"],
        vocab_size=len(TOKENS),
        weights=settings["weights"],
        scorers=scorers,
        sos=model.sos,
        eos=model.eos,
        token_list=TOKENS,
        pre_beam_ratio=settings["pre_beam_ratio"],
        pre_beam_score_key=settings["pre_beam_score_key"],
    )
    found = beam(x=encoded, maxlenratio=settings["maxlenratio"], minlenratio=settings["minlenratio"])
    return [
        {
            "yseq": [int(token) for token in hypothesis.yseq],
            "score": float(hypothesis.score),
            "scores": {name: float(score) for name, score in hypothesis.scores.items()},
        }
        for hypothesis in found[: settings["beam_size"]]
    ]


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
