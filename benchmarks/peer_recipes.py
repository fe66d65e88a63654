"""Reference values of ESPnet2's parts that few recipes use, for tests/models/test_recipe_parts.py.

usage: PYTHONPATH=STAND_IN ENV/bin/python benchmarks/peer_recipes.py [OUTPUT.json]

Runs in ESPnet's environment (`peer_espnet.py --setup_only`, then `pip install transformers`). Weights and inputs are
from tests/models/recipe_cases.py, so that the file holds only results. torchaudio's filterbank is replaced by that of
kaldi-native-fbank, which has the same definition. ESPnet2 computes the kernels of S4 with an extension for CUDA. Its
function for a CPU leaves out the conjugates of the poles, so it is replaced by one that has them.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kaldi_native_fbank as knf
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks"))
from espnet2.asr.decoder.linear_decoder import LinearDecoder  # noqa: E402
from espnet2.asr.decoder.s4_decoder import S4Decoder  # noqa: E402
from espnet2.asr.encoder import beats_encoder  # noqa: E402
from espnet2.asr.encoder.conformer_encoder import ConformerEncoder  # noqa: E402
from espnet2.asr.frontend.espnet_ssl import ESPnetSSLFrontend  # noqa: E402
from espnet2.asr.state_spaces import s4 as s4_layer  # noqa: E402
from espnet2.optimizers.optim_groups import configure_optimizer  # noqa: E402
from espnet2.tasks.ssl import SSLTask  # noqa: E402
from peer_parts import shapes, summary  # noqa: E402

from tests.models import part_cases  # noqa: E402
from tests.models import recipe_cases as cases  # noqa: E402

GOLDEN = ROOT / "tests" / "models" / "golden_recipes.json"


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    golden: dict[str, Any] = {}
    golden |= trim()
    golden |= beats()
    golden |= linear()
    golden |= state_space()
    golden |= self_supervised()
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items()]
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def trim() -> dict[str, Any]:
    """Conformers that drop the blank frames at the end."""
    golden = {}
    for name, conf in cases.TRIM.items():
        encoder = ConformerEncoder(part_cases.FEATURES, **conf, ctc_trim=True).eval()
        if encoder.interctc_use_conditioning:
            encoder.conditioning_layer = torch.nn.Linear(cases.VOCABULARY, encoder.output_size())
        part_cases.fill(encoder)
        outs = []
        for i, n in enumerate(part_cases.LENGTHS):
            ctc = SimpleNamespace(softmax=lambda x, i=i: cases.trim_posteriors(x.size(1), i))
            out, _, _ = encoder(part_cases.features(i), torch.tensor([n]), ctc=ctc)
            outs.append(summary(out[0][0]))
        golden[f"trim {name}"] = {"shapes": shapes(encoder), "outputs": outs}
    return golden


def fbank(waveform: torch.Tensor, **options: Any) -> torch.Tensor:
    """torchaudio's function with the options that BEATs uses."""
    assert options == {"num_mel_bins": 128, "sample_frequency": 16000, "frame_length": 25, "frame_shift": 10}
    given = knf.FbankOptions()
    given.frame_opts.dither = 0.0
    given.mel_opts.num_bins = 128
    given.energy_floor = 0.0
    computer = knf.OnlineFbank(given)
    computer.accept_waveform(16000, waveform[0].tolist())
    computer.input_finished()
    return torch.stack([torch.from_numpy(computer.get_frame(i).copy()) for i in range(computer.num_frames_ready)])


def beats() -> dict[str, Any]:
    beats_encoder.ta_kaldi = SimpleNamespace(fbank=fbank)
    golden = {}
    with tempfile.TemporaryDirectory() as directory:
        adapter = Path(directory, "adapter.json")
        adapter.write_text(json.dumps(cases.ADAPTER), encoding="utf-8")
        named = dict(cases.BEATS, adapter={**cases.BEATS["published"], "adapter_config": str(adapter)})
        for name, conf in named.items():
            encoder = beats_encoder.BeatsEncoder(1, **conf).eval()
            part_cases.fill(encoder)
            outs = [encoder(cases.beats_speech(i), torch.tensor([n]))[0][0] for i, n in enumerate(cases.BEATS_SAMPLES)]
            golden[f"beats {name}"] = {"shapes": shapes(encoder), "outputs": [summary(out) for out in outs]}
    return golden


