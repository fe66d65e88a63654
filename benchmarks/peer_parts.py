"""Reference values of ESPnet2's parts, for tests/models/test_peer_parts.py. Runs in ESPnet's environment.

usage: PYTHONPATH=STAND_IN ENV/bin/python benchmarks/peer_parts.py [OUTPUT.json]

ENV is made by `peer_espnet.py --setup_only`, which puts the stand-in for torchaudio into ENV/stand_in. Weights and
inputs come from tests/models/part_cases.py, so that the file holds only results. Each utterance is run by itself,
because ESPnet2's results depend on padding.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from espnet.nets.beam_search_timesync import BeamSearchTimeSync
from espnet.nets.pytorch_backend.transformer.encoder import Encoder as Espnet1Encoder
from espnet2.asr.decoder import transformer_decoder as decoders
from espnet2.asr.decoder.mlm_decoder import MLMDecoder
from espnet2.asr.encoder.contextual_block_conformer_encoder import ContextualBlockConformerEncoder
from espnet2.asr.encoder.contextual_block_transformer_encoder import ContextualBlockTransformerEncoder
from espnet2.asr.encoder.multiconvformer_encoder import MultiConvConformerEncoder
from espnet2.asr.frontend.windowing import SlidingWindow
from espnet2.asr.maskctc_model import MaskCTCInference
from espnet2.asr.preencoder.sinc import LightweightSincConvs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.models import part_cases as cases  # noqa: E402

GOLDEN = ROOT / "tests" / "models" / "golden_parts.json"


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    golden: dict[str, Any] = {}
    for name, conf in cases.MULTICONV.items():
        encoder = MultiConvConformerEncoder(cases.FEATURES, **conf).eval()
        cases.fill(encoder)
        outs = [encoder(cases.features(i), torch.tensor([n]))[0] for i, n in enumerate(cases.LENGTHS)]
        golden[f"multiconv {name}"] = {"shapes": shapes(encoder), "outputs": [summary(out[0]) for out in outs]}
    for name, conf in cases.SINC.items():
        sinc = LightweightSincConvs(**conf).eval()
        filters = sinc.filters.f.flatten()[::16].tolist()
        cases.fill(sinc, keeps=(".f",))
        windows, lengths = SlidingWindow()(cases.speech(0), torch.tensor([cases.SAMPLES[0]]))
        out = sinc(windows, lengths)[0]
        golden[f"sinc {name}"] = {"shapes": shapes(sinc), "filters": filters, "outputs": [summary(out[0])]}
    for name, conf in cases.WINDOWS.items():
        frontend = SlidingWindow(**conf)
        made = [frontend(cases.speech(i), torch.tensor([n])) for i, n in enumerate(cases.SAMPLES)]
        golden[f"windows {name}"] = {
            "lengths": [int(lengths) for _, lengths in made],
            "outputs": [summary(out[0].flatten(1)) for out, _ in made],
        }
    golden |= convolutions()
    for name, conf in cases.BLOCKS.items():
        block_encoder = BLOCK_ENCODERS[name.split()[0]](cases.FEATURES, **conf).eval()
        cases.fill(block_encoder)
        outs = [block_encoder(cases.features(i), torch.tensor([n]))[0] for i, n in enumerate(cases.LENGTHS)]
        golden[f"blocks {name}"] = {"shapes": shapes(block_encoder), "outputs": [summary(out[0]) for out in outs]}
    golden |= mask_ctc()
    golden |= time_sync()
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items()]
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


BLOCK_ENCODERS = {
    "transformer": ContextualBlockTransformerEncoder,
    "conformer": ContextualBlockConformerEncoder,
}
DECODERS = {
    "lightweight_conv": decoders.LightweightConvolutionTransformerDecoder,
    "lightweight_conv2d": decoders.LightweightConvolution2DTransformerDecoder,
    "dynamic_conv": decoders.DynamicConvolutionTransformerDecoder,
    "dynamic_conv2d": decoders.DynamicConvolution2DTransformerDecoder,
}


def convolutions() -> dict[str, Any]:
    """Light and dynamic convolution: ESPnet1's encoders, and the decoders of ESPnet2 for whole sequences."""
    golden: dict[str, Any] = {}
    for name, kind in cases.CONVOLUTIONS.items():
        for case, conf in cases.CONVOLUTION.items():
            given = dict(conf, attention_dim=conf["output_size"], selfattention_layer_type=kind)
            given["conv_kernel_length"] = "_".join(map(str, given["conv_kernel_length"]))
            encoder = Espnet1Encoder(cases.FEATURES, **{key: given[key] for key in given if key != "output_size"})
            cases.fill(encoder.eval())
            outs = [encoder(cases.features(i), torch.ones(1, 1, n)) for i, n in enumerate(cases.LENGTHS)]
            golden[f"encoder {name} {case}"] = {
                "shapes": shapes(encoder),
                "outputs": [summary(out[0]) for out, _ in outs],
            }
            decoder = DECODERS[name](cases.VOCABULARY, 8, **cases.decoder_conf(conf)).eval()
            cases.fill(decoder)
            results = []
            for i, n in enumerate(cases.LENGTHS):
                tokens = cases.tokens(i)
                out, _ = decoder(cases.memory(i), torch.tensor([n]), tokens, torch.tensor([tokens.size(1)]))
                results.append(summary(out[0]))
            golden[f"decoder {name} {case}"] = {"shapes": shapes(decoder), "outputs": results}
    return golden


