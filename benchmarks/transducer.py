"""CPU time and peak memory of the transducer losses with the joint network, forward and backward.

usage: python benchmarks/transducer.py [--threads N] [--repeats N]

Sizes: batch 8, 125 frames, 15 tokens of 4,233 (AISHELL), and 40 tokens of 500. Beside them the loss of CTC and a
Transformer decoder (6 x 256, 2,048 units) on the same encoder output: the encoder is left out of both.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch

from tympan.models.attention import Text, attention_loss
from tympan.models.ctc import Ctc
from tympan.models.ctc_terms import ctc_terms
from tympan.models.decoder.prediction import RnnPrediction
from tympan.models.decoder.transformer import TransformerDecoder
from tympan.models.encoder.output import EncoderOutput
from tympan.models.joint_network import JointNetwork
from tympan.models.transducer_lattice import Lattice
from tympan.models.transducer_loss import transducer_loss
from tympan.models.transducer_pruned import SimpleJoint, likely_band, simple_loss

SIZES = {"aishell": (8, 125, 15, 4233), "bpe": (8, 125, 40, 500)}
KINDS = ("nothing", "full", "pruned", "ctc_attention")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=2, metavar=("SIZE", "KIND"), help="measure only this, in this process")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        print(measure(*options.one, repeats=options.repeats))
        return
    for size in SIZES:
        for kind in KINDS:
            line = [sys.executable, __file__, "--one", size, kind, "--threads", str(options.threads)]
            line += ["--repeats", str(options.repeats)]
            print(subprocess.run(line, check=True, capture_output=True, text=True).stdout.strip(), flush=True)


def measure(size: str, kind: str, *, repeats: int) -> str:
    """The smallest CPU time of the repeats, and the peak memory of the process."""
    batch, frames, tokens, vocab = SIZES[size]
    torch.manual_seed(0)
    text = torch.randint(1, vocab - 1, (batch, tokens))
    lengths, text_lengths = torch.full((batch,), frames), torch.full((batch,), tokens)
    out = torch.randn(batch, frames, 256, requires_grad=True)
    run = {"nothing": lambda *_: out.sum(), "full": transducer, "pruned": pruned, "ctc_attention": hybrid}[kind]
    parts = run if kind == "nothing" else run(vocab)
    times = []
    for _ in range(repeats):
        start = time.process_time()
        parts(out, lengths, text, text_lengths).backward()
        times.append(time.process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"{size:8} {kind:14} {min(times):6.2f} s of CPU time, peak {peak:6.0f} MB"


def transducer(vocab: int):  # type: ignore[no-untyped-def]
    prediction, joint = (
        RnnPrediction(vocab_size=vocab, hidden_size=256),
        JointNetwork(vocab_size=vocab, encoder_size=256, decoder_size=256),
    )

    def run(out, lengths, text, text_lengths, lattice=None):  # type: ignore[no-untyped-def]
        predicted = prediction(torch.nn.functional.pad(text, (1, 0)))
        return transducer_loss(
            joint, joint.project_frames(out), joint.project_predictions(predicted), lengths, text, text_lengths,
            blank_id=0, lattice=lattice,
        ).sum()  # fmt: skip

    run.prediction = prediction
    return run


def pruned(vocab: int):  # type: ignore[no-untyped-def]
    full, simple = transducer(vocab), SimpleJoint(encoder_size=256, decoder_size=256, vocab_size=vocab)

    def run(out, lengths, text, text_lengths):  # type: ignore[no-untyped-def]
        lattice = Lattice.of(lengths, text_lengths)
        predicted = full.prediction(torch.nn.functional.pad(text, (1, 0)))
        scores = simple(out, predicted, text, lattice=lattice, blank_id=0)
        band = likely_band(scores, lattice, prune_range=5)
        return 0.5 * simple_loss(scores, lattice).sum() + full(out, lengths, text, text_lengths, lattice=band)

    return run


def hybrid(vocab: int):  # type: ignore[no-untyped-def]
    decoder = TransformerDecoder(vocab_size=vocab, encoder_output_size=256)
    ctc = Ctc(vocab_size=vocab, encoder_output_size=256)

    def run(out, lengths, text, text_lengths):  # type: ignore[no-untyped-def]
        encoded, given = EncoderOutput(out, lengths), Text.cut(text, text_lengths)
        found = attention_loss(
            decoder, encoded, given, sos=vocab - 1, eos=vocab - 1, smoothing=0.1, is_length_normalized=False
        )
        terms, _ = ctc_terms(ctc, encoded, given, weight=0.3, inner_weight=0.0, blank_id=0, counter=None)
        return found.total + sum(term.total for term in terms)

    return run


if __name__ == "__main__":
    main()
