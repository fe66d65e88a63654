"""Searches: their interface, the list of them, and what each one needs and uses.

This module does not import torch, because command options and configuration checks read it.

To add a search, write a class like `Search`, a `SearchKind` that describes it, and a line in `SEARCHES`. Without that
line, choose it as `--search package.module:KIND`.

Shapes in this package: U utterances, B beams (hypotheses of an utterance), C candidates, V vocabulary, T
encoder frames.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from tympan.config.registry import Registry, is_import
from tympan.config.resolve import Layer, resolve
from tympan.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from tympan.decode.load import LoadedModel
    from tympan.decode.options import DecodeOptions
    from tympan.models.speech_model import SpeechModel

State = TypeVar("State")

SEARCHES = Registry(
    "search",
    {
        "joint": "tympan.decode.search:JOINT",
        "ctc_greedy": "tympan.decode.search:CTC_GREEDY",
        "ctc_prefix": "tympan.decode.search:CTC_PREFIX",
        "rescore": "tympan.decode.search:RESCORE",
        "lexicon": "tympan.decode.search:LEXICON",
        "time_sync": "tympan.decode.search:TIME_SYNC",
        "mask_ctc": "tympan.decode.mask_ctc_kind:MASK_CTC",
        "hugging_face": "tympan.decode.hugging_face_kind:HUGGING_FACE",
        "transducer_greedy": "tympan.decode.transducer_kinds:GREEDY",
        "transducer_default": "tympan.decode.transducer_kinds:DEFAULT",
        "transducer_tsd": "tympan.decode.transducer_kinds:TSD",
        "transducer_alsd": "tympan.decode.transducer_kinds:ALSD",
        "transducer_nsc": "tympan.decode.transducer_kinds:NSC",
        "transducer_maes": "tympan.decode.transducer_kinds:MAES",
    },
)
"""Module and name of each `SearchKind`. It is imported when it is chosen, and for the help."""

Need = Literal["ctc", "decoder", "lexicon"]
NEEDS: dict[Need, str] = {
    "ctc": "CTC, but this model was trained without it (ctc_weight 0)",
    "decoder": "an attention decoder, but this model has none",
    "lexicon": "a model whose tokens are phones of a lexicon: one trained with --token_type phn --g2p FILE",
}


@dataclass(frozen=True)
class Encoded:
    """A batch of encoded utterances, or the next piece of each of them."""

    memory: Tensor  # (U, T, dim), on the model's device
    lengths: Tensor  # (U,), where the search runs; so are the log posteriors
    log_probs: Tensor | None = None
    """CTC log posteriors (U, T, V), where the model has CTC."""

    @property
    def utterances(self) -> int:
        return self.memory.size(0)

    def select(self, index: Tensor) -> Encoded:
        """Only these utterances, cut to the longest of them."""
        lengths = self.lengths[index]
        frames = int(lengths.max())
        log_probs = None if self.log_probs is None else self.log_probs[index, :frames]
        memory = self.memory[index.to(self.memory.device), :frames]
        return Encoded(memory=memory, lengths=lengths, log_probs=log_probs)


@dataclass(frozen=True)
class Ended:
    """One result of a search."""

    token_ids: tuple[int, ...]
    """Without sos and eos."""
    score: float
    scores: dict[str, float]
    """Score of each scorer, before weighting."""
    words: tuple[tuple[str, int], ...] | None = None
    """Words with the number of tokens of each, from searches with a lexicon."""
    spans: tuple[tuple[int, int, float], ...] | None = None
    """First frame, frame after the last, and probability of each token, where the search knows them."""
    is_ended_twice: bool = False
    """True if it ended by itself in the last step. There ESPnet2 appends a second eos, and its length counts both."""

    @property
    def length(self) -> int:
        """Number of tokens with sos and eos, as ESPnet2 counts them."""
        return len(self.token_ids) + 2 + self.is_ended_twice

    def without(self, token_id: int) -> Ended:
        """A copy without this token."""
        if token_id not in self.token_ids:
            return self
        return replace(self, token_ids=tuple(one for one in self.token_ids if one != token_id))


class Search(Protocol[State]):
    """Turns the encoding of a batch into the hypotheses of every utterance.

    Call `start`, then `accept` once or many times, then `finish`. Offline decoding accepts the whole encoding at once.
    The result does not depend on the number of pieces that the frames come in. The result for an utterance
    does not depend on the others in the batch.

    A state is never changed in place: an older one stays valid.
    """

    def start(self, utterances: int, /) -> State:
        """The state before the first frame."""
        ...

    def accept(self, state: State, encoded: Encoded, /) -> State:
        """Take the next frames of every utterance. `encoded.lengths` holds their number, 0 for a finished utterance."""
        ...

    def partial(self, state: State, /) -> list[Ended]:
        """The best hypothesis so far of every utterance. It is empty if the search has no result before the end."""
        ...

    def finish(self, state: State, /) -> list[list[Ended]]:
        """The hypotheses of every utterance, best first. An empty list means that the scores were nan."""
        ...


Builder = Callable[["LoadedModel", "DecodeOptions"], Search[Any]]


@dataclass(frozen=True)
class SearchKind:
    """Describes a search: its name, help, options and needs."""

    name: str
    help: str
    builder: str | Builder
    """Function that builds the search for a model, or its name as `module:function`, imported when needed."""
    uses: Collection[str] = ()
    """The options of `tympan.decode.options.DecodeOptions` that it uses. Other given options cause a warning."""
    needs: tuple[Need, ...] = ()
    """What the model must have, as keys of `NEEDS`."""
    takes_lm: bool = True
    """False: a neural LM is an error unless its weight is 0. Searches that only ignore it leave this true."""
    options: type[Any] | None = None
    """A dataclass of additional options, which the user gives as `search_conf`."""

    def build(self, loaded: LoadedModel, options: DecodeOptions) -> Search[Any]:
        """The search for a model. UserError if the model lacks something, or the options do not fit."""
        for need in self.needs:
            if need not in loaded.abilities:
                raise UserError(f"search {self.name} needs {NEEDS[need]}")
        self.check_options(options, has_lm=loaded.lm is not None)
        builder: Builder = _imported(self.builder) if isinstance(self.builder, str) else self.builder
        return builder(loaded, options)

    def check_options(self, options: DecodeOptions, *, has_lm: bool) -> None:
        """UserError for mistakes that can be found without the model."""
        if has_lm and not self.takes_lm and options.lm_weight != 0:
            raise UserError(f"search {self.name} does not use a neural LM: remove --lm_file, or set --lm_weight 0")
        self.own_options(options.search_conf)

    def own_options(self, search_conf: dict[str, Any]) -> Any:
        """An instance of `options`, checked and complete; None for a search without additional options."""
        if self.options is not None:
            return resolve(self.options, [Layer(search_conf, lambda path: f"search_conf {'.'.join(path)}")])
        if search_conf:
            raise UserError(f"search_conf {', '.join(search_conf)}: search {self.name} has no options of its own")
        return None


def find_search(name: str) -> SearchKind:
    """The search of this name, or the one that `package.module:KIND` names."""
    kind = _imported(SEARCHES.target(name))
    if not isinstance(kind, SearchKind):
        raise UserError(f"search '{name}': {name.partition(':')[2]} is not a tympan.decode.search.SearchKind")
    return kind


def choose_search(model: SpeechModel, name: str | None) -> SearchKind:
    """The search of this name, or the first one that the model offers. A user's own search is not restricted."""
    if name is None:
        return find_search(model.searches[0])
    if not is_import(name) and name not in model.searches:
        raise UserError(f"this model can't be decoded with search {name}; choose from {', '.join(model.searches)}")
    return find_search(name)


