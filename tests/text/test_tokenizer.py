"""Tokenizers and cleaners."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.text.cleaner import TextCleaner
from tympan.text.sentencepiece import piece_tokens, train_sentencepiece
from tympan.text.tokenizer import build_tokenizer

SENTENCES = ["the quick brown fox", "jumps over the lazy dog", "a tympan hears and prints", "the drum of the ear"] * 8


def test_characters_keep_symbols_whole() -> None:
    tokenizer = build_tokenizer("char", non_linguistic_symbols=["<noise>", "<n>", "<no"])
    assert tokenizer.text2tokens("a <noise><n>b") == ["a", "<space>", "<noise>", "<n>", "b"]
    assert tokenizer.tokens2text(["a", "<space>", "b"]) == "a b"


def test_characters_can_drop_symbols() -> None:
    tokenizer = build_tokenizer("char", non_linguistic_symbols=["<noise>"], remove_non_linguistic_symbols=True)
    assert tokenizer.text2tokens("今<noise>天") == ["今", "天"]


def test_nonsplit_symbols_stay_whole_and_are_never_dropped() -> None:
    tokenizer = build_tokenizer(
        "char",
        non_linguistic_symbols=["<noise>"],
        remove_non_linguistic_symbols=True,
        nonsplit_symbols=["[zh]:2", "[en]"],
    )
    assert tokenizer.text2tokens("[zh]今<noise>[en]a") == ["[zh]", "今", "[en]", "a"]


def test_symbols_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "nls.txt").write_text("<noise>\n\n<laugh>\n")
    tokenizer = build_tokenizer("char", non_linguistic_symbols=tmp_path / "nls.txt")
    assert tokenizer.text2tokens("<laugh>a") == ["<laugh>", "a"]
    with pytest.raises(UserError, match=r"^non_linguistic_symbols: .*none\.txt: no such file"):
        build_tokenizer("char", non_linguistic_symbols=tmp_path / "none.txt")


def test_words() -> None:
    assert build_tokenizer("word").text2tokens(" a  b\tc") == ["a", "b", "c"]
    assert build_tokenizer("word", delimiter=",").text2tokens("a,b") == ["a", "b"]
    assert build_tokenizer("word").tokens2text(["a", "b"]) == "a b"
    dropping = build_tokenizer("word", non_linguistic_symbols=["<n>"], remove_non_linguistic_symbols=True)
    assert dropping.text2tokens("a <n> b") == ["a", "b"]


def test_phonemes_written_in_the_text() -> None:
    tokenizer = build_tokenizer("phn", non_linguistic_symbols=["<sil>"], remove_non_linguistic_symbols=True)
    assert tokenizer.text2tokens("<sil> AH0 B <sil>") == ["AH0", "B"]


def test_phonemes_without_g2p_as_in_espnet2() -> None:
    """Three spaces are a word boundary. Phonemes are joined without spaces, since they can't be converted to text."""
    tokenizer = build_tokenizer("phn")
    assert tokenizer.text2tokens("a b   c d") == ["a", "b", " ", "c", "d"]
    assert tokenizer.text2tokens("a     b") == ["a", " ", "b"]
    assert tokenizer.text2tokens("a b   ") == ["a", "b", " "]
    assert tokenizer.text2tokens("a  b") == ["a", "b"]  # in ESPnet2, the second space becomes an unknown token
    assert tokenizer.tokens2text(["a", "b", "c"]) == "abc"
    assert tokenizer.tokens2text(["a", "b", " ", "c"]) == "ab c"


def test_phones_of_a_lexicon_are_joined_with_spaces(tmp_path: Path) -> None:
    (tmp_path / "lexicon.txt").write_text("HI HH AY\n")
    tokenizer = build_tokenizer("phn", g2p_type=str(tmp_path / "lexicon.txt"))
    assert tokenizer.text2tokens("HI") == ["HH", "AY"]
    assert tokenizer.tokens2text(["HH", "AY"]) == "HH AY"


