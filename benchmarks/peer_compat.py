"""Show that ESPnet2 itself rejects the files that compat_expected.txt lists so. Runs in ESPnet's environment.

usage: PYTHONPATH=STAND_IN ENV/bin/python benchmarks/peer_compat.py ESPNET [PATH...]

ENV is made by `peer_espnet.py --setup_only`, which puts the stand-in for torchaudio into ENV/stand_in. ESPNET is a
checkout of ESPnet's repository, from which only the configurations are read. Each file is parsed by ESPnet2's own
parser, its model is built, and one loss is computed from noise. Prints the step that fails and its error, and exits
with 1 if a file passes all of them. s3prl's encoders are replaced by a stand-in, because they need a download.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import torch
from espnet2.asr.frontend import fused
from espnet2.asr.frontend.abs_frontend import AbsFrontend
from espnet2.iterators.sequence_iter_factory import SequenceIterFactory
from espnet2.tasks.asr import ASRTask, frontend_choices

EXPECTED = Path(__file__).with_name("compat_expected.txt")
TOKENS = ["<blank>", "<unk>", *"abcdefghijklmnopqrstuvwxy", "<space>", "<sos/eos>"]


class Upstream(AbsFrontend):
    """Frames of 20 ms with as many values as the encoders of s3prl give."""

    hop_length = 320

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.upstream = torch.nn.Linear(320, 768 if "base" in str(kwargs) else 1024)

    def output_size(self) -> int:
        return self.upstream.out_features

    def forward(self, speech: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = speech.size(1) // 320
        return self.upstream(speech[:, : count * 320].view(len(speech), count, 320)), lengths // 320


def failure(path: Path) -> str | None:
    """The step that fails and its error; None if ESPnet2 accepts the file."""
    arguments = ["--config", str(path), "--token_list", "tokens", "--output_dir", "none"]
    said = io.StringIO()
    step = "parser"
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args = ASRTask.get_parser().parse_args(arguments)
            args.token_list = TOKENS
            args.normalize = None if args.normalize == "global_mvn" else args.normalize
            step = "model"
            model = ASRTask.build_model(args)
            step = "loss"
            speech, text = torch.randn(2, 16000), torch.randint(2, 20, (2, 4))
            model(speech, torch.tensor([16000, 15000]), text, torch.tensor([4, 3]))
            step = "iterations"
            few = SequenceIterFactory([], [("utterance",)] * 4, num_iters_per_epoch=args.num_iters_per_epoch)
            if len(few.build_iter(1)) == 0:
                raise ValueError(f"num_iters_per_epoch is {args.num_iters_per_epoch}: an epoch has no batch")
    except SystemExit:
        return f"{step}: {said.getvalue().strip().splitlines()[-1]}"
    except Exception as error:
        return f"{step}: {type(error).__name__}: {(str(error) or 'no text').splitlines()[0]}"
    return None


def main() -> int:
    fused.S3prlFrontend = frontend_choices.classes["s3prl"] = Upstream
    root, paths = Path(sys.argv[1]), sys.argv[2:]
    if not paths:
        lines = EXPECTED.read_text(encoding="utf-8").splitlines()
        paths = [line.split()[1] for line in lines if " # " in line]
    found = {path: failure(root / path) for path in paths}
    for path, error in found.items():
        print(f"{path}: {error or 'accepted'}")
    return int(None in found.values())


if __name__ == "__main__":
    sys.exit(main())
