"""Reference values of ESPnet2's models for several speakers, for tests/models/test_speakers.py.

usage: PYTHONPATH=STAND_IN ENV/bin/python benchmarks/peer_speakers.py [OUTPUT.json]

Runs in ESPnet's environment (`peer_espnet.py --setup`). Weights and inputs come from tests/models/speaker_cases.py, so
that the file holds only results.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks"))
from espnet2.asr.encoder.transformer_encoder_multispkr import TransformerEncoder  # noqa: E402
from espnet2.bin.asr_inference import Speech2Text  # noqa: E402
from espnet2.tasks.asr import ASRTask  # noqa: E402
from peer_parts import shapes, summary  # noqa: E402

from tests.models import part_cases  # noqa: E402
from tests.models import speaker_cases as cases  # noqa: E402

GOLDEN = ROOT / "tests" / "models" / "golden_speakers.json"


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    golden: dict[str, Any] = {**encoders(), **models(), **searches()}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items()]
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def encoders() -> dict[str, Any]:
    golden = {}
    for name, conf in cases.ENCODERS.items():
        encoder = TransformerEncoder(part_cases.FEATURES, **conf).eval()
        part_cases.fill(encoder)
        outs = [encoder(part_cases.features(i), torch.tensor([n]))[0][0] for i, n in enumerate(part_cases.LENGTHS)]
        golden[f"encoder {name}"] = {
            "shapes": shapes(encoder),
            "outputs": [[summary(speaker) for speaker in out] for out in outs],
        }
    return golden


def build(config: dict[str, Any]) -> tuple[argparse.Namespace, Any]:
    arguments = argparse.Namespace(**{**vars(ASRTask.get_parser().parse_args([])), **config})
    model = ASRTask.build_model(arguments).eval()
    cases.fill(model)
    return arguments, model


def models() -> dict[str, Any]:
    golden = {}
    for name, config in cases.MODELS.items():
        _, model = build(config)
        tensors = cases.batch(model.num_ref)
        encoded, lengths = model.encode(tensors["speech"], tensors["speech_lengths"])
        chosen: list[Any] = []
        solve = model.pit_ctc.forward
        model.pit_ctc.forward = lambda *given, solve=solve, chosen=chosen: chosen.append(solve(*given)) or chosen[-1]
        loss, stats, _ = model(**tensors)
        golden[f"model {name}"] = {
            "shapes": shapes(model),
            "outputs": [[summary(speaker) for speaker in out] for out in encoded],
            "lengths": lengths.tolist(),
            "permutations": chosen[0][1].tolist(),
            "loss": float(loss),
            "stats": {key: float(value) for key, value in stats.items() if value is not None},
        }
    return golden


def searches() -> dict[str, Any]:
    """The n-best lists of each speaker: text, token ids and score."""
    golden = {}
    arguments, model = build(cases.MODELS["two"])
    with tempfile.TemporaryDirectory() as directory:
        torch.save(model.state_dict(), Path(directory, "model.pth"))
        Path(directory, "config.yaml").write_text(json.dumps(vars(arguments)), encoding="utf-8")
        for name, options in cases.SEARCHES.items():
            recognizer = Speech2Text(
                str(Path(directory, "config.yaml")), str(Path(directory, "model.pth")), multi_asr=True, **options
            )
            found = []
            for speech in cases.batch(2)["speech"]:
                ranked = recognizer(speech)
                found.append([[(text, ids, float(hyp.score)) for text, _, ids, hyp in one] for one in ranked])
            golden[f"search {name}"] = found
    return golden


if __name__ == "__main__":
    main()
