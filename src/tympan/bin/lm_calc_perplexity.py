"""Compute the perplexity of a text under a neural language model, in total and per utterance."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tympan.config import load_training_config, option, parse_args
from tympan.decode.options import LOG_LEVELS, DecodeDeviceOptions, ImportOptions
from tympan.errors import UserError

if TYPE_CHECKING:
    from tympan.data.dataset import UtteranceDataset
    from tympan.data.readers import Value
    from tympan.models.lm.model import LanguageModel
    from tympan.models.lm.perplexity import TextScore
    from tympan.text.codec import TextCodec


@dataclass(frozen=True, kw_only=True)
class Options(DecodeDeviceOptions, ImportOptions):
    output_dir: Path = option(help="output directory for ppl, base, utt2ppl and utt2ntokens")
    data_path_and_name_and_type: list[tuple[str, str, str]] = option(
        help="text to score as PATH,text,TYPE, such as data/dev/text,text,text"
    )
    train_config: Path = option(help="config.yaml of the language model (Tympan or ESPnet2)")
    model_file: Path = option(help="weights of the language model (.pth or .safetensors)")
    key_file: Path | None = option(None, help="score only the utterances listed in this file")
    batch_size: int = option(32, help="number of utterances to score at a time; does not change the result", least=1)
    log_base: float | None = option(
        None,
        help="logarithm base, written to the output file `base`; perplexity does not depend on it; null: e",
        above=0,
        most=1e9,
    )
    dtype: Literal["float32", "float64"] = option("float32", help="data type of the computation")
    seed: int = option(0, help="accepted for compatibility with ESPnet2; has no effect", least=0, most=2**32 - 1)
    num_workers: int = option(1, help="accepted for compatibility with ESPnet2; has no effect", least=0)
    log_level: LOG_LEVELS = option("INFO", help="logging level")


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(Options, argv, prog="tympan lm_calc_perplexity", description=__doc__)

    import torch

    from tympan.models.lm.perplexity import TextScore, score_texts
    from tympan.runtime.device import choose_kind, device_of
    from tympan.runtime.log import setup_logging

    setup_logging(options.log_level)
    _check(options)
    device = device_of(choose_kind(ngpu=options.ngpu, device=options.device), local_rank=0)
    model, codec, dataset = _load(options)
    model.to(device=device, dtype=getattr(torch, options.dtype)).eval()
    scores: dict[str, TextScore] = {}
    unknown = 0
    unk_id = codec.vocabulary.unk_id
    scored = score_texts(model, dataset, batch_size=options.batch_size, device=device, unk_id=unk_id)
    for key, score, outside in scored:
        scores[key] = score
        unknown += outside
    total = TextScore(sum(score.nll for score in scores.values()), sum(score.tokens for score in scores.values()))
    _write(options, total, scores)
    if unknown:
        logging.warning(f"{unknown:,} of {total.tokens:,} tokens are not in the vocabulary and are scored as <unk>")
    print(
        f"perplexity {total.perplexity:.4f} ({len(scores):,} utterances, {total.tokens:,} tokens including "
        "end-of-sentence)"
    )
    return 0


def _check(options: Options) -> None:
    if options.log_base is not None and (options.log_base <= 0 or options.log_base == 1):
        raise UserError(f"--log_base: must be positive and not 1, found {options.log_base}")
    names = [name for _, name, _ in options.data_path_and_name_and_type]
    if names != ["text"]:
        raise UserError(f"--data_path_and_name_and_type: one entry named text is expected, found {', '.join(names)}")


def _load(options: Options) -> tuple[LanguageModel, TextCodec, UtteranceDataset]:
    from dataclasses import replace

    from tympan.config.lm import LmTrainConfig
    from tympan.data.dataset import UtteranceDataset
    from tympan.models.build import build_lm
    from tympan.models.weights import fill_weights, load_weights
    from tympan.text.codec import build_codec

    config = load_training_config(LmTrainConfig, options.train_config, allow_import=options.allow_import)
    codec = build_codec(config.text, source=f"{options.train_config}: token_list")
    model = build_lm(replace(config, token_list=list(codec.vocabulary.tokens)))
    fill_weights(model, load_weights(options.model_file), options.model_file, options.train_config)
    dataset = UtteranceDataset(options.data_path_and_name_and_type, keys=options.key_file)
    if config.use_preprocessor:
        dataset.preprocess = partial(_encode_text, codec)
    return model, codec, dataset


def _encode_text(codec: TextCodec, _utterance: str, values: Mapping[str, Value], _epoch: int) -> dict[str, Value]:
    return {name: codec(value) if isinstance(value, str) else value for name, value in values.items()}


def _write(options: Options, total: TextScore, scores: dict[str, TextScore]) -> None:
    from tympan.runtime.atomic import atomic_write

    base = math.e if options.log_base is None else options.log_base
    files = {
        "utt2ppl": (f"{key} {score.perplexity}\n" for key, score in scores.items()),
        "utt2ntokens": (f"{key} {score.tokens}\n" for key, score in scores.items()),
        "base": [f"{base}\n"],
        "ppl": [f"{total.perplexity}\n"],
    }
    for name, lines in files.items():
        with atomic_write(options.output_dir / name) as stream:
            stream.writelines(lines)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
