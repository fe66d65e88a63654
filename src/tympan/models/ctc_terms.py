"""The CTC terms of a model's loss: of the encoder's output, and of its intermediate layers (Lee and Watanabe 2021)."""

from __future__ import annotations

from collections.abc import Mapping

from tympan.models.attention import Text
from tympan.models.ctc import Ctc
from tympan.models.encoder.output import EncoderOutput
from tympan.models.error_rates import ErrorCounter
from tympan.models.loss import LossTerm, Stat, count_of


def ctc_terms(
    ctc: Ctc,
    encoded: EncoderOutput,
    text: Text,
    *,
    weight: float,
    inner_weight: float,
    inner_texts: Mapping[int, Text] | None = None,
    blank_id: int,
    counter: ErrorCounter | None,
) -> tuple[list[LossTerm], dict[str, Stat]]:
    """`inner_weight` is the share of the intermediate layers; those in `inner_texts` have a text of their own.

    With a counter, the character error rates too.
    """
    layers = encoded.intermediate if inner_weight > 0 else ()
    share = inner_weight if layers else 0.0
    outputs = [("ctc", encoded.out, 1.0 - share, text)]
    outputs += [
        (f"interctc_layer{number}", out, share / len(layers), (inner_texts or {}).get(number, text))
        for number, out in layers
    ]
    count = count_of(text.ids.size(0), encoded.out)
    terms: list[LossTerm] = []
    stats: dict[str, Stat] = {}
    for name, out, part, wanted in outputs:
        total = ctc(out, encoded.lengths, wanted.ids, wanted.lengths, blank_id=blank_id).sum()
        terms.append(LossTerm(total, count, weight * part))
        stats[f"loss_{name}"] = Stat(total.detach(), count)
        if counter is not None:
            best = ctc.argmax(out)
            stats[f"cer_{name}"] = counter.count_ctc(best, encoded.lengths, wanted.ids, wanted.lengths)
    return terms, stats
