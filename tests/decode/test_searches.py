"""Searches as objects: pieces of an encoding, options that a search does not use, and a user's own search."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from decode_toy import ToyScorer, toy_batch
from test_own_symbols import AUDIO, model

from tympan.bin import asr_inference, transcribe
from tympan.bin.main import run
from tympan.decode.beam_search import BeamSearch, LengthLimits, Weighted
from tympan.decode.ctc_prefix import CtcPrefixScorer
from tympan.decode.ctc_search import CtcPrefixSearch, GreedySearch
from tympan.decode.joint import JointSearch, RescoreSearch
from tympan.decode.lexicon_search import load_lexicon_search
from tympan.decode.options import KINDS, DecodeOptions
from tympan.decode.recognizer import Recognizer
from tympan.decode.search import SEARCHES, Encoded, Search, find_search, run_search
from tympan.decode.settings import check_decode_config
from tympan.errors import UserError
from tympan.models.lm.model import LanguageModel
from tympan.models.lm.seq_rnn import SequentialRnnLm
from tympan.text.lexicon import Lexicon
from tympan.text.vocabulary import Vocabulary

VOCAB = 6
TOKENS = ["<blank>", "<unk>", "a", "b", "c", "<sos/eos>"]


def joint() -> JointSearch:
    full = {"decoder": Weighted(ToyScorer(VOCAB, eos=5, ending=0.5, seed=1), 0.6)}
    partial = {"ctc": Weighted(CtcPrefixScorer(blank_id=0, eos=5), 0.4)}
    return JointSearch(BeamSearch(full, partial, beam_size=3, sos=5, eos=5, vocab_size=VOCAB), LengthLimits())


def rescoring() -> RescoreSearch:
    full = {"decoder": Weighted(ToyScorer(VOCAB, eos=5, ending=0.5, seed=1), 0.6)}
    first = CtcPrefixSearch(blank_id=0, beam_size=4)
    return RescoreSearch(full, first=first, ctc_weight=0.4, sos=5, eos=5, vocab_size=VOCAB, is_length_normalized=False)


def of_words() -> Search[Any]:
    words = Lexicon({"AB": (("a", "b"),), "C": (("c",),), "BA": (("b", "a"),)}, "made up")
    options = DecodeOptions(beam_size=8, nbest=3)
    return load_lexicon_search(words, Vocabulary(TOKENS), None, options, torch.device("cpu"))


SEARCH_OF = {
    "joint": joint,
    "rescore": rescoring,
    "ctc_greedy": lambda: GreedySearch(blank_id=0),
    "ctc_prefix": lambda: CtcPrefixSearch(blank_id=0, beam_size=4),
    "lexicon": of_words,
}


def pieces(encoded: Encoded, *sizes: int) -> list[Encoded]:
    """Consecutive frames; a finished utterance has none."""
    cut, start = [], 0
    for size in sizes:
        frames = slice(start, start + size)
        lengths = (encoded.lengths - start).clamp(0, size)
        assert encoded.log_probs is not None
        cut.append(Encoded(encoded.memory[:, frames], lengths, encoded.log_probs[:, frames]))
        start += size
    return cut


@pytest.mark.parametrize("name", SEARCH_OF)
def test_pieces_give_the_same_as_the_whole(name: str) -> None:
    search = SEARCH_OF[name]()
    encoded = toy_batch([12, 5, 9], vocab=VOCAB, seed=4)
    whole = run_search(search, encoded)
    state = search.start(3)
    assert [best.token_ids for best in search.partial(state)] == [()] * 3
    for piece in pieces(encoded, 4, 1, 5, 2):
        state = search.accept(state, piece)
        assert len(search.partial(state)) == 3
    found = search.finish(state)
    assert [[h.token_ids for h in one] for one in found] == [[h.token_ids for h in one] for one in whole]
    assert [h.score for one in found for h in one] == pytest.approx([h.score for one in whole for h in one], abs=1e-12)


@pytest.mark.parametrize("name", ["ctc_greedy", "ctc_prefix", "lexicon"])
def test_partial_results_are_those_of_the_frames_so_far(name: str) -> None:
    search = SEARCH_OF[name]()
    encoded = toy_batch([12, 9], vocab=VOCAB, seed=5)
    first, _ = pieces(encoded, 6, 6)
    state = search.accept(search.start(2), first)
    assert search.partial(state) == [hypotheses[0] for hypotheses in run_search(search, first)]


def test_every_registered_search_lists_the_options_it_uses() -> None:
    assert SEARCHES.names() == [kind.name for kind in KINDS]
    known = set(DecodeOptions.__dataclass_fields__)
    for kind in KINDS:
        assert find_search(kind.name) is kind
        assert set(kind.uses) <= known, kind.name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "a.wav", AUDIO, 16000)
    (tmp_path / "wav.scp").write_text(f"utt {tmp_path / 'a.wav'}\n")
    return model(tmp_path / "exp", TOKENS)


def inference(folder: Path, *options: str) -> list[str]:
    data = f"{folder.parent / 'wav.scp'},speech,sound"
    output = str(folder.parent / "out")
    return ["--output_dir", output, "--data_path_and_name_and_type", data, "--model_tag", str(folder), *options]


def test_a_search_of_the_users_own(folder: Path) -> None:
    own = Recognizer.from_pretrained(folder, search="own_search:BACKWARDS", search_conf={"longest": 3})
    greedy = Recognizer.from_pretrained(folder, search="ctc_greedy")
    backwards, forwards = own(AUDIO, rate=16000), greedy(AUDIO, rate=16000)
    assert len(forwards.token_ids) > 3
    assert backwards.token_ids == forwards.token_ids[::-1][:3]
    assert own(np.zeros(16000, np.float32), rate=16000).text == ""
    command = inference(folder, "--search", "own_search:BACKWARDS", "--search_conf", "longest=3")
    assert asr_inference.main(command) == 0
    assert (folder.parent / "out" / "text").read_text() == f"utt {backwards.text}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "own_search:BACKWARDS", "search_conf": {"longst": 3}}, "unknown option 'longst'. Did you mean"),
        ({"search": "own_search:BACKWARDS", "search_conf": {"longest": 0}}, "must be at least 1, found 0"),
        ({"search": "ctc_greedy", "search_conf": {"longest": 3}}, "search ctc_greedy has no options of its own"),
        ({"search": "own_search:OwnOptions"}, "is not a tympan.decode.search.SearchKind"),
        ({"search": "own_search:NOTHING"}, "has no 'NOTHING'"),
        ({"search": "no_such_module:X"}, "there is no module 'no_such_module'"),
        ({"search": "lexicon"}, "search lexicon needs a model whose tokens are phones"),
    ],
)
def test_invalid_searches_are_reported(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Recognizer.from_pretrained(folder, **options)


def test_a_model_folder_does_not_choose_code_to_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "decode.yaml").write_text("search: own_search:BACKWARDS\n")
    message = "decode.yaml names the search 'own_search:BACKWARDS': using it runs its code"
    with pytest.raises(UserError, match=message):
        Recognizer.from_pretrained(folder)
    assert run(asr_inference.main, inference(folder)) == 2
    assert message in capsys.readouterr().err
    assert Recognizer.from_pretrained(folder, allow_import=True).kind.name == "backwards"
    assert Recognizer.from_pretrained(folder, search="ctc_greedy").kind.name == "ctc_greedy"


@pytest.mark.parametrize(
    ("given", "unused"),
    [
        (["--search", "ctc_greedy", "--beam_size", "20"], "search ctc_greedy does not use beam_size"),
        (["--search", "ctc_prefix", "--ctc_weight", "0.3"], "search ctc_prefix does not use ctc_weight"),
        (["--search", "ctc_prefix", "--beam_size", "3"], None),
        (["--search", "own_search:BACKWARDS", "--penalty", "1"], "search backwards does not use penalty"),
        (["--search", "ctc_greedy", "--ngram_file", "NGRAM"], "search ctc_greedy does not use ngram_file"),
        (["--ctc_weight", "1", "--lm_weight", "0.3"], "lm_weight 0.3 has no effect: there is no neural language"),
        (["--ctc_weight", "1", "--ngram_weight", "0.3"], "ngram_weight 0.3 has no effect: there is no n-gram"),
        (["--ctc_weight", "1", "--ngram_weight", "0"], None),
    ],
)
def test_options_without_effect_are_reported(
    folder: Path, given: list[str], unused: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Both commands report the same, also for a value that equals the default."""
    (folder.parent / "NGRAM").touch()
    given = [str(folder.parent / "NGRAM") if word == "NGRAM" else word for word in given]
    commands = [(asr_inference.main, inference(folder, *given))]
    if "--ngram_file" not in given:
        commands.append((transcribe.main, [str(folder), str(folder.parent / "a.wav"), *given]))
    for main, command in commands:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert main(command) == 0
        assert caplog.messages == [] if unused is None else unused in caplog.text


