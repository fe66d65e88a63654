"""Language models against ESPnet2's own, and their cached steps against a plain pass."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tympan.config import load_training_config
from tympan.config.lm import LmTrainConfig
from tympan.errors import UserError
from tympan.models.build import build_lm
from tympan.models.lm.model import LanguageModel
from tympan.models.lm.seq_rnn import SequentialRnnLm
from tympan.models.lm.transformer import TransformerLm
from tympan.models.weights import load_weights

CLASSES = {"seq_rnn": SequentialRnnLm, "transformer": TransformerLm}
VOCAB = 11


def espnet2_lm(folder: Path) -> tuple[LanguageModel, dict, dict]:
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    vocab_size = len(config["token_list"])
    model = LanguageModel(CLASSES[config["lm"]](vocab_size, **config["lm_conf"]), vocab_size=vocab_size)
    model.load_state_dict(torch.load(folder / "model.pth", weights_only=True))
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return model.eval(), expected, dict(np.load(folder / "tensors.npz"))


def padded(sequences: list[list[int]], value: int) -> tuple[torch.Tensor, torch.Tensor]:
    text = nn.utils.rnn.pad_sequence([torch.tensor(s) for s in sequences], batch_first=True, padding_value=value)
    return text, torch.tensor([len(s) for s in sequences])


@pytest.mark.parametrize("name", ["seq_rnn_lstm", "transformer"])
@pytest.mark.parametrize("padding", [0, -1])
def test_espnet2_weights_give_its_loss(golden: Path, name: str, padding: int) -> None:
    model, expected, tensors = espnet2_lm(golden / "espnet2_lm" / name)
    text, lengths = padded(expected["sequences"], padding)
    with torch.no_grad():
        nll, with_end = model.nll(text, lengths)
        loss = model(text, lengths)
    np.testing.assert_allclose(nll.numpy(), tensors["nll"], atol=1e-4)
    assert with_end.tolist() == [len(s) + 1 for s in expected["sequences"]]
    assert float(loss.value) == pytest.approx(expected["loss"], abs=1e-4)


@pytest.mark.parametrize("name", ["seq_rnn_lstm", "transformer"])
def test_espnet2_weights_give_its_next_token_distributions(golden: Path, name: str) -> None:
    model, expected, tensors = espnet2_lm(golden / "espnet2_lm" / name)
    for i, sequence in enumerate(expected["sequences"]):
        state = model.start(1, 1, torch.device("cpu"), torch.float32)
        for k, token in enumerate([model.sos, *sequence]):
            with torch.no_grad():
                log_probs, state = model.step(torch.tensor([[token]]), state)
            np.testing.assert_allclose(log_probs[0, 0].numpy(), tensors[f"log_probs_{i}"][k], atol=1e-4)


def random_lm(kind: str) -> nn.Module:
    torch.manual_seed(1)
    lms = {
        "lstm": lambda: SequentialRnnLm(VOCAB, unit=8, rnn_type="lstm"),
        "gru": lambda: SequentialRnnLm(VOCAB, unit=8, nhid=6, nlayers=1, rnn_type="gru", dropout_rate=0.1),
        "rnn_tanh": lambda: SequentialRnnLm(VOCAB, unit=8, rnn_type="rnn_tanh", tie_weights=True),
        "rnn_relu": lambda: SequentialRnnLm(VOCAB, unit=8, rnn_type="rnn_relu"),
        "transformer": lambda: TransformerLm(VOCAB, embed_unit=6, att_unit=8, head=2, unit=12, layer=2),
        "sinusoidal": lambda: TransformerLm(
            VOCAB, pos_enc="sinusoidal", embed_unit=6, att_unit=8, head=2, unit=12, layer=2
        ),
    }
    return lms[kind]().eval()


KINDS = ["lstm", "gru", "rnn_tanh", "rnn_relu", "transformer", "sinusoidal"]


@pytest.mark.parametrize("kind", KINDS)
def test_cached_steps_follow_reordered_beams(kind: str) -> None:
    """Steps with reordered hypotheses give the same scores as processing each hypothesis from its start."""
    lm = random_lm(kind)
    generator = torch.Generator().manual_seed(2)
    utterances, beams, length = 3, 4, 6
    state = lm.start(utterances, beams, torch.device("cpu"), torch.float32)
    prefixes = torch.full((utterances, beams, 1), VOCAB - 1)
    for step in range(length):
        with torch.no_grad():
            log_probs, state = lm.step(prefixes[..., -1], state)
            whole = lm(prefixes.flatten(0, 1))[:, -1].log_softmax(-1).view(utterances, beams, VOCAB)
        torch.testing.assert_close(log_probs, whole, atol=1e-5, rtol=1e-5)
        parents = torch.randint(beams, (utterances, beams), generator=generator)
        # Token 0 may be chosen by a search; ESPnet2's Transformer never attends to it.
        tokens = torch.randint(VOCAB, (utterances, beams, 1), generator=generator)
        state = state.reorder(parents)
        prefixes = torch.cat([prefixes.gather(1, parents.unsqueeze(-1).expand_as(prefixes)), tokens], dim=-1)
        if step == 2:
            kept = torch.tensor([0, 2])
            state, prefixes, utterances = state.keep(kept), prefixes[kept], 2


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind: str) -> None:
    model = LanguageModel(random_lm(kind), vocab_size=VOCAB)
    sequences = [[1, 2, 3, 4, 5, 6], [7, 8], [9]]
    text, lengths = padded(sequences, -1)
    with torch.no_grad():
        together, _ = model.nll(text, lengths)
        for row, sequence in zip(together, sequences, strict=True):
            alone, _ = model.nll(torch.tensor([sequence]), torch.tensor([len(sequence)]))
            torch.testing.assert_close(row[: len(sequence) + 1], alone[0])
            assert not row[len(sequence) + 1 :].any()


@pytest.mark.parametrize("kind", KINDS)
def test_nll_sees_no_later_token(kind: str) -> None:
    lm = random_lm(kind)
    tokens = torch.tensor([[10, 1, 2, 3, 4]])
    changed = torch.tensor([[10, 1, 2, 9, 8]])
    with torch.no_grad():
        torch.testing.assert_close(lm(tokens)[:, :3], lm(changed)[:, :3])


def test_loss_adds_up_over_pieces() -> None:
    model = LanguageModel(random_lm("lstm"), vocab_size=VOCAB)
    text, lengths = padded([[1, 2, 3, 4], [5, 6], [7]], -1)
    whole = model(text, lengths)
    pieces = [model(text[:1], lengths[:1]), model(text[1:], lengths[1:])]
    counts = torch.stack([whole.terms[0].count])
    torch.testing.assert_close(sum(piece.value_over(counts) for piece in pieces), whole.value)
    assert int(whole.terms[0].count) == 4 + 2 + 1 + 3


def test_the_loss_may_be_per_sentence() -> None:
    network = random_lm("lstm")
    text, lengths = padded([[1, 2, 3, 4], [5, 6], [7]], -1)
    per_token = LanguageModel(network, vocab_size=VOCAB)(text, lengths)
    per_sentence = LanguageModel(network, vocab_size=VOCAB, length_normalized_loss=False)(text, lengths)
    torch.testing.assert_close(per_sentence.value * 3, per_token.value * 10)
    assert per_sentence.stats["loss"].count == 10, "the reported loss stays per token, for the perplexity"


def test_empty_share_of_a_batch_has_no_loss() -> None:
    model = LanguageModel(random_lm("transformer"), vocab_size=VOCAB)
    loss = model(torch.zeros((0, 4), dtype=torch.long), torch.zeros(0, dtype=torch.long))
    assert loss.terms[0].total.item() == 0.0
    assert int(loss.terms[0].count) == 0


def test_an_empty_sentence_has_only_its_end() -> None:
    model = LanguageModel(random_lm("lstm"), vocab_size=VOCAB)
    nll, lengths = model.nll(torch.zeros((1, 0), dtype=torch.long), torch.tensor([0]))
    assert nll.shape == (1, 1)
    assert lengths.tolist() == [1]


def test_weights_of_different_sizes_cannot_be_tied() -> None:
    with pytest.raises(UserError, match="nhid to equal unit"):
        SequentialRnnLm(VOCAB, unit=8, nhid=6, tie_weights=True)


def test_recurrent_layers_are_named_in_any_case() -> None:
    assert isinstance(SequentialRnnLm(VOCAB, unit=8, rnn_type="GRU").rnn, nn.GRU)
    with pytest.raises(UserError, match="not 'lsmt'"):
        SequentialRnnLm(VOCAB, unit=8, rnn_type="lsmt")


def test_attention_units_are_shared_by_the_heads() -> None:
    with pytest.raises(UserError, match="multiple of head"):
        TransformerLm(VOCAB, att_unit=10, head=4)


def test_the_recipes_lm_is_built_and_loaded_from_its_config(golden: Path) -> None:
    folder = golden / "espnet2" / "an4_trained"
    config = load_training_config(LmTrainConfig, folder / "lm_config.yaml")
    model = build_lm(config)
    model.load_state_dict(load_weights(folder / "lm_model.pth"))
    assert isinstance(model.lm, SequentialRnnLm)
    assert (model.lm.rnn.hidden_size, model.vocab_size, model.eos) == (128, 24, 23)


def projection_flops(lm: nn.Module, prefix: int) -> int:
    """Number of operations of a step after a number of tokens, in all layers except recurrence and attention."""
    state = lm.start(1, 2, torch.device("cpu"), torch.float32)
    with torch.no_grad():
        for _ in range(prefix):
            _, state = lm.step(torch.ones((1, 2), dtype=torch.long), state)
        with FlopCounterMode(display=False) as counter:
            lm.step(torch.ones((1, 2), dtype=torch.long), state)
    return counter.get_flop_counts()["Global"][torch.ops.aten.addmm]


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_a_step_does_not_read_its_prefix_again(kind: str) -> None:
    lm = random_lm(kind)
    assert projection_flops(lm, 64) == projection_flops(lm, 4) > 0
