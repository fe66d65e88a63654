"""Average the models of several epochs: the best by a criterion, the last, or given files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tympan.config import argument, option, parse_args
from tympan.errors import UserError


@dataclass(frozen=True)
class Options:
    exp_dir: Path = argument(help="directory of a training run")
    last: int | None = option(None, help="average the last N saved epochs", least=1)
    best: int | None = option(None, help="average the N best epochs by --criterion", least=1)
    criterion: str = option("valid.acc.max", help="criterion for --best, as PHASE.NAME.min|max")
    models: list[Path] = option([], help="average these files instead; may be repeated")
    output: Path | None = option(None, help="output file; null: a descriptive name in exp_dir")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan average_model", description=__doc__)
    if (options.last is not None) + (options.best is not None) + bool(options.models) != 1:
        raise UserError("give exactly one of --last N, --best N and --models FILE")
    from tympan.training.nbest import average, save_weights

    paths, name = _chosen(options)
    target = options.output or options.exp_dir / name
    save_weights(target, average(paths))
    print(f"{target}: the mean of {', '.join(path.name for path in paths)}")
    return 0


def _chosen(options: Options) -> tuple[list[Path], str]:
    if options.models:
        return options.models, f"ave_{len(options.models)}models.pth"
    if options.last is not None:
        names = (path.stem.removesuffix("epoch") for path in options.exp_dir.glob("*epoch.pth"))
        numbers = sorted(int(name) for name in names if name.isdecimal())
        chosen = numbers[-options.last :]
        name = f"ave_last{len(chosen)}.pth"
    else:
        chosen = _best(options)
        name = f"{options.criterion.rpartition('.')[0]}.ave_{len(chosen)}best.pth"
    if not chosen:
        raise UserError(f"{options.exp_dir} contains no epoch models (Nepoch.pth)")
    paths = [options.exp_dir / f"{epoch}epoch.pth" for epoch in chosen]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise UserError(
            f"{options.exp_dir}: {', '.join(missing)} were deleted during training; use a smaller --best, or train "
            f"with a larger --keep_nbest_models"
        )
    return paths, name


def _best(options: Options) -> list[int]:
    from tympan.training.checkpoint import read_reporter

    parts = options.criterion.split(".")
    if len(parts) != 3 or parts[2] not in ("min", "max"):
        raise UserError(f"--criterion must be PHASE.NAME.min|max, such as valid.acc.max, found '{options.criterion}'")
    ranking = read_reporter(options.exp_dir).ranking(*parts)
    if not ranking:
        raise UserError(f"{options.exp_dir}: no epoch has a value of {parts[0]}.{parts[1]}")
    return [epoch for epoch, _ in ranking[: options.best]]


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
