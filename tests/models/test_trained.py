"""A model that ESPnet2 trained, with global normalization: intermediate values and losses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import yaml

from tests.models.golden_espnet2 import config_of, pad
from tympan.models.build import build_asr_model
from tympan.models.hybrid import HybridModel
from tympan.models.weights import load_weights


@pytest.fixture(scope="module")
def folder(golden: Path) -> Path:
    return golden / "espnet2" / "an4_trained"


@pytest.fixture(scope="module")
def model(folder: Path) -> HybridModel:
    config = config_of(**yaml.safe_load((folder / "asr_config.yaml").read_text(encoding="utf-8")))
    config.normalize_conf = {"stats_file": folder / "feats_stats.npz"}
    model = build_asr_model(config)
    weights = load_weights(folder / "asr_model.pth")
    torch.testing.assert_close(model.normalize.mean, weights["normalize.mean"])
    torch.testing.assert_close(model.normalize.std, weights["normalize.std"])
    torch.testing.assert_close(model.frontend.logmel.melmat, weights["frontend.logmel.melmat"], atol=1e-8, rtol=1e-5)
    model.load_state_dict(weights)
    return model.eval()


@torch.no_grad()
def test_values_of_every_stage(model: HybridModel, folder: Path) -> None:
    expected = {k: torch.from_numpy(v) for k, v in np.load(folder / "tensors_cen8-fcaw-b.npz").items()}
    lengths = torch.tensor([expected["speech"].size(1)])
    # `logmel` there is normalized too (in place).
    feats = model.collect_feats(expected["speech"], lengths)
    normalized = model.normalize(feats["feats"], feats["feats_lengths"])
    torch.testing.assert_close(normalized, expected["logmel_normalized"], atol=1e-4, rtol=0)
    encoded = model.encode(expected["speech"], lengths)
    torch.testing.assert_close(encoded.out, expected["encoder_out"], atol=1e-4, rtol=0)
    torch.testing.assert_close(model.ctc.log_softmax(encoded.out), expected["ctc_log_probs"], atol=1e-4, rtol=0)
    logits = model.decoder(encoded.out, encoded.lengths, expected["ys_in"], torch.tensor([32]))
    torch.testing.assert_close(logits, expected["decoder_logits"], atol=1e-4, rtol=0)


@torch.no_grad()
def test_losses_of_a_padded_batch_are_those_of_espnet2_one_by_one(model: HybridModel, folder: Path) -> None:
    expected = json.loads((folder / "losses_per_utt.json").read_text(encoding="utf-8"))
    rows = [line.split(maxsplit=1) for line in (folder / "text").read_text(encoding="utf-8").splitlines()]
    speech = [torch.from_numpy(soundfile.read(folder / "wav" / f"{name}.wav", dtype="float32")[0]) for name, _ in rows]
    ids = {token: index for index, token in enumerate(model.token_list)}
    text = [torch.tensor([ids["<space>" if letter == " " else letter] for letter in line]) for _, line in rows]
    loss = model(*pad(speech), *pad(text, value=-1))
    for name, value in expected["mean_of_single"].items():
        assert (loss.stats[name].total / loss.stats[name].count).item() == pytest.approx(value, rel=1e-4)


def test_weights_bring_their_own_statistics(folder: Path) -> None:
    config = config_of(**yaml.safe_load((folder / "asr_config.yaml").read_text(encoding="utf-8")))
    model = build_asr_model(config, reads_statistics=False)
    weights = load_weights(folder / "asr_model.pth")
    model.load_state_dict(weights)
    assert torch.equal(model.normalize.std, weights["normalize.std"])
