"""Show the batches that a training run would use: their number, lengths and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.config import option, parse_args
from tympan.config.batches import BatchOptions
from tympan.config.text import TokenType

if TYPE_CHECKING:
    from tympan.data.shapes import Shapes

DATA = "data"


@dataclass(frozen=True, kw_only=True)
class Options(BatchOptions):
    shape_file: list[Path] = option(
        [],
        help="shape file with the length of every utterance; repeat it for speech_shape and text_shape, in this order",
        group=DATA,
    )
    data_path_and_name_and_type: list[tuple[str, str, str]] = option(
        [], help="data to measure if there are no shape files, as PATH,NAME,TYPE; may be repeated", group=DATA
    )
    token_list: Path | None = option(None, help="token list, to measure texts in tokens", group=DATA)
    token_type: TokenType = option("char", help="token type", group=DATA)
    bpemodel: Path | None = option(None, help="sentencepiece model, for token_type bpe", group=DATA)
    g2p: str | None = option(
        None, help="for token_type phn: a grapheme-to-phoneme package, or a pronunciation lexicon file", group=DATA
    )
    fs: int | None = option(
        None,
        help="length units per second in the first shape file: the sample rate, or 100 for features; null: "
        "durations are shown only if the data is audio",
        least=1,
        most=1_000_000,
    )
    nj: int = option(1, help="number of processes that measure lengths", least=1)
    show: int = option(0, help="number of batches to list", least=0)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan plan_batches", description=__doc__)

    from tympan.data.batch_plan import describe_plan, list_batches, plan_batches
    from tympan.errors import UserError

    if not options.shape_file and not options.data_path_and_name_and_type:
        raise UserError("give --shape_file FILE, or --data_path_and_name_and_type PATH,NAME,TYPE to measure lengths")
    shapes, rate = _shapes(options)
    plan = plan_batches(shapes, options)
    rate = options.fs or rate
    print(describe_plan(plan, rate=rate))
    if options.show:
        print(list_batches(plan, options.show, rate=rate))
    return 0


def _shapes(options: Options) -> tuple[list[Shapes], int | None]:
    """Lengths, and the sample rate of the recordings if it is known."""
    from tympan.config.text import TextConfig
    from tympan.data.dataset import UtteranceDataset
    from tympan.data.lengths import measure_shapes
    from tympan.data.preprocess import Preprocessor
    from tympan.data.shapes import read_shapes
    from tympan.data.table import Table
    from tympan.text.codec import build_codec

    if options.shape_file:
        ids = Table(options.shape_file[0]).ids
        return [read_shapes(path, ids) for path in options.shape_file], None
    preprocess = None
    if options.token_list is not None:
        text = TextConfig(
            token_list=str(options.token_list),
            token_type=options.token_type,
            bpemodel=None if options.bpemodel is None else str(options.bpemodel),
            g2p=options.g2p,
        )
        preprocess = Preprocessor(texts={"text": build_codec(text)})
    dataset = UtteranceDataset(options.data_path_and_name_and_type, preprocess=preprocess)
    return measure_shapes(dataset, dataset.names, nj=options.nj), dataset.sample_rate


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