def mask_ctc() -> dict[str, Any]:
    """The decoder of Mask-CTC, and its inference from given CTC posteriors."""
    golden: dict[str, Any] = {}
    for name, conf in cases.MLM.items():
        decoder = MLMDecoder(cases.VOCABULARY, 8, **conf).eval()
        cases.prefer_tokens(decoder)
        outs, found = [], {}
        for i, n in enumerate(cases.LENGTHS):
            tokens = cases.masked(i)
            out, _ = decoder(cases.memory(i), torch.tensor([n]), tokens, torch.tensor([tokens.size(1)]))
            outs.append(summary(out[0]))
            for iterations, threshold in cases.MASK_CTC:
                # It asks the model for four things only.
                model = SimpleNamespace(
                    decoder=decoder,
                    mask_token=cases.VOCABULARY,
                    token_list=[str(number) for number in range(cases.VOCABULARY)] + ["<unk>"],
                    ctc=SimpleNamespace(log_softmax=lambda _, i=i: cases.posteriors(i).unsqueeze(0)),
                )
                inference = MaskCTCInference(model, iterations, threshold)
                ids = inference(cases.memory(i)[0]).yseq.tolist()[1:-1]
                found.setdefault(f"{iterations} {threshold}", []).append(ids)
        golden[f"mlm {name}"] = {"shapes": shapes(decoder), "outputs": outs, "found": found}
    return golden


def time_sync() -> dict[str, Any]:
    """Hypotheses of time-synchronous search with stand-ins for decoder and language model."""

    def scorer(salt: float) -> Any:
        return SimpleNamespace(
            init_state=lambda x: None,
            score=lambda tokens, state, x: (cases.prefix_log_probs(tuple(tokens.tolist()), salt), None),
        )

    golden: dict[str, Any] = {}
    for beam_size, ctc_weight, lm_weight, penalty in cases.TIME_SYNC:
        rows = []
        for i in range(len(cases.LENGTHS)):
            search = BeamSearchTimeSync(
                sos=cases.VOCABULARY - 1,
                beam_size=beam_size,
                scorers={
                    "ctc": SimpleNamespace(log_softmax=lambda _, i=i: cases.posteriors(i).unsqueeze(0)),
                    "decoder": scorer(0.2),
                    "lm": scorer(0.9),
                },
                weights={"ctc": ctc_weight, "lm": lm_weight, "decoder": 1 - ctc_weight, "length_bonus": penalty},
                token_list=[str(number) for number in range(cases.VOCABULARY)],
            )
            rows.append([[h.yseq.tolist()[1:-1], round(float(h.score), 6)] for h in search(cases.memory(i)[0])])
        golden[f"time_sync {beam_size} {ctc_weight}"] = rows
    return golden


def shapes(module: torch.nn.Module) -> dict[str, list[int]]:
    return {cases.newest_name(name): list(tensor.shape) for name, tensor in module.state_dict().items()}


def summary(out: torch.Tensor) -> dict[str, Any]:
    """The shape, and every n-th value of (frames, size)."""
    step = max(out.numel() // 40, 1)
    return {"shape": list(out.shape), "step": step, "values": [round(v, 7) for v in out.flatten()[::step].tolist()]}


if __name__ == "__main__":
    main()
