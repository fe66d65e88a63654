"""The `tympan` command: lists the commands and runs one of them."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import tympan
from tympan.errors import UserError
from tympan.runtime.entry import Main, run

__all__ = ["cli", "commands", "run"]

USAGE = """\
usage: tympan COMMAND [options]
       tympan COMMAND --help
       tympan --version
       tympan --completion bash|zsh"""

# Options are read from the command's own help, so that completion is never out of date.
COMPLETION = """\
_tympan() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}"
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{commands} --help --version --completion" -- "$word"))
  elif [[ "$word" == -* ]]; then
    local options="$(tympan "$command" --help 2>/dev/null | grep -oE -- '--[a-z0-9_]+' | sort -u)"
    COMPREPLY=($(compgen -W "$options" -- "$word"))
  fi
}}
complete -o default -F _tympan tympan"""


GROUPS = {
    "start here": ("demo", "recipe", "check_install"),
    "train": ("asr_train", "lm_train", "st_train", "train", "finetune", "average_model", "reproduce", "plan_batches"),
    "recognize and translate": ("transcribe", "stream", "asr_inference", "asr_align", "st_inference", "pack"),
    "score": ("score", "report", "st_score", "lm_calc_perplexity"),
    "data": ("manifest_data", "validate_data", "fix_data", "combine_data", "copy_data", "subset_data", "perturb_data"),
    "features": ("make_features", "compute_cmvn", "apply_cmvn"),
    "text and language models": ("tokenize_text", "spm_train", "make_dict", "ngram_train", "ngram_query"),
    "from other toolkits": (
        "convert_config",
        "launch",
        "aggregate_stats_dirs",
        "split_scps",
        "ascend_test",
        "ascend_report",
    ),
}
"""The commands as `tympan` lists them."""

INSTEAD = {
    "asr_inference_k2": "use 'asr_inference --search rescore', which rescores the n-best list of CTC",
    "asr_inference_maskctc": "use 'asr_inference --search mask_ctc'",
    "asr_inference_streaming": "use 'stream' for audio in pieces, or 'asr_inference' for whole recordings",
    "asr_transducer_inference": "use 'asr_inference'",
    "asr_transducer_train": "use 'asr_train --decoder transducer'",
    "hugging_face_export_vocabulary": "no token list is needed: leave out --token_list of 'asr_train'",
    "lightning_train": "use 'asr_train', which reads lightning_conf of a configuration file",
    "st_inference_streaming": "use 'st_inference', which takes whole recordings",
    "whisper_export_vocabulary": "no token list is needed: leave out --token_list of 'asr_train'",
}
"""What to use for commands of ESPnet2 that Tympan does not have."""


def cli(argv: Sequence[str] | None = None) -> int:
    """Entry point of the console script."""
    args = list(sys.argv[1:] if argv is None else argv)
    if not args or args[0] in ("--help", "-h"):
        return run(lambda rest: _show(_listing()))
    if args[0] == "--version":
        return run(lambda rest: _show(f"tympan {tympan.__version__}"))
    if args[0] == "--completion":
        return run(_completion, args[1:])
    return run(lambda rest: _command(args[0])(rest), args[1:])


def commands() -> dict[str, str]:
    """Every command with the first line of its module's docstring (nothing is imported)."""
    found = {}
    for name, path in _modules().items():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[name] = docstring.partition("\n")[0]
    return found


def _modules() -> dict[str, Path]:
    """The source file of each command."""
    paths = sorted(Path(__file__).parent.glob("*.py"))
    return {path.stem: path for path in paths if path.stem not in ("__init__", "main")}


def _show(text: str) -> int:
    print(text, flush=True)
    return 0


def _completion(shell: Sequence[str] | None) -> int:
    """Print what `eval "$(tympan --completion bash)"` needs."""
    script = COMPLETION.format(commands=" ".join(commands()))
    if list(shell or []) == ["bash"]:
        return _show(script)
    if list(shell or []) == ["zsh"]:
        return _show(f"autoload -U +X bashcompinit && bashcompinit\n{script}")
    raise UserError("--completion must be bash or zsh")


def _command(name: str) -> Main:
    known = _modules()
    if name in INSTEAD:
        raise UserError(f"ESPnet2's command '{name}' does not exist here: {INSTEAD[name]}")
    if name not in known:
        import difflib

        near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else " Run 'tympan' without arguments to list the commands."
        raise UserError(f"there is no command '{name}'.{hint}")
    main: Main = importlib.import_module(f"tympan.bin.{name}").main
    return main


def _listing() -> str:
    known = commands()
    width = max(map(len, known), default=0)
    lines = [USAGE]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:", *(f"  {name:<{width}}  {known[name]}" for name in names)]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(cli())
