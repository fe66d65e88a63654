"""The search of Mask-CTC as a user chooses it. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from tympan.config.option import option
from tympan.decode.search import SearchKind


@dataclass(frozen=True, kw_only=True)
class MaskCtcOptions:
    """`search_conf` of mask_ctc, with ESPnet2's names."""

    maskctc_n_iterations: int = option(
        10, help="number of times that the decoder fills in tokens; 0: one token each time", least=0, most=10_000
    )
    maskctc_threshold_probability: float = option(
        0.99, help="fill in tokens whose CTC probability is below this", least=0, most=1
    )


MASK_CTC = SearchKind(
    "mask_ctc",
    help="best CTC path whose unsure tokens the decoder of Mask-CTC fills in",
    builder="tympan.decode.mask_ctc:build_mask_ctc",
    needs=("ctc",),
    options=MaskCtcOptions,
)