def linear() -> dict[str, Any]:
    golden = {}
    for name, conf in cases.LINEAR.items():
        decoder = LinearDecoder(cases.VOCABULARY, 8, **conf).eval()
        part_cases.fill(decoder)
        outs = [decoder(part_cases.memory(i), torch.tensor([n])) for i, n in enumerate(part_cases.LENGTHS)]
        logits, target = torch.cat(outs), torch.tensor([0, 3, 7])
        loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)(logits, target)
        golden[f"linear {name}"] = {"shapes": shapes(decoder), "outputs": summary(logits), "loss": float(loss)}
    return golden


def with_conjugates(v: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The sum over the poles and their conjugates, as the extension for CUDA computes it."""
    z, v, w = z.unsqueeze(-2), v.unsqueeze(-1), w.unsqueeze(-1)
    return (v / (z - w) + v.conj() / (z - w.conj())).sum(-2)


def state_space() -> dict[str, Any]:
    """Each utterance with a new decoder, because ESPnet2 changes weights when a longer text comes."""
    s4_layer.cauchy_naive = with_conjugates
    golden = {}
    for name, (conf, stored) in cases.S4.items():
        outs, steps = [], []
        for i, n in enumerate(part_cases.LENGTHS):
            decoder = S4Decoder(cases.VOCABULARY, 8, **copy.deepcopy(conf)).eval()
            part_cases.fill(decoder)
            spaces = [module for module in decoder.modules() if isinstance(module, s4_layer.S4)]
            for space in spaces:
                space.kernel.kernel.L.fill_(stored)
            memory, tokens = part_cases.memory(i), part_cases.tokens(i)
            out, _ = decoder(memory, torch.tensor([n]), tokens, torch.tensor([tokens.size(1)]))
            outs.append(summary(out[0]))
            for space in spaces:
                space.setup_step()
            states, found = [decoder.init_state(memory)], []
            for end in range(1, tokens.size(1) + 1):
                log_probs, states = decoder.batch_score(tokens[:, :end], states, memory)
                found.append(log_probs)
            steps.append(summary(torch.cat(found)))
        golden[f"s4 {name}"] = {"shapes": shapes(decoder), "outputs": outs, "steps": steps}
    decoder = S4Decoder(cases.VOCABULARY, 8, **copy.deepcopy(cases.S4["untrained"][0]))
    optimizer = configure_optimizer(decoder, torch.optim.AdamW, cases.S4_OPTIMIZER, {})
    names = {id(parameter): name for name, parameter in decoder.named_parameters()}
    golden["s4 optimizer"] = {
        names[id(parameter)]: [group["lr"], group["weight_decay"]]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return golden


def self_supervised() -> dict[str, Any]:
    """Frontends with a model of the SSL task, whose weights and config.yaml are written first."""
    golden = {}
    for name, (model_options, options) in cases.SSL.items():
        with tempfile.TemporaryDirectory() as directory:
            arguments = vars(SSLTask.get_parser().parse_args([])) | model_options | {"token_list": ["a", "b"]}
            model = SSLTask.build_model(argparse.Namespace(**arguments))
            torch.save(model.state_dict(), Path(directory, "ssl.pth"))
            Path(directory, "config.yaml").write_text(json.dumps(arguments), encoding="utf-8")
            conf = {"path_or_url": str(Path(directory, "ssl.pth"))}
            frontend = ESPnetSSLFrontend(frontend_conf=conf, **options).eval()
        part_cases.fill(frontend, keeps=("global_step",))
        outs = [frontend(cases.ssl_speech(i), torch.tensor([n]))[0][0] for i, n in enumerate(cases.SSL_SAMPLES)]
        losses = {name: list(tensor.shape) for name, tensor in model.losses.state_dict(prefix="losses.").items()}
        golden[f"ssl {name}"] = {
            "shapes": shapes(frontend),
            "losses": losses,
            "outputs": [summary(out) for out in outs],
        }
    return golden


if __name__ == "__main__":
    main()
