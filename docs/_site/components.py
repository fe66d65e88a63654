"""Write the table of components in docs/migration.md from the registries: python docs/_site/components.py"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

from tympan.config.asr import AsrTrainConfig
from tympan.config.batches import BatchType
from tympan.config.choices import (
    ADAPTERS,
    ASR_MODELS,
    DECODERS,
    EFFECTS,
    ENCODERS,
    FRONTENDS,
    JOINT_NETWORKS,
    LM_MODELS,
    LMS,
    NORMALIZERS,
    OPTIMIZERS,
    POSTENCODERS,
    PREENCODERS,
    PREPROCESSORS,
    SCHEDULERS,
    SPECAUGS,
)
from tympan.config.option import options_of
from tympan.config.registry import Registry
from tympan.data.readers import NOT_YET, READERS
from tympan.decode.search import SEARCHES, find_search
from tympan.models.ctc import Ctc
from tympan.text.cleaner import CLEANERS
from tympan.text.phonemes import PACKAGES
from tympan.text.tokenizer import TOKEN_TYPES

PAGE = Path(__file__).parents[1] / "migration.md"
BEGIN, END = "<!-- components: made by docs/_site/components.py -->\n", "<!-- components: end -->\n"

REGISTRIES: dict[str, Registry] = {
    "frontend": FRONTENDS,
    "specaug": SPECAUGS,
    "normalize": NORMALIZERS,
    "preencoder": PREENCODERS,
    "encoder": ENCODERS,
    "postencoder": POSTENCODERS,
    "decoder": DECODERS,
    "joint_net": JOINT_NETWORKS,
    "model": ASR_MODELS,
    "preprocessor": PREPROCESSORS,
    "lm": LMS,
    "model (lm_train)": LM_MODELS,
    "adapter": ADAPTERS,
    "effect of data_aug_effects": EFFECTS,
    "optim": OPTIMIZERS,
    "scheduler": SCHEDULERS,
}
OTHER_G2P = "pyopenjtalk, espeak_ng, g2pk, korean_jaso, g2p_is and their variants"

NOTES = {
    ("frontend", "s3prl"): "without the package s3prl ([pretrained encoders](pretrained.md))",
    ("frontend", "huggingface"): "extra `hf`",
    ("preencoder", "linear"): "`input_size` may be left out",
    ("encoder", "lightweight_conv"): "ESPnet1's",
    ("encoder", "lightweight_conv2d"): "ESPnet1's",
    ("encoder", "dynamic_conv"): "ESPnet1's",
    ("encoder", "dynamic_conv2d"): "ESPnet1's",
    ("encoder", "contextual_block_conformer"): "also in pieces (`tympan stream`)",
    ("encoder", "contextual_block_transformer"): "also in pieces (`tympan stream`)",
    ("encoder", "transformer_multispkr"): "for `model: pit_espnet`",
    ("model", "pit_espnet"): "several speakers at the same time ([models](models.md))",
    ("preprocessor", "multi"): "for `model: pit_espnet`; `speaker_change_symbol` not with Whisper's tokens",
    ("decoder", "mlm"): "for `model: maskctc`",
    ("decoder", "transducer"): "[transducers](transducers.md)",
    ("decoder", "stateless"): "[transducers](transducers.md)",
    ("joint_net", "joint"): "ESPnet2 has one joint network, without a name; `joint_net_conf` sets it",
    ("model", "transducer"): "`espnet` with more keys",
    ("model", "maskctc"): "decoded by `--search mask_ctc`, in ESPnet2 by `asr_inference_maskctc`",
    ("ctc_type", "builtin2"): "the same loss as `builtin`",
    ("ctc_type", "gtnctc"): "the same loss as `builtin`",
    ("ctc_type", "brctc"): "in plain torch",
    ("batch_type", "bucket"): "Tympan's own",
    ("iterator_type", "none"): "for dry runs",
    ("scheduler", "deepspeedwarmuplr"): "WarmupLR and WarmupDecayLR of DeepSpeed",
    ("scheduler", "deepspeedwarmupcosinelr"): "WarmupCosineLR of DeepSpeed",
    ("search", "joint"): "ESPnet2's beam search",
    ("search", "time_sync"): "`time_sync: true`",
    ("search", "hugging_face"): "`hugging_face_decoder: true`",
    ("search", "mask_ctc"): "`asr_inference_maskctc`",
    ("search", "transducer_greedy"): "`beam_size: 1` of a transducer, and `search_type: mbg`",
    ("adapter", "lora"): "[how to](how-to.md#train-adapters-lora); `use_lora` and `lora_conf` are read too",
    ("adapter", "houlsby"): "[fine-tuning](finetuning.md#bottleneck-adapters)",
}
for _kind in ("default", "tsd", "alsd", "nsc", "maes"):
    NOTES["search", f"transducer_{_kind}"] = f"`search_type: {_kind}` of `transducer_conf`"


def rows() -> Iterator[tuple[str, str, bool, str]]:
    """(kind, name, whether it is supported, note)."""
    for kind, registry in REGISTRIES.items():
        yield from _listed(kind, registry.names(), registry.unsupported())
    yield from _listed("ctc_type", get_args(get_type_hints(Ctc.__init__)["ctc_type"]), {})
    options = options_of(AsrTrainConfig)
    yield from _listed("batch_type", get_args(BatchType), options["batch_type"].extra.not_yet_values)
    iterators = options["iterator_type"]
    yield from _listed("iterator_type", get_args(iterators.type), iterators.extra.not_yet_values)
    yield from _listed("data type", [*READERS, "rand_float", "rand_int_LOW_HIGH"], NOT_YET)
    yield from _listed("token_type", TOKEN_TYPES, {})
    yield from _listed("cleaner", CLEANERS, {"vietnamese, korean_cleaner": "clean the texts before"})
    yield from _listed("g2p", [*PACKAGES, "a lexicon file"], {OTHER_G2P: "use a lexicon file"})
    for name in SEARCHES.names():
        yield "search", name, True, NOTES.get(("search", name), find_search(name).help)


def _listed(kind: str, names: object, unsupported: object) -> Iterator[tuple[str, str, bool, str]]:
    for name in names:  # type: ignore[attr-defined]
        yield kind, name, True, NOTES.get((kind, name), "")
    for name, instead in dict(unsupported).items():  # type: ignore[call-overload]
        yield kind, name, False, instead


def table() -> str:
    lines = ["| kind | component | supported | note |", "|---|---|---|---|"]
    for kind, name, is_supported, note in rows():
        lines.append(f"| {kind} | `{name}` | {'yes' if is_supported else 'no'} | {note} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the current table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
