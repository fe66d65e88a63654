"""`preprocessor_conf.data_aug_effects`: a weighted list of effects, checked before anything is built.

An entry is [weight, name, options] or [weight, [entry, entry, ...]]: one of the inner entries is chosen at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tympan.config.choices import EFFECTS
from tympan.config.mistakes import Mistakes
from tympan.config.range import Range
from tympan.config.registry import complete
from tympan.config.resolve import Conflict
from tympan.config.signature import REQUIRED
from tympan.errors import UserError

_WEIGHT = Range(above=0, most=1_000_000)
_EXAMPLE = '[0.3, "speed_perturb", {"factor": 0.9}]'


@dataclass(frozen=True)
class EffectEntry:
    """One effect with its weight and complete options."""

    weight: float
    name: str
    options: Mapping[str, Any]


@dataclass(frozen=True)
class EffectGroup:
    """Effects of which one is chosen at random."""

    weight: float
    members: tuple[EffectEntry, ...]


def read_effects(entries: Sequence[object], num: tuple[int, int]) -> tuple[EffectGroup, ...]:
    """Parse the list into groups; one UserError reports all mistakes. `num` is `data_aug_num`."""
    mistakes = Mistakes()
    groups = []
    for entry in entries:
        try:
            groups.append(_group(entry))
        except UserError as error:
            mistakes.add("", f"data_aug_effects: {error}")
    low, high = num
    if not 0 <= low <= high <= len(entries) or high < 1:
        mistakes.add(
            "",
            f"data_aug_num {list(num)}: must be [LOW, HIGH] with LOW <= HIGH and 1 <= HIGH <= {len(entries)}, the "
            "number of effects",
        )
    mistakes.check()
    return tuple(groups)


def check_effects(values: Mapping[str, Any]) -> Iterator[Conflict]:
    """Mistakes in the effects of a training configuration."""
    conf = values["preprocessor_conf"]
    effects = conf.get("data_aug_effects")
    if effects:
        try:
            read_effects(effects, tuple(conf.get("data_aug_num", (1, 1))))
        except UserError as error:
            yield Conflict(("preprocessor_conf", "preprocessor"), str(error))


def _group(entry: object) -> EffectGroup:
    weight, first, rest = _parts(entry)
    if isinstance(first, (list, tuple)):
        if not first or rest:
            raise UserError(f"expected a group such as [0.3, [{_EXAMPLE}]], found {entry}")
        return EffectGroup(weight, tuple(_effect(*_parts(member)) for member in first))
    return EffectGroup(weight, (_effect(weight, first, rest),))


def _parts(entry: object) -> tuple[float, object, list[object]]:
    if not isinstance(entry, (list, tuple)) or not 2 <= len(entry) <= 3:
        raise UserError(f"expected an entry such as {_EXAMPLE}, found {entry}")
    weight = entry[0]
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise UserError(f"expected an entry such as {_EXAMPLE}, found {entry}")
    if fault := _WEIGHT.fault(weight):
        raise UserError(f"the weight of an entry {fault}: {entry[1]}")
    return float(weight), entry[1], list(entry[2:])


def _effect(weight: float, name: object, rest: Sequence[object]) -> EffectEntry:
    options = rest[0] if rest else {}
    if not isinstance(name, str):
        raise UserError(f"expected an entry such as {_EXAMPLE}, found {name}")
    if not isinstance(options, Mapping):
        raise UserError(f"the options of {name} must be a mapping as in {_EXAMPLE}, found {options}")
    parameters = EFFECTS.parameters(name)
    # ESPnet2 removes it too: the sample rate of the recording is used.
    given = {key: item for key, item in options.items() if key != "sample_rate"}
    mistakes = Mistakes()
    complete_options = complete(given, parameters, owner=f"effect '{name}'", mistakes=mistakes, where=str)
    for key, parameter in parameters.items():
        if parameter.default is REQUIRED and key not in given:
            mistakes.add("", f"the effect '{name}' needs the key '{key}'")
    mistakes.check()
    return EffectEntry(weight, EFFECTS.canonical(name), complete_options)