def run_search(search: Search[State], encoded: Encoded) -> list[list[Ended]]:
    """Search a whole encoding at once."""
    return search.finish(search.accept(search.start(encoded.utterances), encoded))


def _imported(target: str) -> Any:
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise
        raise UserError(f"'{target}': there is no module '{error.name}' on the Python path") from None
    if not hasattr(module, name):
        raise UserError(f"'{target}': the module '{module_name}' has no '{name}'")
    return getattr(module, name)


_SCORERS = (
    *("ctc_weight", "lm_weight", "ngram_weight", "ngram_scorer", "ngram_scores_end", "penalty"),
    *("lang_prompt_token", "nlp_prompt_token", "lid_prompt", "prompt_token_file", "predict_time"),
)

JOINT = SearchKind(
    "joint",
    help="beam search with attention decoder, CTC, LM and n-gram, token by token",
    builder="tympan.decode.joint:build_joint",
    uses=("beam_size", "nbest", *_SCORERS, "maxlenratio", "minlenratio", "normalize_length"),
)
CTC_GREEDY = SearchKind(
    "ctc_greedy",
    help="most likely token of every CTC frame",
    builder="tympan.decode.ctc_search:build_greedy",
    needs=("ctc",),
)
CTC_PREFIX = SearchKind(
    "ctc_prefix",
    help="CTC prefix beam search, frame by frame",
    builder="tympan.decode.ctc_search:build_prefix",
    uses=("beam_size", "nbest"),
    needs=("ctc",),
)
RESCORE = SearchKind(
    "rescore",
    help="n-best list of ctc_prefix, rescored by decoder, LM and n-gram",
    builder="tympan.decode.joint:build_rescore",
    uses=("beam_size", "nbest", *_SCORERS, "normalize_length"),
    needs=("ctc",),
)
TIME_SYNC = SearchKind(
    "time_sync",
    help="CTC prefix beam search, frame by frame, whose beam is also ranked by decoder and LM",
    builder="tympan.decode.time_sync:build_time_sync",
    uses=("beam_size", "nbest", "ctc_weight", "lm_weight", "penalty"),
    needs=("ctc",),
)
LEXICON = SearchKind(
    "lexicon",
    help="word search over a pronunciation lexicon, with an n-gram over words",
    builder="tympan.decode.lexicon_search:build_lexicon",
    uses=("beam_size", "nbest", "ngram_weight", "penalty"),
    needs=("ctc", "lexicon"),
    takes_lm=False,
)
