"""Search hugging_face: `generate` of transformers with the decoder of a text-to-text model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.models.test_seq2seq import SIZES, encoded, make_folder
from tympan.decode.hugging_face_kind import GenerateOptions
from tympan.decode.options import DecodeOptions, InferenceOptions
from tympan.decode.search import Encoded, find_search, run_search
from tympan.errors import UserError

transformers = pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

from tympan.decode.hugging_face_search import HuggingFaceSearch, generate_arguments  # noqa: E402
from tympan.models.pretrained.seq2seq import HuggingFaceDecoder  # noqa: E402


@pytest.mark.parametrize("family", list(SIZES))
@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_those_of_transformers(tmp_path: Path, family: str, beams: int) -> None:
    theirs = make_folder(tmp_path, family)
    part = HuggingFaceDecoder(vocab_size=20, encoder_output_size=16, model_name_or_path=str(tmp_path)).eval()
    part.load_pretrained()
    memory, lengths = encoded()
    search = HuggingFaceSearch(part, GenerateOptions(num_beams=beams, max_length=12))
    found = run_search(search, Encoded(memory, lengths))
    for row, length in enumerate(lengths.tolist()):
        alone = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=memory[row : row + 1, :length])
        with torch.no_grad():
            ids = theirs.generate(encoder_outputs=alone, decoder_start_token_id=2, num_beams=beams, max_length=12)
        tokens = ids[0, 1:].tolist()
        expected = tokens[: tokens.index(2)] if 2 in tokens else tokens
        assert list(found[row][0].token_ids) == expected
        assert found[row][0].score < 0
        one = run_search(search, Encoded(memory[row : row + 1, :length], lengths[row : row + 1]))
        assert one[0][0].token_ids == found[row][0].token_ids
        assert one[0][0].score == pytest.approx(found[row][0].score, abs=1e-4)


def test_defaults_are_those_of_the_model() -> None:
    assert generate_arguments(GenerateOptions(), {"num_beams": 5, "max_length": 200})["max_length"] == 200
    found = generate_arguments(GenerateOptions(max_new_tokens=7), {"max_position_embeddings": 40})
    assert (found["num_beams"], found["max_new_tokens"], "max_length" in found) == (1, 7, False)
    assert generate_arguments(GenerateOptions(), {})["max_length"] == 512


def test_espnet2s_option_chooses_it() -> None:
    required = {"output_dir": Path("x"), "data_path_and_name_and_type": [("a", "speech", "sound")]}
    conf = {"num_beams": 4}
    options = InferenceOptions(hugging_face_decoder=True, hugging_face_decoder_conf=conf, **required)
    assert (options.search, options.search_conf) == ("hugging_face", conf)
    assert find_search("hugging_face").own_options(conf).num_beams == 4
    with pytest.raises(UserError, match="unknown option 'beams'"):
        find_search("hugging_face").own_options({"beams": 4})
    assert DecodeOptions().search is None