def test_pinyin() -> None:
    pytest.importorskip("pypinyin")
    assert build_tokenizer("phn", g2p_type="pypinyin_g2p").text2tokens("天气 ok") == ["tian1", "qi4", "ok"]
    tokenizer = build_tokenizer("phn", g2p_type="pypinyin_g2p_phone")
    assert tokenizer.text2tokens("今天啊") == ["j", "in1", "t", "ian1", "a"]
    assert pickle.loads(pickle.dumps(tokenizer)).text2tokens("女") == ["n", "v3"]


def test_unknown_names_are_user_errors() -> None:
    with pytest.raises(UserError, match="char, word, bpe, phn"):
        build_tokenizer("chars")
    with pytest.raises(UserError, match="spm_train"):
        build_tokenizer("bpe")
    with pytest.raises(UserError, match="g2p 'espeak': must be one of"):
        build_tokenizer("phn", g2p_type="espeak")
    with pytest.raises(UserError, match="Did you mean 'lowercase'"):
        TextCleaner("lower_case")


@pytest.mark.parametrize("name", ["pyopenjtalk_kana", "espeak_ng_german", "g2pk", "korean_jaso_no_space", "g2p_is"])
def test_g2p_of_espnet2_alone_names_what_to_use(name: str) -> None:
    with pytest.raises(UserError, match=f"ESPnet2's g2p '{name}' is not supported; use a lexicon file"):
        build_tokenizer("phn", g2p_type=name)


@pytest.mark.parametrize("name", ["vietnamese", "korean_cleaner"])
def test_cleaners_of_espnet2_alone_name_what_to_use(name: str) -> None:
    with pytest.raises(UserError, match=f"ESPnet2's cleaner '{name}' is not supported; clean the texts before"):
        TextCleaner(name)


def test_cleaners_apply_in_turn() -> None:
    assert TextCleaner(None)("A b") == "A b"
    assert TextCleaner(["uppercase", "remove_punctuation"])("it's, well -  fine") == "IT'S WELL FINE"
    assert TextCleaner("remove_spaces")("今天 天气　很好") == "今天天气很好"
    assert TextCleaner("nfkc")("Ａ１") == "A1"


@pytest.fixture(scope="module")
def bpe_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "text").write_text("\n".join(SENTENCES))
    return train_sentencepiece([folder / "text"], folder / "bpe" / "model", vocab_size=40, model_type="bpe")


def test_pieces_spell_the_sentence_back(bpe_model: Path) -> None:
    tokenizer = build_tokenizer("bpe", bpemodel=bpe_model)
    pieces = tokenizer.text2tokens(SENTENCES[0])
    assert tokenizer.tokens2text(pieces) == SENTENCES[0]
    assert len(pieces) < len(SENTENCES[0])


def test_token_list_of_a_model_has_espnet2s_layout(bpe_model: Path) -> None:
    tokens = piece_tokens(bpe_model)
    assert tokens[:2] == ["<blank>", "<unk>"]
    assert tokens[-1] == "<sos/eos>"
    assert "<s>" not in tokens
    assert len(tokens) == len(set(tokens)) == 40 - 3 + 3
    assert set(build_tokenizer("bpe", bpemodel=bpe_model).text2tokens(SENTENCES[1])) <= set(tokens)


def test_every_tokenizer_can_go_to_a_worker(bpe_model: Path) -> None:
    for tokenizer in (build_tokenizer("char"), build_tokenizer("bpe", bpemodel=bpe_model), build_tokenizer("phn")):
        tokenizer.text2tokens("the ear")
        again = pickle.loads(pickle.dumps(tokenizer))
        assert again.text2tokens("the ear") == tokenizer.text2tokens("the ear")


def test_impossible_vocabulary_is_explained(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b\n")
    with pytest.raises(UserError, match="could not train"):
        train_sentencepiece([tmp_path / "text"], tmp_path / "m", vocab_size=5000)
    with pytest.raises(UserError, match="no such text file"):
        train_sentencepiece([tmp_path / "none"], tmp_path / "m", vocab_size=50)
    (tmp_path / "broken.model").write_bytes(b"not a model")
    with pytest.raises(UserError, match="not a readable sentencepiece model"):
        build_tokenizer("bpe", bpemodel=tmp_path / "broken.model").text2tokens("a")
