"""Text-to-text models of the Hugging Face hub as decoder and postencoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.golden_espnet2 import config_of
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.models.initialize import load_pretrained_parts

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

from tympan.models.pretrained.seq2seq import HuggingFaceDecoder  # noqa: E402
from tympan.models.pretrained.text_encoder import HuggingFacePostencoder  # noqa: E402

SIZES: dict[str, dict[str, Any]] = {
    "bart": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    "mbart": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2},
    "t5": {"d_model": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 24},
}
for _family in ("bart", "mbart"):
    SIZES[_family] |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    SIZES[_family] |= {"max_position_embeddings": 40, "scale_embedding": True}


def make_folder(directory: Path, family: str) -> Any:
    """A random model as `transformers` saves it."""
    torch.manual_seed(0)
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = transformers.AutoConfig.for_model(family, vocab_size=20, **SIZES[family], **special)
    model = transformers.AutoModelForSeq2SeqLM.from_config(config).eval()
    model.save_pretrained(directory)
    return model


def encoded(size: int = 16) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, 9, size), torch.tensor([9, 5])


@pytest.mark.parametrize("family", list(SIZES))
def test_decoder_equals_transformers_and_its_steps(tmp_path: Path, family: str) -> None:
    theirs = make_folder(tmp_path, family)
    part = HuggingFaceDecoder(vocab_size=20, encoder_output_size=16, model_name_or_path=str(tmp_path)).eval()
    part.load_pretrained()
    memory, lengths = encoded()
    tokens = torch.tensor([[2, 7, 4, 11], [2, 5, 9, 3]])
    with torch.no_grad():
        logits = part(memory, lengths, tokens, torch.tensor([4, 3]))
        inner = theirs.model if hasattr(theirs, "model") else theirs
        hidden = inner.decoder(input_ids=tokens[1:, :3], encoder_hidden_states=memory[1:, :5]).last_hidden_state
        torch.testing.assert_close(logits[1:, :3], theirs.lm_head(hidden), atol=1e-5, rtol=0)
        state = part.start(memory, lengths, 1)
        for position in range(3):
            log_probs, state = part.step(tokens[:, position : position + 1], state)
            torch.testing.assert_close(log_probs[:, 0], logits[:, position].log_softmax(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", list(SIZES))
def test_postencoder_equals_transformers(tmp_path: Path, family: str) -> None:
    theirs = make_folder(tmp_path, family)
    part = HuggingFacePostencoder(input_size=6, model_name_or_path=str(tmp_path), lang_token_id=3).eval()
    part.load_pretrained()
    x, lengths = encoded(6)
    with torch.no_grad():
        out, found = part(x, lengths)
        inner = theirs.model if hasattr(theirs, "model") else theirs
        first = theirs.get_input_embeddings()(torch.tensor([[3]]))
        frames = torch.cat([first, part.linear_in(x[1:, :5])], dim=1)
        expected = inner.encoder(inputs_embeds=frames).last_hidden_state
    assert found.tolist() == part.output_lengths(lengths).tolist() == [10, 6]
    torch.testing.assert_close(out[1, :6], expected[0], atol=1e-5, rtol=0)


def test_vocabulary_of_another_size_keeps_the_known_rows(tmp_path: Path) -> None:
    theirs = make_folder(tmp_path, "bart")
    part = HuggingFaceDecoder(vocab_size=23, encoder_output_size=8, model_name_or_path=str(tmp_path))
    part.load_pretrained()
    torch.testing.assert_close(part.lm_head.weight[:20], theirs.lm_head.weight)
    assert part.lm_head.weight is part.decoder.embed_tokens.weight
    assert part.linear_in.weight.shape == (16, 8)


def test_model_with_both_parts_trains_and_is_built_from_its_architecture(tmp_path: Path) -> None:
    make_folder(tmp_path, "bart")
    conf = {"model_name_or_path": str(tmp_path)}
    config = config_of(
        token_list=["<s>", "<pad>", "</s>", "<unk>", *map(str, range(16))], input_size=8, frontend=None,
        encoder_conf={"num_layers": 1, "hidden_size": 8, "output_size": 8, "subsample": [1]},
        postencoder="hugging_face_transformers", postencoder_conf={**conf, "length_adaptor_n_layers": 1},
        decoder="hugging_face_transformers", decoder_conf=conf,
        model_conf={"ctc_weight": 0.0, "ignore_id": 1, "sym_blank": "<pad>", "sym_sos": "<s>", "sym_eos": "</s>"},
    )  # fmt: skip
    model = build_asr_model(config)
    load_pretrained_parts(model)
    batch = {"speech": torch.randn(2, 30, 8), "speech_lengths": torch.tensor([30, 22])}
    batch |= {"text": torch.tensor([[4, 5, 6], [7, 8, -1]]), "text_lengths": torch.tensor([3, 2])}
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(**batch).value
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert "postencoder.transformer.layers.0.fc1.weight" in model.state_dict()
    assert "decoder.decoder.layers.0.fc1.weight" in model.state_dict()
    rebuilt = HuggingFaceDecoder(
        vocab_size=20, encoder_output_size=16, model_name_or_path="gone", architecture=model.decoder.architecture
    )
    assert rebuilt.state_dict().keys() == model.decoder.state_dict().keys()


def test_what_is_not_supported_is_rejected(tmp_path: Path) -> None:
    make_folder(tmp_path, "bart")
    with pytest.raises(UserError, match="causal_lm, prefix and postfix are not supported"):
        HuggingFaceDecoder(vocab_size=20, encoder_output_size=16, model_name_or_path=str(tmp_path), causal_lm=True)
    with pytest.raises(UserError, match="it has no encoder and decoder"):
        HuggingFaceDecoder(
            vocab_size=20, encoder_output_size=16, model_name_or_path="x", architecture={"model_type": "bert"}
        )


def test_architecture_is_changed_by_a_mapping_or_a_json_file(tmp_path: Path) -> None:
    make_folder(tmp_path, "bart")
    changes = tmp_path / "changes.json"
    changes.write_text('{"decoder_layers": 3}')
    sizes: dict[str, Any] = {"vocab_size": 20, "encoder_output_size": 16, "model_name_or_path": str(tmp_path)}
    for given in (str(changes), {"decoder_layers": 3}):
        part = HuggingFaceDecoder(**sizes, overriding_architecture_config=given)
        assert len(part.decoder.layers) == 3
    changes.unlink()
    rebuilt = HuggingFaceDecoder(**sizes, overriding_architecture_config=str(changes), architecture=part.architecture)
    assert len(rebuilt.decoder.layers) == 3
    with pytest.raises(UserError, match=r"changes.json: no such file"):
        HuggingFaceDecoder(**sizes, overriding_architecture_config=str(changes))


@pytest.mark.parametrize(("family", "is_old"), [("bert", True), ("roberta", False)])
def test_postencoder_that_is_only_an_encoder(tmp_path: Path, family: str, is_old: bool) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.AutoConfig.for_model(family, vocab_size=20, max_position_embeddings=40, **sizes)
    theirs = transformers.AutoModelForMaskedLM.from_config(config).eval()
    theirs.save_pretrained(tmp_path)
    if is_old:  # the names of layer normalization in the first published models
        (tmp_path / "model.safetensors").unlink()
        weights = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in theirs.state_dict().items()
        }
        torch.save(weights, tmp_path / "pytorch_model.bin")
    part = HuggingFacePostencoder(input_size=6, model_name_or_path=str(tmp_path), lang_token_id=3).eval()
    part.load_pretrained()
    assert "transformer.layer.0.attention.self.query.weight" in part.state_dict()
    x, lengths = encoded(6)
    inner = getattr(theirs, family)
    with torch.no_grad():
        out, found = part(x, lengths)
        first = inner.embeddings.word_embeddings(torch.tensor([[3]]))
        expected = inner.encoder(torch.cat([first, part.linear_in(x[1:, :5])], dim=1)).last_hidden_state
    assert found.tolist() == [10, 6]
    torch.testing.assert_close(out[1, :6], expected[0], atol=1e-5, rtol=0)


def test_text_model_of_another_kind_is_rejected() -> None:
    architecture = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 20}
    with pytest.raises(UserError, match="a model of type 'gpt2' is not supported; use one with encoder and decoder"):
        HuggingFacePostencoder(input_size=6, model_name_or_path="x", architecture=architecture)
