"""Score translations with BLEU and chrF (needs sacrebleu: pip install 'tympan[st]')."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tympan.config import argument, option, parse_args


@dataclass(frozen=True)
class Options:
    ref: Path = argument(help="references: a Kaldi text file, UTTERANCE-ID and translation per line")
    hyp: Path = argument(help="hypotheses: a Kaldi text file, or the output directory of st_inference")
    more_refs: list[Path] = option(
        [], help="additional reference file, for several references per utterance; may be repeated"
    )
    lowercase: bool = option(False, help="ignore case")
    tokenize: str = option("13a", help="sacrebleu's tokenizer for BLEU: 13a, zh, ja-mecab, ko-mecab, char, intl, none")
    output: Path | None = option(None, help="output JSON file with the total score and the score of every utterance")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan st_score", description=__doc__)
    from tympan.data.kaldi_dir import read_table
    from tympan.runtime.atomic import atomic_write
    from tympan.score.translation import score_translation

    hyp = options.hyp / "text" if options.hyp.is_dir() else options.hyp
    references: dict[str, list[str]] = {}
    for path in (options.ref, *options.more_refs):
        for name, text in read_table(path, allow_empty=True).items():
            references.setdefault(name, []).append(text)
    hypotheses = dict(read_table(hyp, allow_empty=True).items())
    score = score_translation(references, hypotheses, lowercase=options.lowercase, tokenize=options.tokenize)
    print(score)
    if score.missing:
        print(f"{len(score.missing)} of {len(references)} utterances have no hypothesis and count as empty")
    if options.output is not None:
        with atomic_write(options.output) as stream:
            json.dump(asdict(score), stream, ensure_ascii=False, indent=1)
            stream.write("\n")
    return 0


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
