"""Translate the utterances of a data directory (ESPnet2's st_inference)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tympan.bin.asr_inference import run_inference
from tympan.config import option, parse_args
from tympan.config.option import not_yet, options_of
from tympan.config.st import StTrainConfig
from tympan.decode.options import MODEL, SEARCH, ImportOptions, InferenceOptions, SpeechDataOptions, WorkOptions
from tympan.decode.settings import RULES

_SOURCE = "it is an option of the multi-decoder; leave it out"
_WORD_LM = "use a language model over the same tokens"
_LEAVE = "leave it out"


@dataclass(frozen=True, kw_only=True)
class Options(WorkOptions, ImportOptions, SpeechDataOptions):
    st_train_config: Path | None = option(
        None, help="config.yaml of the translation model (Tympan or ESPnet2); null: next to st_model_file", group=MODEL
    )
    st_model_file: Path | None = option(
        None, help="weights of the translation model (.pth or .safetensors)", group=MODEL
    )
    lm_train_config: Path | None = option(
        None, help="config.yaml of a language model of the target language; null: next to lm_file", group=MODEL
    )
    lm_file: Path | None = option(None, help="weights of the language model", group=MODEL)
    ngram_file: Path | None = option(
        None, help="n-gram language model of target tokens: an ARPA file, or a binary file of ngram_train", group=MODEL
    )
    bpemodel: Path | None = option(
        None, help="sentencepiece model to use instead of the one in the config", group=MODEL
    )
    ctc_weight: float = option(
        StTrainConfig.DECODE_DEFAULTS["ctc_weight"],
        help="weight of the target-language CTC (models with st_mtlalpha above 0); the decoder gets 1 - ctc_weight",
        group=SEARCH,
        least=0,
        most=1,
    )
    word_lm_train_config: str | None = not_yet(None, instead=_WORD_LM)
    word_lm_file: str | None = not_yet(None, instead=_WORD_LM)
    src_lm_train_config: str | None = not_yet(None, instead=_SOURCE)
    src_lm_file: str | None = not_yet(None, instead=_SOURCE)
    src_word_lm_train_config: str | None = not_yet(None, instead=_SOURCE)
    src_word_lm_file: str | None = not_yet(None, instead=_SOURCE)
    src_ngram_file: str | None = not_yet(None, instead=_SOURCE)
    src_token_type: str | None = not_yet(None, instead=_SOURCE)
    src_bpemodel: str | None = not_yet(None, instead=_SOURCE)
    asr_nbest: int = not_yet(1, instead=_SOURCE)
    asr_beam_size: int = not_yet(20, instead=_SOURCE)
    asr_penalty: float = not_yet(0.0, instead=_SOURCE)
    asr_maxlenratio: float = not_yet(0.0, instead=_SOURCE)
    asr_minlenratio: float = not_yet(0.0, instead=_SOURCE)
    asr_lm_weight: float = not_yet(1.0, instead=_SOURCE)
    asr_ngram_weight: float = not_yet(0.9, instead=_SOURCE)
    asr_ctc_weight: float = not_yet(0.3, instead=_SOURCE)
    ctc_greedy: bool = not_yet(False, instead="use --search ctc_greedy")
    enh_s2t_task: bool = not_yet(False, instead=_LEAVE)
    transducer_conf: dict[str, Any] | None = not_yet(None, instead="it is an option of transducers; leave it out")
    hugging_face_decoder: bool = not_yet(False, instead=_LEAVE)
    hugging_face_decoder_max_length: int = not_yet(256, instead=_LEAVE)


def main(argv: Sequence[str] | None = None) -> int:
    return run_inference(list(sys.argv[1:] if argv is None else argv), _parse, name="st_inference")


def _parse(arguments: Sequence[str]) -> InferenceOptions:
    """The options under the names that `tympan.decode` uses."""
    parse = partial(parse_args, Options, prog="tympan st_inference", description=__doc__, rules=RULES)
    options = parse(arguments)
    shared = {name: getattr(options, name) for name in options_of(InferenceOptions) if name in options_of(Options)}
    return InferenceOptions(**shared, asr_train_config=options.st_train_config, asr_model_file=options.st_model_file)


if __name__ == "__main__":
    from tympan.bin.main import run

    raise SystemExit(run(main))
