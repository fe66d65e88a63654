"""Show the batches that a training would use: how many, how long, how much padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tympan.config import option, parse_args

if TYPE_CHECKING:
    from tympan.data.shapes import Shapes

DATA = "data"


@dataclass(frozen=True)
class Options:
    shape_file: list[Path] = option([], help="lengths: speech_shape, then text_shape; may be repeated", group=DATA)
    data_path_and_name_and_type: list[tuple[str, str, str]] = option(
        [], help="PATH,NAME,TYPE to measure where there are no shape files; may be repeated", group=DATA
    )
    token_list: Path | None = option(None, help="tokens, to measure a text", group=DATA)
    token_type: Literal["char", "word", "bpe", "phn"] = option("char", help="kind of tokens", group=DATA)
    bpemodel: Path | None = option(None, help="sentencepiece model, for bpe", group=DATA)
    g2p: str | None = option(None, help="for phn: a grapheme-to-phoneme package, or the file of a lexicon", group=DATA)
    fs: int | None = option(None, help="steps of the first shape to a second: the sample rate, or 100 for features")
    nj: int = option(1, help="processes that measure lengths")
    batch_type: Literal["unsorted", "sorted", "folded", "length", "numel", "bucket", "seq", "bin", "frame"] = option(
        "folded", help="how to cut batches; seq, bin and frame are ESPnet1's words for folded, numel and length"
    )
    batch_size: int = option(20, help="utterances to a batch, for unsorted, sorted and folded")
    batch_bins: int = option(1_000_000, help="elements to a batch, for length, numel and bucket")
    fold_length: list[int] = option([], help="lengths at which folded cuts a batch, one a shape file")
    min_batch_size: int = option(1, help="fewest utterances to a batch")
    max_batch_size: int | None = option(None, help="most utterances to a batch")
    sort_in_batch: Literal["descending", "ascending"] = option("descending", help="order within a batch")
    sort_batch: Literal["descending", "ascending"] = option("descending", help="order of batches before shuffling")
    drop_last_iter: bool = option(False, help="leave out the last, smaller batch")
    num_buckets: int = option(8, help="shapes of batch type bucket")
    show: int = option(0, help="list this many batches, too")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan plan_batches", description=__doc__)

    from tympan.data.batches import BatchOptions, plan_batches
    from tympan.data.plan_report import describe_plan, list_batches
    from tympan.errors import UserError

    if not options.shape_file and not options.data_path_and_name_and_type:
        raise UserError("give --shape_file FILE, or --data_path_and_name_and_type PATH,NAME,TYPE to measure lengths")
    shapes, rate = _shapes(options)
    plan = plan_batches(
        shapes,
        BatchOptions(
            batch_type=options.batch_type,
            batch_size=options.batch_size,
            batch_bins=options.batch_bins,
            fold_length=tuple(options.fold_length),
            min_batch_size=options.min_batch_size,
            max_batch_size=options.max_batch_size,
            sort_in_batch=options.sort_in_batch,
            sort_batch=options.sort_batch,
            drop_last_iter=options.drop_last_iter,
            num_buckets=options.num_buckets,
        ),
    )
    rate = options.fs or rate
    print(describe_plan(plan, rate=rate))
    if options.show:
        print(list_batches(plan, options.show, rate=rate))
    return 0


def _shapes(options: Options) -> tuple[list[Shapes], int | None]:
    """Lengths, and the rate of the recordings where they are known."""
    from tympan.data.dataset import UtteranceDataset
    from tympan.data.lengths import measure_shapes
    from tympan.data.preprocess import Preprocessor, TextPreprocessor
    from tympan.data.shapes import read_shapes
    from tympan.data.table import Table

    if options.shape_file:
        ids = Table(options.shape_file[0]).ids
        return [read_shapes(path, ids) for path in options.shape_file], None
    text = None
    if options.token_list is not None:
        text = TextPreprocessor(
            options.token_list, token_type=options.token_type, bpemodel=options.bpemodel, g2p=options.g2p
        )
    dataset = UtteranceDataset(
        options.data_path_and_name_and_type, preprocess=Preprocessor(text=text) if text else None
    )
    return measure_shapes(dataset, dataset.names, nj=options.nj), dataset.sample_rate


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
