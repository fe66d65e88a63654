"""Reference values of ESPnet2's speech translation model, for tests/models/test_st.py. Runs in ESPnet's environment.

usage: PYTHONPATH=STAND_IN ENV/bin/python benchmarks/peer_st.py [OUTPUT.json]

ENV is made by `peer_espnet.py --setup_only`, which puts the stand-in for torchaudio into ENV/stand_in. Models, weights
and inputs come from tests/models/st_cases.py, so that the file holds only results. Each utterance is run by itself,
because ESPnet2's results depend on padding.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import yaml
from espnet2.bin.st_inference import Speech2Text
from espnet2.tasks.lm import LMTask
from espnet2.tasks.st import STTask

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.models import st_cases  # noqa: E402

GOLDEN = ROOT / "tests" / "models" / "golden_st.json"


def main() -> None:
    torch.set_num_threads(1)
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    with tempfile.TemporaryDirectory() as folder:
        write_model(LMTask, {"token_list": st_cases.TOKENS, **st_cases.LM}, Path(folder), "lm")
        golden = {case: reference(case, Path(folder)) for case in st_cases.CASES}
    lines = [f" {json.dumps(case)}: {json.dumps(values, ensure_ascii=False)}" for case, values in golden.items()]
    output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def reference(case: str, folder: Path) -> dict[str, Any]:
    """Parameter shapes, losses of each utterance, and n-best lists."""
    model = write_model(STTask, st_cases.settings_of(case), folder, "st")
    if getattr(model, "extra_mt_encoder", None) is not None:
        give_two_results(model.extra_mt_encoder)
    texts = [
        {"audio": index, "text": text, "src_text": source}
        for index, (text, source) in enumerate(zip(st_cases.TEXTS, st_cases.SRC_TEXTS, strict=True))
    ]
    texts.append({"audio": 1, **likely_texts(model, 1)})
    return {
        "shapes": {name: list(tensor.shape) for name, tensor in model.state_dict().items()},
        "losses": [{**given, "stats": losses(model, **given)} for given in texts],
        "nbest": {name: nbest(folder, name) for name in st_cases.CASE_SEARCHES.get(case, [])},
    }


def write_model(task: Any, settings: dict[str, Any], folder: Path, name: str) -> torch.nn.Module:
    """NAME.yaml, NAME.pth and the model itself, in evaluation."""
    config = task.get_default_config() | settings
    if "model_conf" in settings:
        config["model_conf"] = task.get_default_config()["model_conf"] | settings["model_conf"]
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    model = task.build_model(argparse.Namespace(**config)).eval()
    st_cases.fill(model)
    torch.save(model.state_dict(), folder / f"{name}.pth")
    return model


def give_two_results(encoder: torch.nn.Module) -> None:
    """ESPnet2's model expects two results of extra_mt_encoder, but most of its encoders return three."""
    forward = encoder.forward
    encoder.forward = lambda *args: forward(*args)[:2]


@torch.no_grad()
def likely_texts(model: torch.nn.Module, audio: int) -> dict[str, list[int]]:
    """The model's own output with one token changed, so that accuracies and BLEU are neither 0 nor 1."""
    speech = st_cases.audio(audio)[None]
    target, _, source, _ = model.encode(speech, torch.tensor([speech.size(1)]), return_int_enc=True)
    prefix = [model.sos] + ([] if model.lang_token_id is None else [int(model.lang_token_id)])
    texts = {"text": likely_text(model, "decoder", "st_ctc", target, prefix)}
    texts["src_text"] = likely_text(model, "extra_asr_decoder", "ctc", source, [model.src_sos])
    for text in texts.values():
        text[7] = 4 if text[7] != 4 else 5
    return texts


def likely_text(model: torch.nn.Module, decoder: str, ctc: str, encoded: torch.Tensor, prefix: list[int]) -> list[int]:
    """Ten tokens of the decoder's best output, or of CTC's best path without repetitions."""
    if hasattr(model, decoder):
        tokens = list(prefix)
        for _ in range(10):
            ys_in, length = torch.tensor([tokens]), torch.tensor([len(tokens)])
            logits, _ = getattr(model, decoder)(encoded, torch.tensor([encoded.size(1)]), ys_in, length)
            tokens.append(1 + int(logits[0, -1, 1:].argmax()))  # a transcript has no blank
        return tokens[len(prefix) :]
    if hasattr(model, ctc):
        tokens = [token for token, _ in groupby(getattr(model, ctc).argmax(encoded)[0].tolist()) if token != 0]
        return (tokens + [2, 3] * 5)[:10]
    return [2, 3, 4, 5, 6] * 2


@torch.no_grad()
def losses(model: torch.nn.Module, audio: int, text: list[int], src_text: list[int]) -> dict[str, float]:
    tensors = [st_cases.audio(audio), torch.tensor(text), torch.tensor(src_text)]
    batch = [part for tensor in tensors for part in (tensor[None], torch.tensor([len(tensor)]))]
    _, stats, _ = model(*batch)
    return {name: float(value) for name, value in stats.items() if value is not None}


def nbest(folder: Path, search: str) -> list[list[dict[str, Any]]]:
    """For each utterance: tokens with sos and eos, the score, and the scores of the parts before weighting."""
    given = {"beam_size": st_cases.BEAM_SIZE, "nbest": st_cases.BEAM_SIZE, **st_cases.SEARCHES[search]}
    if "lm_weight" in given:
        given |= {"lm_train_config": str(folder / "lm.yaml"), "lm_file": str(folder / "lm.pth")}
    translate = Speech2Text(str(folder / "st.yaml"), str(folder / "st.pth"), **given)
    return [
        [
            {
                "yseq": [int(token) for token in hypothesis.yseq],
                "score": float(hypothesis.score),
                "scores": {name: float(score) for name, score in hypothesis.scores.items()},
            }
            for *_, hypothesis in translate(st_cases.audio(index))
        ]
        for index in range(len(st_cases.SAMPLES))
    ]


if __name__ == "__main__":
    main()