@pytest.fixture
def phones(tmp_path: Path) -> Path:
    """A model whose tokens are phones of a lexicon in its folder."""
    (tmp_path / "lexicon.txt").write_text("AB a b\nBA b a\nC c\n")
    folder = model(tmp_path / "exp", TOKENS, token_type="phn", g2p=str(tmp_path / "lexicon.txt"))
    (tmp_path / "lexicon.txt").rename(folder / "lexicon.txt")
    config = (folder / "config.yaml").read_text().replace(str(tmp_path / "lexicon.txt"), "lexicon.txt")
    (folder / "config.yaml").write_text(config)
    return folder


def test_words_of_a_lexicon(phones: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        recognizer = Recognizer.from_pretrained(phones, search="lexicon", ctc_weight=0.3)
    assert "search lexicon does not use ctc_weight" in caplog.text
    answer = recognizer(AUDIO, rate=16000)
    assert answer.words
    assert {word for word, _ in answer.words} <= {"AB", "BA", "C"}
    assert answer.text == " ".join(word for word, _ in answer.words)
    silence = recognizer(np.zeros(16000, np.float32), rate=16000)
    assert (silence.text, silence.words, silence.score, silence.scores) == ("", (), 0.0, {})
    assert recognizer.align(AUDIO, "AB C").words == (("AB", 2), ("C", 1))


def test_a_neural_lm_is_rejected_where_it_can_not_be_used(phones: Path) -> None:
    loaded = Recognizer.from_pretrained(phones, search="lexicon").loaded
    with_lm = replace(loaded, lm=LanguageModel(SequentialRnnLm(vocab_size=len(TOKENS)), vocab_size=len(TOKENS)))
    with pytest.raises(UserError, match="search lexicon does not use a neural LM: remove --lm_file"):
        Recognizer(with_lm, DecodeOptions(search="lexicon"))
    assert Recognizer(with_lm, DecodeOptions(search="lexicon", lm_weight=0.0)).kind.name == "lexicon"


def test_a_decode_configuration_is_checked_without_torch(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tmp_path / "decode.yaml"
    config.write_text("search: lexicon\nbeam_size: 5\nctc_weight: 0.3\n")
    assert check_decode_config(config).search == "lexicon"
    assert "decode.yaml: search lexicon does not use ctc_weight" in caplog.text
    config.write_text("search: lexicon\nbeam_sise: 5\n")
    with pytest.raises(UserError, match=r"decode.yaml:2: unknown option 'beam_sise'. Did you mean 'beam_size'\?"):
        check_decode_config(config)
    config.write_text("search: lexicon\nbeam_size: 5\n")
    options = check_decode_config(config, ["--nbest", "2"])
    assert (options.search, options.beam_size, options.nbest) == ("lexicon", 5, 2)
    code = (
        "import sys; from pathlib import Path; from tympan.decode.settings import check_decode_config; "
        f"check_decode_config(Path({str(config)!r})); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
