"""Light and dynamic convolution beside ESPnet's own classes (benchmarks/peer_parts.py), and step by step."""

from __future__ import annotations

import pytest
import torch

from tests.models import part_cases as cases
from tests.models.test_peer_parts import GOLDEN, assert_same, padded, shapes
from tests.models.tiny import tiny_batch, tiny_model
from tympan.config import choices
from tympan.errors import UserError


@pytest.mark.parametrize("case", cases.CONVOLUTION)
@pytest.mark.parametrize("name", cases.CONVOLUTIONS)
@torch.no_grad()
def test_encoder_equals_espnet1(name: str, case: str) -> None:
    golden = GOLDEN[f"encoder {name} {case}"]
    encoder = choices.ENCODERS.build(name, cases.CONVOLUTION[case], input_size=cases.FEATURES).eval()
    assert shapes(encoder) == golden["shapes"]
    cases.fill(encoder)
    utterances = [cases.features(index) for index in range(len(cases.LENGTHS))]
    together = encoder(padded(utterances, 0.0), torch.tensor(cases.LENGTHS))
    for index, (utterance, expected) in enumerate(zip(utterances, golden["outputs"], strict=True)):
        alone = encoder(utterance, torch.tensor([utterance.size(1)]))
        assert_same(alone.out[0], expected)
        assert_same(together.out[index, : alone.out.size(1)], expected)


@pytest.mark.parametrize("case", cases.CONVOLUTION)
@pytest.mark.parametrize("name", cases.CONVOLUTIONS)
@torch.no_grad()
def test_decoder_equals_espnet2_and_its_steps_equal_the_whole(name: str, case: str) -> None:
    golden = GOLDEN[f"decoder {name} {case}"]
    conf = cases.decoder_conf(cases.CONVOLUTION[case])
    decoder = choices.DECODERS.build(name, conf, vocab_size=cases.VOCABULARY, encoder_output_size=8).eval()
    assert shapes(decoder) == golden["shapes"]
    cases.fill(decoder)
    memory, lengths = padded([cases.memory(i) for i in range(3)], 7.0), torch.tensor(cases.LENGTHS)
    tokens = [cases.tokens(index) for index in range(3)]
    text = padded(tokens, 0)
    logits = decoder(memory, lengths, text, torch.tensor([row.size(1) for row in tokens]))
    for index, expected in enumerate(golden["outputs"]):
        assert_same(logits[index, : tokens[index].size(1)], expected)
    state = decoder.start(memory, lengths, 2)
    for step in range(text.size(1)):
        # Both beams hold the same tokens; the second is made of the first by the reordering of a search.
        scores, state = decoder.step(text[:, step : step + 1].expand(-1, 2), state)
        state = state.reorder(torch.zeros(3, 2, dtype=torch.long))
        for beam in range(2):
            expected_scores = logits[:, step].log_softmax(-1)
            torch.testing.assert_close(scores[:, beam], expected_scores, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", cases.CONVOLUTIONS)
def test_models_with_convolutions_train(name: str) -> None:
    conf = {**cases.CONVOLUTION["short"], "interctc_layer_idx": [1]}
    decoder_conf = cases.decoder_conf(cases.CONVOLUTION["short"])
    model = tiny_model(encoder=name, encoder_only=conf, decoder=name, decoder_only=decoder_conf)
    model(**tiny_batch()).value.backward()
    assert all(item.grad is not None for item in model.parameters())


def test_mistakes_in_the_kernels() -> None:
    conf = cases.decoder_conf(cases.CONVOLUTION["short"])
    for changed, message in (
        ({"conv_kernel_length": [3]}, "has 1 values, but num_blocks is 2"),
        ({"conv_kernel_length": [3, 4]}, "odd number"),
        ({"conv_wshare": 3}, "multiple of conv_wshare"),
    ):
        with pytest.raises(UserError, match=message):
            choices.DECODERS.build("dynamic_conv", {**conf, **changed}, vocab_size=9, encoder_output_size=8)
