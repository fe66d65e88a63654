"""Whisper's encoder and decoder: equal to openai's classes, independent of padding, loadable from every source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.golden.make_whisper import DIMS, TOKENS, audio
from tympan.errors import UserError
from tympan.features.whisper import WhisperLogMel
from tympan.models.pretrained.whisper_decoder import WhisperDecoder
from tympan.models.pretrained.whisper_encoder import WhisperEncoder, WhisperFrontend
from tympan.models.pretrained.whisper_sizes import SIZES, find_size

GOLDEN = Path(__file__).parents[1] / "golden" / "whisper"
VALUES = np.load(GOLDEN / "tiny.npz")
MODEL = str(GOLDEN / "tiny.pt")


def expected(name: str) -> Tensor:
    return torch.from_numpy(VALUES[name])


def speech() -> tuple[Tensor, Tensor]:
    return audio(9000)[None], torch.tensor([9000])


def encoder(**options: Any) -> WhisperEncoder:
    built = WhisperEncoder(whisper_model=MODEL, **options)
    built.load_pretrained()
    return built.eval()


def decoder(vocab_size: int = 30, **options: Any) -> WhisperDecoder:
    built = WhisperDecoder(vocab_size=vocab_size, encoder_output_size=16, whisper_model=MODEL, **options)
    built.load_pretrained()
    return built.eval()


def encode(part: WhisperEncoder, samples: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    frontend, _ = part.own_inputs()
    out = part(*frontend(samples, lengths))
    return out.out, out.lengths


ROUNDING = 1e-4
"""openai-whisper computes its features in float32, and processors round the FFT differently: the expected features
differ by up to 6.4e-5 from those in float64."""


@pytest.mark.parametrize(
    ("name", "mels", "pads"), [("mel", 80, False), ("mel_128", 128, False), ("padded_mel", 80, True)]
)
def test_features_equal_openai_whisper(name: str, mels: int, pads: bool) -> None:
    features, frames = WhisperLogMel(mels, pads=pads, max_samples=16000)(*speech())
    assert frames.tolist() == [expected(name).size(1)]
    torch.testing.assert_close(features[0].T, expected(name), atol=ROUNDING, rtol=0)


def test_features_in_float64_equal_the_formula() -> None:
    """Independent of the processor, so the bound is much smaller than the rounding of float32."""
    samples, lengths = speech()
    frontend = WhisperLogMel(80, pads=False, max_samples=16000)
    features, _ = frontend(samples.double(), lengths)
    padded = np.pad(samples[0].double().numpy(), 200, mode="reflect")
    window = frontend.window.double().numpy()  # stored in float32
    np.testing.assert_allclose(window, 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400), atol=1e-6, rtol=0)
    frames = np.stack([padded[160 * frame : 160 * frame + 400] * window for frame in range(9000 // 160)])
    mels = np.abs(np.fft.rfft(frames)) ** 2 @ frontend.filters.double().numpy()
    logs = np.log10(np.maximum(mels, 1e-10))
    wanted = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    np.testing.assert_allclose(features[0].numpy(), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("name", "pads"), [("unpadded", False), ("encoded", True)])
def test_encoder_equals_openai_whisper(name: str, pads: bool) -> None:
    out, lengths = encode(encoder(do_pad_trim=pads), *speech())
    assert lengths.tolist() == [len(expected(name))]
    torch.testing.assert_close(out[0], expected(name), atol=ROUNDING, rtol=0)


def test_decoder_equals_openai_whisper_at_once_and_step_by_step() -> None:
    part, memory = decoder(), expected("encoded")[None]
    lengths, tokens = torch.tensor([50]), torch.tensor(TOKENS)
    logits = part(memory, lengths, tokens, torch.tensor([7]))
    torch.testing.assert_close(logits[0], expected("logits"), atol=1e-5, rtol=0)
    state = part.start(memory, lengths, 1)
    for position, token in enumerate(TOKENS[0]):
        log_probs, state = part.step(torch.tensor([[token]]), state)
        torch.testing.assert_close(log_probs[0, 0], expected("logits")[position].log_softmax(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("pads", [False, True])
def test_result_does_not_depend_on_the_batch(pads: bool) -> None:
    part = encoder(do_pad_trim=pads)
    batch = torch.full((3, 15000), 0.7)
    for row, length in enumerate((4321, 9000, 15000)):
        batch[row, :length] = audio(length)
    out, lengths = encode(part, batch, torch.tensor([4321, 9000, 15000]))
    for row, length in enumerate((4321, 9000, 15000)):
        alone, one = encode(part, audio(length)[None], torch.tensor([length]))
        assert lengths[row] == one[0]
        torch.testing.assert_close(out[row, : one[0]], alone[0], atol=1e-5, rtol=0)


def test_utterance_without_samples_has_no_frames() -> None:
    out, lengths = encode(encoder(), torch.zeros(2, 4000), torch.tensor([0, 4000]))
    assert lengths.tolist() == [0, 13]
    assert out.isfinite().all()


def test_long_audio_is_cut_at_the_window() -> None:
    part = encoder()
    long, lengths = encode(part, audio(16500)[None], torch.tensor([16500]))
    cut, _ = encode(part, audio(16000)[None], torch.tensor([16000]))
    assert lengths.tolist() == [50]
    torch.testing.assert_close(long, cut)


def test_decoder_step_shares_frames_between_beams_and_follows_reordering() -> None:
    part = decoder()
    memory, lengths = torch.randn(2, 9, 16), torch.tensor([9, 5])
    state = part.start(memory, lengths, 3)
    first = torch.tensor([[1, 2, 3], [4, 5, 6]])
    _, state = part.step(first, state)
    parents = torch.tensor([[2, 0, 0], [1, 1, 2]])
    second = torch.tensor([[7, 8, 9], [10, 11, 12]])
    found, _ = part.step(second, state.reorder(parents))
    for row in range(2):
        for beam in range(3):
            prefix = torch.stack([first[row, parents[row, beam]], second[row, beam]])[None]
            alone = part(memory[row : row + 1, : lengths[row]], lengths[row : row + 1], prefix, torch.tensor([2]))
            torch.testing.assert_close(found[row, beam], alone[0, -1].log_softmax(-1), atol=1e-5, rtol=0)


def test_hugging_face_folder_gives_the_same_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")
    torch.manual_seed(1)
    config = transformers.WhisperConfig(
        vocab_size=30, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=64, decoder_ffn_dim=64, max_source_positions=50,
        max_target_positions=12, pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    theirs = transformers.WhisperForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = WhisperEncoder(whisper_model=str(tmp_path), do_pad_trim=True).eval()
    ours.load_pretrained()
    frontend, _ = ours.own_inputs()
    features, frames = frontend(*speech())
    text = WhisperDecoder(vocab_size=30, encoder_output_size=16, whisper_model=str(tmp_path)).eval()
    text.load_pretrained()
    encoded = ours(features, frames)
    tokens = torch.tensor(TOKENS)
    with torch.no_grad():
        found = text(encoded.out, encoded.lengths, tokens, torch.tensor([7]))
        logits = theirs(input_features=features.transpose(1, 2), decoder_input_ids=tokens).logits
    torch.testing.assert_close(found, logits, atol=1e-5, rtol=0)


def test_embedding_of_another_vocabulary() -> None:
    original = torch.load(MODEL, weights_only=True)["model_state_dict"]["decoder.token_embedding.weight"]
    kept = decoder(33, load_origin_token_embedding=True).decoders.token_embedding
    assert set(kept.state_dict()) == {"ori_emb.weight", "add_emb.weight"}
    torch.testing.assert_close(kept.matrix[:30], original)
    new = decoder(2000).decoders.token_embedding.matrix
    assert new.std().item() == pytest.approx(original.std().item(), rel=0.05)
    with pytest.raises(UserError, match="fewer than the 30 of the model"):
        decoder(20, load_origin_token_embedding=True)


def test_names_and_parameters_of_the_published_sizes() -> None:
    with torch.device("meta"):
        part = WhisperEncoder(whisper_model="large-v3-turbo")
        text = WhisperDecoder(vocab_size=51866, encoder_output_size=1280, whisper_model="large-v3-turbo")
    # 809 million parameters are published for the model
    assert _count(part) + _count(text) == 808_878_080
    assert find_size("large") == SIZES["large-v2"]
    with pytest.raises(UserError, match="no model 'smal'"):
        find_size("smal")


def test_architecture_is_enough_to_build() -> None:
    part = WhisperEncoder(whisper_model="a folder that is gone", architecture=DIMS)
    assert part.architecture == DIMS
    with pytest.raises(UserError, match="does not describe a Whisper model"):
        WhisperEncoder(architecture={"n_mels": 80})


def test_missing_weights_say_what_to_fetch(tmp_path: Path) -> None:
    part = WhisperEncoder(whisper_model="tiny", download_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"openai/whisper-tiny"):
        part.load_pretrained()


def test_frontend_is_the_encoder_and_frozen() -> None:
    frontend = WhisperFrontend(whisper_model=MODEL)
    frontend.load_pretrained()
    features, lengths = frontend.train()(*speech())
    assert not features.requires_grad
    assert lengths.tolist() == frontend.output_lengths(torch.tensor([9000])).tolist() == [28]
    torch.testing.assert_close(features[0], expected("unpadded"), atol=ROUNDING, rtol=0)
    assert "whisper.encoder.blocks.0.attn.query.weight" in frontend.state_dict()


def _count(part: nn.Module) -> int:
    return sum(tensor.numel() for tensor in part.state_dict().values())
