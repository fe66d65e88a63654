"""The configuration files of a new recipe: templates filled with a plan that fits the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import yaml

from tympan.files import read_text
from tympan.recipe.options import NewOptions
from tympan.recipe.sizing import SIZES, Plan, choose_tokens, make_plan, spelled
from tympan.recipe.survey import Survey, unknown_words
from tympan.recipe.tokens import describe_missing, require_words
from tympan.runtime.memory import memory_bytes

if TYPE_CHECKING:
    from tympan.text.lexicon import Lexicon

CONF = Path(__file__).parent / "conf"
MAX_WORDS = 200_000
"""Largest word list that is made from --lm_text."""


@dataclass(frozen=True)
class Draft:
    """Files of `conf/` by name, and lines about what was chosen."""

    files: dict[str, str]
    notes: list[str]


def make_draft(options: NewOptions, train: Survey, dev: Survey) -> Draft:
    """The files for these data. UserError for a lexicon or an LM text that cannot be used."""
    from tympan.text.lexicon import read_lexicon

    words = _known_words(train, options.lm_text)
    lexicon = None if options.lexicon is None else read_lexicon(options.lexicon)
    notes = [] if lexicon is None else _training_coverage(lexicon, train, options)
    given = options.token_type if lexicon is None else "phn"
    tokens = choose_tokens(train, dev, given=given, known=words, nbpe=options.nbpe)
    plan = make_plan(train, tokens, memory_bytes=memory_bytes() if options.ngpu == 0 else None)
    templates = ("train_hybrid", "decode_hybrid") if plan.has_decoder else ("train_ctc", "decode_ctc")
    if tokens.kind == "phn":
        templates = ("train_ctc", "decode_lexicon")
    files = {
        "train.yaml": _filled(f"{templates[0]}.yaml", _training_values(plan, train, on_cpu=options.ngpu == 0)),
        "decode.yaml": (CONF / "new" / f"{templates[1]}.yaml").read_text(encoding="utf-8"),
        "recipe.yaml": _recipe_yaml(options, plan, train),
    }
    if plan.has_decoder:
        files["lm.yaml"] = (CONF / "new" / "lm.yaml").read_text(encoding="utf-8")
    if options.lexicon is not None:
        files["lexicon.txt"] = read_text(options.lexicon)
    elif tokens.spells:
        files["lexicon.txt"] = "\n".join([*LEXICON_HEAD, *spelled(words), ""])
    for path in [*CONF.glob("*.conf"), CONF / "specaug.yaml"]:
        files[path.name] = path.read_text(encoding="utf-8")
    listed = words if lexicon is None else lexicon.pronunciations
    if train.model_rate:
        notes = [f"recordings are resampled to {train.model_rate} Hz while they are read", *notes]
    return Draft(files, [_summary(plan), *notes, *_coverage(dev, listed, has_limit=tokens.kind == "phn")])


LEXICON_HEAD = (
    ";;; The words that can be recognized: those of the training text, spelled by their characters. Add words as you",
    ";;; like. A word of one character has a token of its own, because a letter sounds different from its name.",
)


def _known_words(train: Survey, lm_text: Sequence[Path]) -> list[str]:
    """The words of the training text, and those of --lm_text that the same characters spell."""
    counts: Counter[str] = Counter()
    for path in lm_text:
        counts.update(read_text(path, kind="file of --lm_text").split())
    others = [word for word, _ in counts.most_common(MAX_WORDS) if set(word) <= train.characters.keys()]
    return list(dict.fromkeys([*train.words, *others]))


def _training_values(plan: Plan, train: Survey, *, on_cpu: bool) -> Mapping[str, object]:
    size = plan.size
    window = round(0.025 * train.trained_rate)
    update_s = plan.batch_bins * plan.accum_grad / train.trained_rate
    limit = "the largest that fits the memory" if plan.accum_grad > 1 else f"the size for {_range(plan)} of data"
    return {
        "data": f"Made for {train.describe()}.",
        "name": size.name,
        "rate": train.trained_rate,
        "n_fft": 1 << (window - 1).bit_length(),
        "win_length": window,
        "hop_length": round(0.01 * train.trained_rate),
        "mels": size.mels,
        "resample": _resample(train),
        "freq_mask": size.mels // 3,
        "speeds": f"[{', '.join(map(str, size.speeds))}]",
        "blocks": size.blocks,
        "middle": size.blocks // 2,
        "dim": size.dim,
        "linear_units": size.linear_units,
        "decoder_blocks": size.decoder_blocks,
        "dropout": size.dropout,
        "batch_s": round(plan.batch_bins / train.trained_rate),
        "batch_reason": f"{limit}; {update_s:.0f} s per update" if on_cpu else f"the size for {_range(plan)} of data",
        "batch_bins": plan.batch_bins,
        "accum_grad": plan.accum_grad,
        "epochs": plan.epochs,
        "epochs_reason": _epochs_reason(plan),
        "amp": _amp() if on_cpu else "false     # mixed precision; true is faster on most accelerators",
        "max_lr": f"{size.max_lr:.4f}",
        "total_steps": plan.total_steps,
        "warmup": size.warmup,
        "warmup_percent": round(100 * size.warmup),
    }


def _resample(train: Survey) -> str:
    """The value of resample, with its reason."""
    if train.model_rate:
        return f"true    # the recordings have other sample rates or more than {train.model_rate} Hz"
    return "false    # true: convert recordings of other sample rates"


def _epochs_reason(plan: Plan) -> str:
    if plan.size is SIZES[0]:
        return f"{plan.size.epochs} for an hour of speech; more for less, because an epoch is then shorter"
    return f"for {_range(plan)} of data; fewer for more, because an epoch is then longer"


def _amp() -> str:
    """The value of use_amp for this CPU, with its reason."""
    from tympan.runtime.precision import trains_fast_in_bfloat16

    if trains_fast_in_bfloat16():
        return "true      # this CPU has bfloat16 instructions: 1.6 to 2.4 times as fast; on others use false"
    return "false     # mixed precision; slow here, because this CPU has no bfloat16 instructions that can be used"


def _range(plan: Plan) -> str:
    """`less than 3 h`, `3 to 30 h`, ..."""
    place = SIZES.index(plan.size)
    if place == 0:
        return f"less than {SIZES[0].hours:g} h"
    low = f"{SIZES[place - 1].hours:g}"
    return f"more than {low} h" if place == len(SIZES) - 1 else f"{low} to {plan.size.hours:g} h"


def _recipe_yaml(options: NewOptions, plan: Plan, train: Survey) -> str:
    """The options of `tympan recipe custom`, each with its reason."""

    def line(name: str, value: object, reason: str) -> str:
        style = None if isinstance(value, list) else False
        return (
            f"# {reason}\n{yaml.safe_dump({name: value}, default_flow_style=style, allow_unicode=True, width=10_000)}"
        )

    tests = [str(place.resolve()) for place in options.test_dir]
    lines = [
        "# Options that run.sh passes to `tympan recipe custom`. Options on its command line override them.\n",
        line("train_dir", str(options.train_dir.resolve()), train.describe()),
        line("dev_dir", str(options.dev_dir.resolve()), "to choose the epochs that are averaged"),
        line("test_dir", tests, "decoded and scored as well"),
        line("token_type", plan.tokens.kind, plan.tokens.reason),
    ]
    if plan.tokens.kind == "phn":
        lines.append(line("lexicon", "conf/lexicon.txt", "the words that can be recognized"))
    if plan.tokens.kind == "bpe":
        lines.append(line("nbpe", plan.tokens.nbpe, "number of subwords: more for more data"))
    reason = "text besides the training transcripts for the language models"
    lines += [
        line("lm_text", [str(path.resolve()) for path in options.lm_text], reason),
        line("lm_config", "conf/lm.yaml" if plan.has_decoder else "", "neural LM: used with an attention decoder"),
        line("feats_type", "raw", "the model computes features from audio, and training changes the speed on the fly"),
        line("n_average", 10, "up to 10 epochs are averaged; epochs far from the best one are left out"),
        line("ngpu", options.ngpu, "number of accelerators; 0: train on the CPU"),
    ]
    return "".join(lines)


def _filled(name: str, values: Mapping[str, object]) -> str:
    return Template((CONF / "new" / name).read_text(encoding="utf-8")).substitute(values)


def _summary(plan: Plan) -> str:
    size = plan.size
    decoder = f", a decoder of {size.decoder_blocks} blocks" if plan.has_decoder else ", CTC only"
    tokens = f"{plan.tokens.nbpe} subwords" if plan.tokens.kind == "bpe" else f"token_type {plan.tokens.kind}"
    return (
        f"chosen for {_range(plan)} of training data: Conformer of {size.blocks} blocks of {size.dim}{decoder}, "
        f"{plan.epochs} epochs; {tokens} ({plan.tokens.reason})"
    )


def _training_coverage(lexicon: Lexicon, train: Survey, options: NewOptions) -> list[str]:
    """A line about training words that the lexicon lacks. UserError if it lacks most of them."""
    assert options.lexicon is not None
    require_words(lexicon, train.sentences, options.train_dir / "text", options.lexicon)
    line = describe_missing(*lexicon.missing_words(train.sentences), options.lexicon)
    return [f"training text: {line}; add them to conf/lexicon.txt"] if line else []


def _coverage(dev: Survey, known: Sequence[str] | Mapping[str, object], *, has_limit: bool) -> list[str]:
    """How many dev words are unknown: they cannot be recognized where only listed words are possible."""
    if not dev.has_spaces:
        return []
    unknown = unknown_words(dev, dict.fromkeys(known))
    if not unknown:
        return []
    shown = ", ".join(word for word, _ in unknown.most_common(5))
    share = 100 * unknown.total() / dev.words.total()
    effect = "cannot be recognized" if has_limit else "are unknown to the language model"
    return [
        f"{unknown.total()} of {dev.words.total()} dev words ({share:.1f} %) {effect}, such as {shown}: "
        f"{'add them to conf/lexicon.txt' if has_limit else 'give more text with --lm_text'}"
    ]
