"""Reference values of ESPnet2's transducers, for tests/models/test_transducer.py. Runs in ESPnet's environment.

usage: PYTHONPATH=STAND_IN ENV/bin/python benchmarks/peer_transducer.py [OUTPUT.json]

ENV is made by `peer_espnet.py --setup_only`, which puts the stand-in for torchaudio into ENV/stand_in. Models, weights
and inputs come from tests/models/transducer_cases.py, so that the file holds only results. Each utterance is run by
itself, because ESPnet2's results depend on padding. ESPnet2's loss needs warp-transducer, a compiled package. Instead,
this script uses the numba loss that ESPnet2 contains next to the multi-blank loss. The multi-blank loss needs a GPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from espnet2.asr.transducer.beam_search_transducer import BeamSearchTransducer
from espnet2.asr.transducer.rnnt_multi_blank.rnnt_multi_blank import RNNTLossNumba
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from espnet2.tasks.asr import ASRTask

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.models import transducer_cases as cases  # noqa: E402

GOLDEN = ROOT / "tests" / "models" / "golden_transducer.json"


def main() -> None:
    torch.set_num_threads(1)
    stand_in = types.ModuleType("warprnnt_pytorch")
    stand_in.RNNTLoss = RNNTLossNumba  # type: ignore[attr-defined]
    sys.modules["warprnnt_pytorch"] = stand_in
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    golden = {case: reference(case) for case in cases.CASES}
    lines = [f" {json.dumps(case)}: {json.dumps(values, ensure_ascii=False)}" for case, values in golden.items()]
    output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def build(task: Any, settings: dict[str, Any]) -> torch.nn.Module:
    config = copy.deepcopy(task.get_default_config() | settings)
    if "model_conf" in settings:
        config["model_conf"] = task.get_default_config()["model_conf"] | settings["model_conf"]
    model = task.build_model(argparse.Namespace(**config)).eval()
    cases.fill(model)
    return model


@torch.no_grad()
def reference(case: str) -> dict[str, Any]:
    """Parameter shapes, losses, some joint outputs and n-best lists."""
    model = build(ASRTask, cases.settings_of(case))
    first = model.vocab_size - len(cases.TOKENS)
    encoded = [model.encode(a[None], torch.tensor([len(a)]))[0][0] for a in map(cases.audio, range(len(cases.SAMPLES)))]
    found: dict[str, Any] = {
        "shapes": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
        "tokens": model.token_list,
        "joint": [
            joint(model, out, [first + token for token in text]) for out, text in zip(encoded, cases.TEXTS, strict=True)
        ],
    }
    if case == "multi_blank":
        found["nbest"] = {"mbg": [multi_blank(model, out) for out in encoded]}
    else:
        found["losses"] = [losses(model, index, text) for index, text in enumerate(cases.TEXTS)]
        found["nbest"] = {"greedy": [nbest(model, out, "greedy") for out in encoded]}
        found["beams"] = beams(model, case)
    if case == "gru":
        cases.fill_for_long_texts(model)
        memories = cases.long_memories(model)
        found["long"] = {name: [nbest(model, out, name) for out in memories] for name in cases.LONG_SEARCHES}
    return found


def beams(model: torch.nn.Module, case: str) -> dict[str, Any]:
    """N-best lists of the beam searches, with other weights."""
    cases.fill_for_beams(model)
    memories = cases.memories(model)
    return {name: [nbest(model, out, name) for out in memories] for name in cases.BEAM_SEARCHES[case]}


def losses(model: torch.nn.Module, audio: int, text: list[int]) -> dict[str, float]:
    speech = cases.audio(audio)
    with torch.enable_grad():  # the numba loss needs it
        model.error_calculator_trans = None
        _, stats, _ = model(speech[None], torch.tensor([len(speech)]), torch.tensor([text]), torch.tensor([len(text)]))
    return {name: float(value) for name, value in stats.items() if value is not None}


def joint(model: torch.nn.Module, encoded: torch.Tensor, text: list[int]) -> list[float]:
    """Every 37th logit of (frames, tokens + 1, V)."""
    predicted = model.decoder(torch.tensor([[model.blank_id, *text]]))
    logits = model.joint_network(encoded[None, :, None], predicted[:, None])
    return [round(value, 6) for value in logits.flatten()[::37].tolist()]


def nbest(model: torch.nn.Module, encoded: torch.Tensor, name: str) -> list[dict[str, Any]]:
    lm = None
    if name.startswith("lm_"):
        lm = SequentialRNNLM(model.vocab_size, **cases.LM).eval()
        cases.fill_lm(lm)
    search = BeamSearchTransducer(
        decoder=model.decoder, joint_network=model.joint_network, lm=lm, **cases.SEARCHES[name]
    )
    return [{"yseq": [int(t) for t in h.yseq[1:]], "score": float(h.score)} for h in search(encoded)]


def multi_blank(model: torch.nn.Module, encoded: torch.Tensor) -> list[dict[str, Any]]:
    """As espnet2.bin.asr_inference calls it."""
    durations = [*reversed(model.transducer_multi_blank_durations), 1]
    indices = [model.blank_id - i + 1 for i in range(len(durations), 0, -1)]
    search = BeamSearchTransducer(
        model.decoder, model.joint_network, 1, search_type="mbg",
        multi_blank_durations=durations, multi_blank_indices=indices,
    )  # fmt: skip
    return [{"yseq": [int(t) for t in h.yseq[1:]], "score": float(h.score)} for h in search(encoded)]


if __name__ == "__main__":
    main()
