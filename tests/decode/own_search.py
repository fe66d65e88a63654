"""A user's own search: the tokens of the best path, in reverse order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tympan.config.option import option
from tympan.decode.ctc_search import GreedySearch, GreedyState
from tympan.decode.load import LoadedModel
from tympan.decode.options import DecodeOptions
from tympan.decode.search import Encoded, Ended, SearchKind


@dataclass(frozen=True, kw_only=True)
class OwnOptions:
    longest: int = option(100, help="number of tokens to keep", least=1)


class BackwardsSearch:
    def __init__(self, greedy: GreedySearch, longest: int) -> None:
        self.greedy = greedy
        self.longest = longest

    def start(self, utterances: int) -> GreedyState:
        return self.greedy.start(utterances)

    def accept(self, state: GreedyState, encoded: Encoded) -> GreedyState:
        return self.greedy.accept(state, encoded)

    def partial(self, state: GreedyState) -> list[Ended]:
        return [hypotheses[0] for hypotheses in self.finish(state)]

    def finish(self, state: GreedyState) -> list[list[Ended]]:
        found = [best for (best,) in self.greedy.finish(state)]
        return [[replace(best, token_ids=best.token_ids[::-1][: self.longest])] for best in found]


def build(loaded: LoadedModel, options: DecodeOptions) -> BackwardsSearch:
    own = BACKWARDS.own_options(options.search_conf)
    return BackwardsSearch(GreedySearch(blank_id=loaded.model.blank_id), own.longest)


BACKWARDS = SearchKind(
    "backwards", help="the best path, backwards", builder=build, uses=("nbest",), needs=("ctc",), options=OwnOptions
)
