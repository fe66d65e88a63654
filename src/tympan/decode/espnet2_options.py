"""Options of ESPnet2's asr_inference besides those of the search: quantization, and what Tympan does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tympan.config.option import not_yet, option
from tympan.config.resolve import Conflict

WORK = "computation"
STREAMING_FILES = "ESPnet2's streaming decoding files"

STREAMING = {
    "streaming": False,
    "sim_chunk_length": 0,
    "disable_repetition_detection": False,
    "encoded_feat_length_limit": 0,
    "decoder_text_length_limit": 0,
}
"""Options of ESPnet2's asr_inference_streaming, and `streaming` of asr_inference, with their defaults."""

Layer = Literal["Linear", "LSTM", "GRU", "LSTMCell", "GRUCell"]


@dataclass(frozen=True, kw_only=True)
class QuantizationOptions:
    """Dynamic quantization on a CPU. The utterances are then decoded one by one."""

    quantize_asr_model: bool = option(
        False, help="quantize the weights of the recognizer; only on a CPU, and only with dtype float32", group=WORK
    )
    quantize_lm: bool = option(False, help="quantize the weights of the neural language model", group=WORK)
    quantize_modules: list[Layer] = option(["Linear"], help="layers to quantize, as classes of torch.nn", group=WORK)
    quantize_dtype: Literal["qint8", "float16"] = option(
        "qint8", help="data type of quantized weights: qint8 (8-bit integers) or float16", group=WORK
    )

    @property
    def is_quantized(self) -> bool:
        return self.quantize_asr_model or self.quantize_lm


@dataclass(frozen=True, kw_only=True)
class StreamingOptions:
    """Options of ESPnet2's asr_inference_streaming, so that `tympan stream` takes its decoding files."""

    sim_chunk_length: int = option(
        0, help="duration of a piece in samples; 0: the duration of --piece_s", least=0, group=STREAMING_FILES
    )
    streaming: bool = option(
        STREAMING["streaming"], help="accepted for compatibility with ESPnet2; has no effect", group=STREAMING_FILES
    )
    disable_repetition_detection: bool = option(
        STREAMING["disable_repetition_detection"],
        help="accepted for compatibility with ESPnet2; has no effect, because no search here looks for repetitions",
        group=STREAMING_FILES,
    )
    encoded_feat_length_limit: int = not_yet(0, instead="leave it out")
    decoder_text_length_limit: int = not_yet(0, instead="leave it out")


@dataclass(frozen=True, kw_only=True)
class UnsupportedOptions:
    """ESPnet2's options that are accepted at their defaults."""

    word_lm_train_config: str | None = not_yet(None, instead="use a language model over the same tokens")
    word_lm_file: str | None = not_yet(None, instead="use a language model over the same tokens")
    enh_s2t_task: bool = not_yet(False, instead="leave it out")
    streaming: bool = option(STREAMING["streaming"], help="not supported; whole recordings are decoded", group=WORK)
    sim_chunk_length: int = option(
        STREAMING["sim_chunk_length"], help="not supported; belongs to streaming", group=WORK
    )
    disable_repetition_detection: bool = option(
        STREAMING["disable_repetition_detection"], help="not supported; belongs to streaming", group=WORK
    )
    encoded_feat_length_limit: int = option(
        STREAMING["encoded_feat_length_limit"], help="not supported; belongs to streaming", group=WORK
    )
    decoder_text_length_limit: int = option(
        STREAMING["decoder_text_length_limit"], help="not supported; belongs to streaming", group=WORK
    )
    partial_ar: bool = not_yet(False, instead="leave it out")
    threshold_probability: float = not_yet(0.99, instead="it is an option of partial_ar")
    max_seq_len: int = not_yet(5, instead="it is an option of partial_ar")
    max_mask_parallel: int = not_yet(-1, instead="it is an option of partial_ar")


def espnet2_faults(values: Mapping[str, Any]) -> Iterator[Conflict]:
    """One message about streaming, and one about quantization that is not possible."""
    given = tuple(name for name, default in STREAMING.items() if values.get(name, default) != default)
    is_stream = "piece_s" in values  # `tympan stream` has these options
    if given and not is_stream:
        text = "belongs to ESPnet2's streaming decoder, which is not supported: to decode whole recordings, remove "
        text += f"{', '.join(given)}; `tympan stream` takes the file and recognizes audio in pieces with other searches"
        yield Conflict(given, text)
    if not (values.get("quantize_asr_model") or values.get("quantize_lm")):
        return
    name = "quantize_asr_model" if values.get("quantize_asr_model") else "quantize_lm"
    if values.get("ngpu") or values.get("device") not in (None, "cpu"):
        yield Conflict((name,), "is only possible on a CPU: give --ngpu 0, or use --dtype float16")
    elif values.get("dtype", "float32") != "float32":
        yield Conflict((name,), f"needs --dtype float32, found {values['dtype']}")
