"""Coverage of a token list, more pieces of a sentencepiece model, rows of other model families."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

from tympan.config.asr import AsrTrainConfig
from tympan.config.read import make_training_config
from tympan.config.text import TextConfig
from tympan.errors import UserError
from tympan.models.build import build_asr_model
from tympan.text.codec import build_codec
from tympan.text.sentencepiece import piece_tokens, train_sentencepiece
from tympan.tuning.vocabulary import (
    coverage,
    extended_tokens,
    similar_tokens,
    vocabulary_dims,
    with_pieces,
    with_tokens,
)

SENTENCES = ["the quick brown fox", "jumps over the lazy dog", "a tympan hears and prints", "the drum of the ear"] * 8
TOKENS = ["<blank>", "<unk>", "a", "b", "e", "<sos/eos>"]


def test_missing_characters_are_counted() -> None:
    codec = build_codec(TextConfig(token_list=TOKENS, token_type="char"))
    found = coverage(["abé", "éx"], codec)
    assert found.missing == Counter({"é": 2, "x": 1})
    assert str(found) == "2 tokens of the text are not in the token list (3 times, 60.0 % of the text): é (2), x (1)"


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_a_sentencepiece_model_gets_pieces_and_splits_old_texts_as_before(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "text").write_text("\n".join(SENTENCES))
    path = train_sentencepiece([tmp_path / "text"], tmp_path / "m", vocab_size=40, model_type=model_type)
    codec = build_codec(TextConfig(token_list=piece_tokens(path), token_type="bpe", bpemodel=str(path)))
    found = coverage(["the žluť fox", "жук"], codec)
    assert found.missing == Counter({"ž": 1, "ť": 1, "ж": 1, "у": 1, "к": 1})
    larger = tmp_path / "larger.model"
    larger.write_bytes(with_pieces(path.read_bytes(), sorted(found.missing)))
    old, new = (sentencepiece.SentencePieceProcessor(model_file=str(file)) for file in (path, larger))
    assert new.get_piece_size() == old.get_piece_size() + 5
    for sentence in SENTENCES:
        assert new.encode(sentence, out_type=str) == old.encode(sentence, out_type=str)
    tokens = extended_tokens(codec.vocabulary.tokens, sorted(found.missing))
    extended = build_codec(TextConfig(token_list=tokens, token_type="bpe", bpemodel=str(larger)))
    assert not coverage(["the žluť fox", "жук"], extended).missing
    assert extended.text_of(extended.tokenize("the žluť fox")) == "the žluť fox"


def test_a_list_is_extended_before_its_end() -> None:
    assert extended_tokens(TOKENS, ["x", "a", "y"]) == [*TOKENS[:-1], "x", "y", "<sos/eos>"]
    with pytest.raises(UserError, match="it has no <sos/eos>"):
        extended_tokens(["<blank>", "<unk>", "a"], ["x"])


def test_similar_tokens() -> None:
    known = {token: number for number, token in enumerate(TOKENS)}
    assert similar_tokens("A", known) == [2]
    assert similar_tokens("É", known) == [4]
    assert similar_tokens("字", known) == [2, 3, 4]
    assert similar_tokens("<c>", {"<a>": 0, "<b>": 1}) == [0, 1], "a list that has only such names"


FAMILIES: dict[str, dict[str, Any]] = {
    "transformer": {"decoder": "transformer", "decoder_conf": {"linear_units": 8, "num_blocks": 1}},
    "rnn": {"decoder": "rnn", "decoder_conf": {"hidden_size": 8, "num_layers": 1}},
    "s4": {"decoder": "s4", "decoder_conf": {"n_layers": 1, "layer": {"_name_": "s4", "d_state": 4}}},
    "ctc": {"decoder": None, "model_conf": {"ctc_weight": 1.0}},
    "transducer": {"decoder": "transducer", "decoder_conf": {"hidden_size": 8}, "joint_net_conf": {}},
}  # fmt: skip
EXPECTED = {
    "transformer": {"ctc.ctc_lo.weight", "ctc.ctc_lo.bias", "decoder.embed.0.weight", "decoder.output_layer.weight",
                    "decoder.output_layer.bias"},
    "rnn": {"ctc.ctc_lo.weight", "ctc.ctc_lo.bias", "decoder.embed.weight", "decoder.output.weight",
            "decoder.output.bias"},
    "s4": {"ctc.ctc_lo.weight", "ctc.ctc_lo.bias", "decoder.embed.weight", "decoder.output.weight",
           "decoder.output.bias"},
    "ctc": {"ctc.ctc_lo.weight", "ctc.ctc_lo.bias"},
    "transducer": {"ctc.ctc_lo.weight", "ctc.ctc_lo.bias", "decoder.embed.weight", "joint_network.lin_out.weight",
                   "joint_network.lin_out.bias"},
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_every_family(family: str) -> None:
    sizes = {"output_size": 8, "attention_heads": 2, "linear_units": 8, "num_blocks": 1}
    common = {"token_list": TOKENS, "token_type": "char", "encoder": "transformer", "encoder_conf": sizes}
    config = make_training_config(AsrTrainConfig, options={**common, **FAMILIES[family]})
    weights = build_asr_model(config).state_dict()
    dims = vocabulary_dims(config, weights)
    assert set(dims) == EXPECTED[family]
    new = ["<blank>", "<unk>", "字", "e", "A", "b", "a", "<sos/eos>"]
    moved = with_tokens(weights, dims, old=TOKENS, new=new)
    build_asr_model(replace(config, token_list=new)).load_state_dict(moved)
    for name in dims:
        for token in TOKENS:
            assert torch.equal(moved[name][new.index(token)], weights[name][TOKENS.index(token)])
        assert torch.equal(moved[name][new.index("A")], weights[name][TOKENS.index("a")])
        torch.testing.assert_close(moved[name][new.index("字")], weights[name][[2, 3, 4]].mean(0))
