"""What training would refuse after the other stages: `--check` finds it before they run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tympan.config.asr import AsrTrainConfig
from tympan.errors import UserError
from tympan.files import require_file
from tympan.recipe.recipe import Recipe
from tympan.recipe.training_steps import asr_arguments, parse_quietly

if TYPE_CHECKING:
    from torch import nn

USUAL_SAMPLES, USUAL_TOKENS = 80_000, 20
"""Lengths of the utterances that are planned before the lengths of the data are known."""


def check_training(recipe: Recipe, *, builds_model: bool) -> None:
    """Parse the training configuration; with `builds_model`, also build the model, which finds more mistakes."""
    config = parse_quietly(AsrTrainConfig, asr_arguments(recipe), "asr_train")
    if not builds_model:
        return
    from tympan.models.build import build_asr_model
    from tympan.recipe.estimate import token_list_of
    from tympan.tasks.speech import build_augmentation
    from tympan.training.optimizers import freeze

    tokens = token_list_of(recipe.tokens, recipe.corpus)
    model = build_asr_model(replace(config, token_list=tokens), reads_statistics=False)
    build_augmentation(config, config.preprocessor_conf, None)
    _check_batches(config)
    _check_first_weights(recipe, config, model)
    freeze(model, config.freeze_param)
    _check_criteria(recipe, config, model, tokens)
    _check_schedule(recipe, config)


def _check_batches(config: AsrTrainConfig) -> None:
    """Plan batches of utterances of a usual length, for training and for validation."""
    import numpy as np

    from tympan.data.batch_plan import plan_batches
    from tympan.data.shapes import Shapes

    shapes = [Shapes("speech", np.full(32, USUAL_SAMPLES)), Shapes("text", np.full(32, USUAL_TOKENS))]
    for batch_type in dict.fromkeys((config.batch_type, config.valid_batch_type or config.batch_type)):
        plan_batches(shapes, replace(config, batch_type=batch_type))


def _check_first_weights(recipe: Recipe, config: AsrTrainConfig, model: nn.Module) -> None:
    """Load the weights of --init_param. Before the tokens are known, their files only have to exist."""
    from tympan.models.init_param import init_from

    for entry in config.init_param:
        if recipe.tokens.is_ready:
            init_from(model, entry, ignore_mismatch=config.ignore_init_mismatch)
        else:
            _require_weights(entry)


def _require_weights(entry: str) -> None:
    try:
        require_file(Path(entry.partition(":")[0]), kind="weights file")
    except UserError as error:
        raise UserError(f"--init_param {entry}: {error}") from None


def _check_criteria(recipe: Recipe, config: AsrTrainConfig, model: nn.Module, tokens: list[str]) -> None:
    """UserError for a criterion that this model does not report, such as the accuracy of a decoder that it lacks."""
    import torch

    from tympan.recipe.probe import noise_batch
    from tympan.training.preflight import check_criteria, one_message

    model.eval()
    with torch.no_grad(), one_message(config, is_own_task=False):
        loss = model(**noise_batch(recipe, tokens, torch.device("cpu")))
    check_criteria(config, {"loss", *loss.stats}, scheduler=None)


def _check_schedule(recipe: Recipe, config: AsrTrainConfig) -> None:
    """UserError if onecyclelr has too few steps for the data.

    Only for data directories that exist now. Text is not counted, so batch_type numel may need some more steps.
    """
    from tympan.recipe.sizing import updates_per_epoch
    from tympan.recipe.survey import survey

    place, total = recipe.corpus.directories.get(recipe.corpus.train), config.scheduler_conf.get("total_steps")
    if config.scheduler != "onecyclelr" or total is None or place is None:
        return
    if not config.takes_audio or config.batch_type == "folded":
        return
    batches = config.num_iters_per_epoch
    try:
        recipe.corpus.check()
        found = replace(survey(place), model_rate=recipe.features.steps_per_second if config.resample else 0)
    except UserError:
        return  # reported with the data
    updates = updates_per_epoch(found, config, accum_grad=config.accum_grad)
    needed = config.max_epoch * (updates if batches is None else -(-batches // config.accum_grad))
    if needed > total:
        raise UserError(
            f"scheduler_conf: onecyclelr ends too early: total_steps is {total}, but {config.max_epoch} epochs have "
            f"about {needed} updates. Use --scheduler_conf total_steps={round(1.05 * needed)} or a smaller --max_epoch."
        )
