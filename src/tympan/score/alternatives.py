"""Texts that allow several wordings, as sclite writes them: `{ this / that }`, with `@` for nothing at all."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tympan.score.align import GAP_COST, SUBSTITUTION_COST, Kind, Step

NOTHING = "@"
_PART = re.compile(r"[{}/]|[^{}/\s]+")
_NOTHING_COST: np.float32 = np.float32(0.001)
"""sclite's cost of passing an `@`. Costs are added in single precision as in sclite, so that ties break alike."""


@dataclass(frozen=True)
class Choice:
    """Alternative wordings, any of which is correct. An empty one means that the words may be missing."""

    ways: tuple[tuple[Token, ...], ...]


Token = str | Choice
_NOTHING = Choice(((),))


def parse_choices(text: str, split: Callable[[str], list[str]]) -> tuple[Token, ...] | None:
    """The text cut into tokens by `split`, with its choices; None where a brace is not closed."""
    tokens: list[Token] = []
    position = 0
    while (begin := text.find("{", position)) >= 0:
        tokens += _tokens(text[position:begin], split)
        found = _parse_choice(_PART.findall(text[begin + 1 :]), split)
        if found is None:
            return None
        choice, parts_read = found
        tokens.append(choice)
        position = [match.end() for match in _PART.finditer(text, begin)][parts_read]
    return (*tokens, *_tokens(text[position:], split))


def _parse_choice(parts: Sequence[str], split: Callable[[str], list[str]]) -> tuple[Choice, int] | None:
    """The choice whose opening brace precedes `parts`, and the number of parts it takes with its closing brace."""
    ways: list[list[Token]] = [[]]
    index = 0
    while index < len(parts):
        part = parts[index]
        index += 1
        if part == "}":
            return Choice(tuple(map(tuple, ways))), index
        if part == "/":
            ways.append([])
        elif part == "{":
            found = _parse_choice(parts[index:], split)
            if found is None:
                return None
            ways[-1].append(found[0])
            index += found[1]
        else:
            ways[-1] += _tokens(part, split)
    return None


def _tokens(text: str, split: Callable[[str], list[str]]) -> list[Token]:
    return [_NOTHING if token == NOTHING else token for token in split(text)]


@dataclass(frozen=True)
class Arc:
    """One token of a network and the arcs it may follow. `token` None: no token on this arc."""

    token: str | None
    before: tuple[int, ...]


def align_choices(ref: Sequence[Token], hyp: Sequence[Token], same: Callable[[str, str], bool]) -> list[Step]:
    """The cheapest alignment over all wordings of both sides; among equals the one that sclite finds."""
    (ref_arcs, ref_ends), (hyp_arcs, hyp_ends) = _network(ref), _network(hyp)
    cells: dict[tuple[int, int], _Cell] = {(0, 0): _Cell(np.float32(0), (0, 0))}
    for a, ref_arc in enumerate(ref_arcs):
        for b, hyp_arc in enumerate(hyp_arcs):
            if a or b:
                cells[a, b] = _best(cells, a, b, ref_arc, hyp_arc, same)
    at = min(((a, b) for a in ref_ends for b in hyp_ends), key=lambda index: cells[index].cost)
    steps: list[Step] = []
    while at != (0, 0):
        back = cells[at].back
        said = ref_arcs[at[0]].token if back[0] != at[0] else None
        heard = hyp_arcs[at[1]].token if back[1] != at[1] else None
        if said is not None or heard is not None:
            steps.append(Step(_kind(said, heard, same), said, heard))
        at = back
    return steps[::-1]


@dataclass(frozen=True)
class _Cell:
    cost: np.float32
    back: tuple[int, int]


def _best(
    cells: dict[tuple[int, int], _Cell], a: int, b: int, ref: Arc, hyp: Arc, same: Callable[[str, str], bool]
) -> _Cell:
    """Among equal costs, prefer to advance both; then only the hypothesis, then only the reference."""
    ways = []
    if a and b and ref.token is not None and hyp.token is not None:
        cost = np.float32(0 if same(ref.token, hyp.token) else SUBSTITUTION_COST)
        ways.append((cost, [(i, j) for i in ref.before for j in hyp.before]))
    if b:
        ways.append((_gap(hyp), [(a, j) for j in hyp.before]))
    if a:
        ways.append((_gap(ref), [(i, b) for i in ref.before]))
    best = [min((cells[back].cost + cost, n) for n, back in enumerate(backs)) for cost, backs in ways]
    chosen = min(range(len(ways)), key=lambda way: best[way][0])
    cost, n = best[chosen]
    return _Cell(cost, ways[chosen][1][n])


def _gap(arc: Arc) -> np.float32:
    return _NOTHING_COST if arc.token is None else np.float32(GAP_COST)


def _kind(said: str | None, heard: str | None, same: Callable[[str, str], bool]) -> Kind:
    if said is None:
        return "I"
    if heard is None:
        return "D"
    return "C" if same(said, heard) else "S"


def _network(tokens: Sequence[Token]) -> tuple[list[Arc], tuple[int, ...]]:
    """Arcs in topological order (arc 0 is the start), and the final ones."""
    arcs = [Arc(None, ())]
    return arcs, _extend(arcs, tokens, (0,))


def _extend(arcs: list[Arc], tokens: Sequence[Token], before: tuple[int, ...]) -> tuple[int, ...]:
    for token in tokens:
        if isinstance(token, Choice):
            ends = [_extend(arcs, way, before) if way else _extend_by(arcs, None, before) for way in token.ways]
            before = tuple(end for group in ends for end in group)
        else:
            before = _extend_by(arcs, token, before)
    return before


def _extend_by(arcs: list[Arc], token: str | None, before: tuple[int, ...]) -> tuple[int, ...]:
    arcs.append(Arc(token, before))
    return (len(arcs) - 1,)
