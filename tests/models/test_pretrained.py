"""Pretrained encoders: equal to s3prl's own classes, independent of padding, and loadable from every source."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.golden.make_s3prl import audio
from tympan.config.choices import FRONTENDS
from tympan.errors import UserError
from tympan.models.parts import Frontend
from tympan.models.pretrained.fairseq import read_checkpoint
from tympan.models.pretrained.folder import find_folder, read_architecture
from tympan.models.pretrained.upstreams import UPSTREAMS, find_upstream

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

from tympan.models.pretrained.fused import FusedFrontends  # noqa: E402
from tympan.models.pretrained.huggingface import HuggingFaceFrontend  # noqa: E402
from tympan.models.pretrained.s3prl import S3prlFrontend  # noqa: E402
from tympan.models.pretrained.speech_encoder import FAMILIES, SpeechEncoder  # noqa: E402
from tympan.models.weights import in_own_names  # noqa: E402

GOLDEN = Path(__file__).parents[1] / "golden" / "s3prl"
CASES = sorted(path.stem for path in GOLDEN.glob("*.pt"))
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": [8] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}


def frontend(case: str, **options: Any) -> S3prlFrontend:
    conf = {"upstream": f"{case.partition('_')[0]}_local", "path_or_url": str(GOLDEN / f"{case}.pt")}
    conf |= options.pop("conf", {})
    built = S3prlFrontend(frontend_conf=conf, **options)
    built.load_pretrained()
    return built.eval()


def tiny_folder(directory: Path, family: str = "wavlm", *, is_layer_norm: bool = True) -> Path:
    """A model folder of `transformers` with random weights, as `save_pretrained` writes it."""
    norm = {"feat_extract_norm": "layer" if is_layer_norm else "group", "do_stable_layer_norm": is_layer_norm}
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **TINY, **norm)
    transformers.AutoModel.from_config(config).save_pretrained(directory)
    (directory / "preprocessor_config.json").write_text(json.dumps({"do_normalize": is_layer_norm}))
    return directory


@pytest.mark.parametrize("case", CASES)
def test_hidden_states_equal_those_of_s3prl(case: str) -> None:
    expected = torch.from_numpy(np.load(GOLDEN / f"{case}.npy"))
    architecture, weights = read_checkpoint(GOLDEN / f"{case}.pt", case.partition("_")[0])
    encoder = SpeechEncoder(architecture).eval()
    encoder.load(weights, case)
    with torch.no_grad():
        states, frames = encoder(audio(), torch.tensor([6400]))
    assert frames.tolist() == [expected.size(1)]
    torch.testing.assert_close(torch.cat(states), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_layer_norm", [False, True])
def test_padding_changes_nothing(family: str, is_layer_norm: bool, tmp_path: Path) -> None:
    """As the model of `transformers` by itself; in a batch, as alone."""
    built = HuggingFaceFrontend(str(tiny_folder(tmp_path, family, is_layer_norm=is_layer_norm)))
    built.load_pretrained()
    built.eval()
    speech = 0.1 * torch.randn(3, 9000, generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([9000, 3000, 6123])
    own = transformers.AutoModel.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        together, frames = built(speech, lengths)
        for row, length in enumerate(lengths.tolist()):
            samples = speech[row : row + 1, :length]
            alone, count = built(samples, lengths[row : row + 1])
            assert count.item() == frames[row] == built.output_lengths(lengths)[row]
            torch.testing.assert_close(together[row, : frames[row]], alone[0], atol=1e-5, rtol=0)
            assert not together[row, frames[row] :].any()
            given = nn.functional.layer_norm(samples, samples.shape[1:]) if is_layer_norm else samples
            torch.testing.assert_close(alone, own(given).last_hidden_state, atol=1e-5, rtol=0)


def test_they_are_frontends(tmp_path: Path) -> None:
    folder = str(tiny_folder(tmp_path))
    conf = {"upstream": "hf_wavlm_custom", "path_or_url": folder}
    for built in (
        FRONTENDS.build("huggingface", {"model": folder}),
        FRONTENDS.build("s3prl", {"frontend_conf": conf}),
        FRONTENDS.build("fused", {"frontends": [{"frontend_type": "s3prl", "frontend_conf": conf}]}),
    ):
        assert isinstance(built, Frontend)


def test_frames_are_counted_as_in_s3prl() -> None:
    """One frame for every 320 samples that have begun; the last one is repeated if the convolutions give less."""
    built = frontend("wavlm_layer")
    lengths = torch.tensor([6400, 6401, 100, 0])
    with torch.no_grad():
        features, frames = built(torch.randn(4, 6401), lengths)
    assert frames.tolist() == [20, 21, 1, 0] == built.output_lengths(lengths).tolist()
    assert torch.equal(features[0, 18], features[0, 19])
    assert features.shape == (4, 21, built.output_size)


def test_layers_sums_and_tiles() -> None:
    speech, lengths = audio(), torch.tensor([6400])
    states = torch.from_numpy(np.load(GOLDEN / "hubert_group.npy"))
    with torch.no_grad():
        assert torch.allclose(frontend("hubert_group")(speech, lengths)[0][0, :19], states[2], atol=1e-5)
        assert torch.allclose(frontend("hubert_group", layer=1)(speech, lengths)[0][0, :19], states[1], atol=1e-5)
        summed = frontend("hubert_group", multilayer_feature=True)
        assert torch.allclose(summed(speech, lengths)[0][0, :19], states.mean(0), atol=1e-5)
        summed.featurizer.weights.data = torch.tensor([0.0, 100.0, 0.0])
        assert torch.allclose(summed(speech, lengths)[0][0, :19], states[1], atol=1e-5)
        tiled, frames = frontend("hubert_group", conf={"tile_factor": 2})(speech, lengths)
    assert frames.tolist() == [40]
    assert torch.equal(tiled[:, ::2], tiled[:, 1::2])


def test_checkpoints_of_espnet2_load(tmp_path: Path) -> None:
    """Their names are those of s3prl, below `upstream.upstream.model` or, in older versions, `upstream.model`."""
    built = frontend("wavlm_layer", multilayer_feature=True)
    weights = torch.load(GOLDEN / "wavlm_layer.pt", weights_only=True)["model"]
    other = S3prlFrontend(frontend_conf={"upstream": "wavlm_large"}, architecture=built.architecture)
    for wrapped in ("upstream.upstream.model.", "upstream.model."):
        given = {f"{wrapped}{name}": tensor for name, tensor in weights.items()}
        given["featurizer.weights"] = torch.ones(3)
        renamed = in_own_names(other, given)
        assert renamed.keys() == other.state_dict().keys()
        other.load_state_dict(renamed)
        for name, tensor in built.upstream.state_dict().items():
            assert torch.equal(tensor, other.upstream.state_dict()[name]), name
    assert in_own_names(other, other.state_dict()).keys() == other.state_dict().keys()


def test_only_what_is_used_is_trained() -> None:
    """Every trained parameter gets a gradient, so that DDP needs no search for unused ones."""
    for options in ({}, {"layer": 1}, {"multilayer_feature": True}):
        built = frontend("wav2vec2_layer", **options).train()
        built(audio(), torch.tensor([6400]))[0].square().sum().backward()
        without = [name for name, p in built.named_parameters() if p.requires_grad and p.grad is None]
        assert without == [], options
        assert any(p.requires_grad for p in built.upstream.parameters())


def test_a_frozen_upstream_is_cached(tmp_path: Path) -> None:
    built = frontend("hubert_layer", multilayer_feature=True, cache_dir=str(tmp_path)).train()
    speech, lengths = torch.randn(2, 6400, generator=torch.Generator().manual_seed(0)), torch.tensor([6400, 4000])
    with pytest.raises(UserError, match=r"--freeze_param frontend.upstream"):
        built(speech, lengths)
    built.upstream.requires_grad_(False)
    first = built(speech, lengths)
    files = sorted(tmp_path.rglob("*.npy"))
    assert len(files) == 2
    calls = []
    built.upstream.register_forward_hook(lambda *_: calls.append(1))
    again = built(speech, lengths)
    assert torch.equal(first[0], again[0])
    assert not calls
    again[0].sum().backward()
    assert built.featurizer.weights.grad is not None
    files[0].write_bytes(files[0].read_bytes()[:100])
    assert torch.allclose(first[0], built(speech, lengths)[0], atol=1e-6)
    assert len(calls) == 1
    with torch.no_grad():
        built.upstream.model.encoder.layers[0].attention.q_proj.weight.add_(0.1)
    other = frontend("hubert_layer", multilayer_feature=True, cache_dir=str(tmp_path))
    other.upstream.load_state_dict(built.upstream.state_dict())
    other.upstream.requires_grad_(False)
    other(speech, lengths)
    assert len(list(tmp_path.rglob("*.npy"))) == 4, "another encoder has other files"


def test_fused_frontends_have_one_frame_rate() -> None:
    confs = [
        {
            "frontend_type": "s3prl",
            "frontend_conf": {"upstream": "wavlm_local", "path_or_url": str(GOLDEN / "wavlm_layer.pt")},
        },
        {"frontend_type": "default", "n_fft": 512, "win_length": 400, "hop_length": 160},
    ]
    torch.manual_seed(0)
    built = FusedFrontends(confs, proj_dim=6).eval()
    speech, lengths = torch.randn(2, 6400), torch.tensor([6400, 4000])
    with torch.no_grad():
        features, frames = built(speech, lengths)
        alone, _ = built(speech[1:, :4000], lengths[1:])
    assert features.shape == (2, 40, 12)
    assert frames.tolist() == [40, 26]
    torch.testing.assert_close(features[1:, :26], alone, atol=1e-5, rtol=0)


def test_fused_frontends_import_no_other_classes() -> None:
    """Loading a model with such a configuration would run the code of the class."""
    with pytest.raises(UserError, match=r"there is no frontend 'trap:Frontend'\. Known: default, s3prl"):
        FusedFrontends([{"frontend_type": "trap:Frontend"}])


def test_sizes_of_known_upstreams() -> None:
    """Published numbers of parameters, in millions, without the parts that only pretraining uses."""
    for name, millions in (("wav2vec2_base_960", 94.4), ("hubert_large_ll60k", 315.4), ("wavlm_large", 315.5)):
        with torch.device("meta"):
            model = SpeechEncoder(UPSTREAMS[name].architecture())
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == pytest.approx(millions, abs=0.2), name


def test_mistakes_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"there is no upstream 'wavlm_larg'.*Did you mean 'wavlm_large'"):
        find_upstream("wavlm_larg")
    with pytest.raises(UserError, match="16000 Hz, not 8000"):
        S3prlFrontend(fs=8000, frontend_conf={"upstream": "wavlm_large"})
    with pytest.raises(UserError, match="'wavlm_local' needs it"):
        S3prlFrontend(frontend_conf={"upstream": "wavlm_local"})
    with pytest.raises(UserError, match=r"has no key 'upstraem'.*Did you mean 'upstream'"):
        S3prlFrontend(frontend_conf={"upstraem": "wavlm_large"})
    with pytest.raises(UserError, match=r"put them in .*hub/microsoft/wavlm-large"):
        find_folder("microsoft/wavlm-large", str(tmp_path / "hub"))
    with pytest.raises(UserError, match=r"could not be downloaded .*put them in .*hub/bert-base-uncased"):
        find_folder("bert-base-uncased", str(tmp_path / "hub"))
    with pytest.raises(UserError, match="is neither a folder with"):
        find_folder("./no/such/folder", None)
    with pytest.raises(UserError, match=r"no config.json"):
        find_folder(str(tmp_path), None)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="damaged, or not a JSON file"):
        read_architecture(tmp_path)
    with pytest.raises(UserError, match="type 'bert' is not supported here"):
        SpeechEncoder({"model_type": "bert"})


def test_code_in_a_model_folder_is_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_folder(tmp_path / "model")
    ran = tmp_path / "ran"
    (folder / "modeling_own.py").write_text(f"open({str(ran)!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_own.Own", "AutoConfig": "modeling_own.Own"}
    (folder / "config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.ERROR):
        HuggingFaceFrontend(str(folder)).load_pretrained()
    assert not ran.exists()
