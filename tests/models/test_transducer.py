"""Transducers: losses, batches, greedy search against a slow reference, options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.config.test_config_espnet2 import parse
from tests.models.tiny import TOKENS, rows_of, tiny_batch, tiny_model
from tympan.decode.search import Encoded, run_search
from tympan.decode.transducer_search import GreedyTransducer
from tympan.errors import UserError
from tympan.models.speech_model import SpeechModel
from tympan.models.transducer import TransducerModel
from tympan.models.transducer_greedy import TransducerParts
from tympan.tasks.asr import _with_big_blanks

DECODERS = {
    "lstm": {"decoder": "transducer", "decoder_only": {"hidden_size": 12, "num_layers": 2}},
    "gru": {"decoder": "transducer", "decoder_only": {"hidden_size": 12, "rnn_type": "gru"}},
    "stateless": {"decoder": "stateless", "decoder_only": {"embed_size": 12}},
}


def tiny_transducer(kind: str = "lstm", **given: Any) -> TransducerModel:
    conf = {"joint_net_conf": {"joint_space_size": 10}, "model_conf": {"ctc_weight": 0.3}, **given}
    model = tiny_model(**DECODERS[kind], **conf)
    assert isinstance(model, TransducerModel)
    assert isinstance(model, SpeechModel)
    return model


@pytest.mark.parametrize("kind", DECODERS)
def test_every_parameter_is_trained_and_terms_add_up(kind: str) -> None:
    model = tiny_transducer(kind)
    loss = model(**tiny_batch())
    loss.value.backward()
    assert all(item.grad is not None and item.grad.isfinite().all() for item in model.parameters())
    stats = {name: float(stat.total / stat.count) for name, stat in loss.stats.items()}
    assert float(loss.value.detach()) == pytest.approx(stats["loss_transducer"] + 0.3 * stats["loss_ctc"])


@pytest.mark.parametrize("kind", DECODERS)
def test_a_batch_is_the_sum_of_its_utterances(kind: str) -> None:
    model = tiny_transducer(kind).eval()
    batch = tiny_batch()
    together = model(**batch)
    alone = [model(**rows_of(batch, slice(row, row + 1))) for row in range(4)]
    for name, stat in together.stats.items():
        total = sum(float(one.stats[name].total) for one in alone)
        assert float(stat.total) == pytest.approx(total, rel=1e-4), name
    assert {"cer_transducer", "wer_transducer", "cer_ctc"} <= set(together.stats)


def test_a_model_learns_a_batch_and_says_it() -> None:
    model = tiny_transducer(model_conf={"ctc_weight": 0.0})
    batch = tiny_batch()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(240):
        optimizer.zero_grad()
        model(**batch).value.backward()
        optimizer.step()
    assert float(model.eval()(**batch).stats["cer_transducer"].total) == 0


def slow_greedy(parts: TransducerParts, memory: Tensor, max_symbols: int) -> tuple[list[int], float]:
    """A slow reference for one utterance: each step processes the whole text so far."""
    tokens, score, frame = [], 0.0, 0
    while frame < len(memory):
        for _ in range(max_symbols):
            out = parts.prediction(torch.tensor([[parts.blank_id, *tokens]]))[0, -1]
            best = parts.log_probs(parts.joint.project_frames(memory[frame]), parts.joint.project_predictions(out)).max(
                0
            )
            score += float(best.values)
            if int(best.indices) in parts.durations:
                break
            tokens.append(int(best.indices))
        frame += parts.durations.get(int(best.indices), 1)
    return tokens, score


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("max_symbols", [1, 3])
@torch.no_grad()
def test_greedy_search_is_the_slow_one_for_any_batch_and_pieces(kind: str, max_symbols: int) -> None:
    model = tiny_transducer(kind).eval()
    model.joint_network.lin_out.weight.mul_(8)
    model.joint_network.lin_enc.weight.mul_(8)
    model.joint_network.lin_out.bias[0] += 1.0
    _check_greedy(model, max_symbols)


@torch.no_grad()
def test_greedy_search_skips_the_frames_of_big_blanks() -> None:
    conf = {"ctc_weight": 0.0, "transducer_multi_blank_durations": [2, 4]}
    model = multi_blank_model(conf)
    model.joint_network.lin_out.weight.mul_(8)
    model.joint_network.lin_enc.weight.mul_(8)
    _check_greedy(model, 4)


def multi_blank_model(conf: dict[str, Any]) -> TransducerModel:
    import tests.models.tiny as tiny

    tokens = _with_big_blanks(list(TOKENS), conf)
    assert tokens[:4] == ["<blank4>", "<blank2>", "<blank>", "<unk>"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "TOKENS", tokens)
        return tiny_transducer(model_conf=conf).eval()


def _check_greedy(model: TransducerModel, max_symbols: int) -> None:
    lengths = [23, 9, 1, 17]
    generator = torch.Generator().manual_seed(5)
    memory = torch.randn(4, 23, 16, generator=generator)
    search = GreedyTransducer(model.transducer_parts, max_symbols=max_symbols)
    found = run_search(search, Encoded(memory=memory, lengths=torch.tensor(lengths)))
    # In two pieces, cut at a different frame of each utterance
    first, state = torch.tensor([10, 9, 0, 3]), search.start(4)
    state = search.accept(state, Encoded(memory=memory, lengths=first))
    rest = torch.stack([row.roll(-int(cut), 0) for row, cut in zip(memory, first, strict=True)])
    pieces = search.finish(search.accept(state, Encoded(memory=rest, lengths=torch.tensor(lengths) - first)))
    texts = set()
    for row, length in enumerate(lengths):
        tokens, score = slow_greedy(model.transducer_parts, memory[row, :length], max_symbols)
        for (best,) in (found[row], pieces[row]):
            assert list(best.token_ids) == tokens
            assert best.score == pytest.approx(score, abs=1e-3)
        texts.add(tuple(tokens))
    assert len(texts) > 2


def test_big_blanks_are_trained() -> None:
    model = multi_blank_model({"ctc_weight": 0.0, "transducer_multi_blank_durations": [2, 4]})
    batch = tiny_batch()
    plain = model(**batch).value
    plain.backward()
    assert model.joint_network.lin_out.bias.grad[:3].ne(0).all()
    model.sigma = 0.0
    assert float(model(**batch).value.detach()) < float(plain.detach())


def test_the_first_token_is_the_blank_of_a_list_without_one() -> None:
    """As in ESPnet2, and as the CTC/attention model does it."""
    model = tiny_transducer(token_list=["<b>", *TOKENS[1:]])
    assert model.blank_id == 0
    assert model(**tiny_batch()).value.isfinite()
    with pytest.raises(UserError, match="does not contain the blank '<other>'"):
        tiny_transducer(model_conf={"sym_blank": "<other>"})


def test_fastemit_is_a_key_of_model_transducer() -> None:
    given = {"model": "transducer", "model_conf": {"ctc_weight": 0.0, "fastemit_lambda": 0.5}}
    fast, plain = tiny_transducer(**given), tiny_transducer(model_conf={"ctc_weight": 0.0})
    losses = [model(**tiny_batch()).value for model in (fast, plain)]
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    assert not torch.equal(fast.joint_network.lin_out.bias.grad, plain.joint_network.lin_out.bias.grad)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "transducer", "--decoder", "rnn"], "needs --decoder transducer or stateless, found rnn"),
        (["--joint_net_conf", "joint_space_size=3"], "needs --decoder transducer or stateless, found transformer"),
        (["--model_conf", "transducer_multi_blank_durations=[2]"], "needs --decoder transducer or stateless"),
    ],
)
def test_options_that_do_not_go_together(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse("--output_dir", "x", "--token_list", "tokens.txt", "--model_conf", "ctc_weight=1.0", *arguments)


def test_unknown_keys_of_the_joint_network_and_missing_big_blanks() -> None:
    with pytest.raises(UserError, match="has no key 'joint_size'"):
        tiny_transducer(joint_net_conf={"joint_size": 3})
    with pytest.raises(UserError, match="the token list does not contain <blank3>"):
        tiny_transducer(model_conf={"transducer_multi_blank_durations": [3]})


@pytest.mark.parametrize("kind", DECODERS)
def test_an_untrained_model_can_be_made_to_emit_as_many_tokens_as_speech_has(kind: str) -> None:
    """Its blank is as likely as any token, so that without this the search emits many at every frame."""
    model = tiny_transducer(kind).eval()
    out, lengths = torch.randn(2, 125, 16), torch.tensor([125, 125])
    search = GreedyTransducer(model.transducer_parts, max_symbols=30)

    def count() -> float:
        return sum(len(found[0].token_ids) for found in run_search(search, Encoded(memory=out, lengths=lengths))) / 2

    assert count() > 1000
    for tokens in (15, 60):
        model.expect_tokens(out, lengths, tokens=tokens)
        assert count() == tokens
