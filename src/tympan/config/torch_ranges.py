"""Ranges for the parameters of torch's optimizers and schedulers, by key or `name.key`."""

from __future__ import annotations

from tympan.config.range import Range

_LR = Range(0, 1_000)
_SHARE = Range(0, 1)
_BELOW_ONE = Range(0, below=1)
_COUNT = Range(0)
_NUMBER = Range(1)
_POSITIVE = Range(above=0)
_PASSES = Range(1, 1_000)
"""L-BFGS processes the batches of an update up to so many times, and keeps so many gradients."""

OPTIMIZER_RANGES = {
    "lr": _LR,
    "betas": _BELOW_ONE,
    "eps": Range(above=0, most=1),  # with 0, weights without gradients become NaN
    "weight_decay": Range(0, 1_000),
    "momentum": _BELOW_ONE,
    "dampening": _SHARE,
    "rho": _SHARE,
    "lr_decay": Range(0, 1_000),
    "initial_accumulator_value": _COUNT,
    "lambd": _SHARE,
    "alpha": _SHARE,
    "t0": _COUNT,
    "max_iter": _PASSES,
    "max_eval": _PASSES,
    "tolerance_grad": _COUNT,
    "tolerance_change": _COUNT,
    "history_size": _PASSES,
    "etas": _POSITIVE,
    "step_sizes": _POSITIVE,
    "momentum_decay": _COUNT,
}
SCHEDULER_RANGES = {
    "factor": _SHARE,
    "reducelronplateau.factor": _BELOW_ONE,
    "warmupreducelronplateau.factor": _BELOW_ONE,
    "patience": _COUNT,
    "threshold": _COUNT,
    "cooldown": _COUNT,
    "min_lr": _LR,
    "eps": _SHARE,
    "step_size": _NUMBER,
    "gamma": Range(0, 1_000),
    "last_epoch": Range(-1),
    "milestones": _COUNT,
    "T_max": _NUMBER,
    "eta_min": _LR,
    "base_lr": _LR,
    "max_lr": _LR,
    "step_size_up": _NUMBER,
    "step_size_down": _NUMBER,
    "base_momentum": _SHARE,
    "max_momentum": _SHARE,
    "total_steps": _NUMBER,
    "epochs": _NUMBER,
    "steps_per_epoch": _NUMBER,
    "pct_start": _SHARE,
    "div_factor": _POSITIVE,
    "final_div_factor": _POSITIVE,
    "T_0": _NUMBER,
    "T_mult": _NUMBER,
    "start_factor": Range(above=0, most=1),
    "end_factor": _SHARE,
    "total_iters": _COUNT,
    "power": _COUNT,
}
