"""Run training from a configuration: start the processes, build, fit, close."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from tympan.config.choices import OPTIMIZERS
from tympan.config.command_line import read_command_line
from tympan.config.mistakes import Mistakes
from tympan.config.option import options_of
from tympan.config.parse import dump_run_config, read_layer
from tympan.config.read import RULES
from tympan.config.train import TrainConfig
from tympan.errors import UserError
from tympan.models.abilities import Recomputes
from tympan.models.initialize import load_pretrained_parts
from tympan.runtime.atomic import atomic_write, remove_leftovers
from tympan.runtime.comm import Comm, Solo
from tympan.runtime.cpu import FAST_BFLOAT16, should_advise_bfloat16
from tympan.runtime.device import (
    choose_kind,
    compiles_every_shape,
    describe,
    device_of,
    pin_to_cores,
    prepare_environment,
    set_compile_mode,
)
from tympan.runtime.launch import as_worker, is_launched, launch
from tympan.runtime.lock import directory_lock
from tympan.runtime.log import remove_log_lines, setup_logging
from tympan.runtime.malloc import keep_freed_memory
from tympan.runtime.parallel import Parallel, ParallelOptions
from tympan.runtime.precision import MasterWeights, Precision, choose_precision
from tympan.runtime.ranks import Ranks, worker_ranks
from tympan.runtime.seed import set_all_seeds, set_determinism
from tympan.runtime.stop import EXIT_REQUEUE, StopSignal
from tympan.training.checkpoint import Identity, load_checkpoint, remove_links, report_changes, set_aside
from tympan.training.collect_stats import collect_stats
from tympan.training.data import TrainingData, build_data, build_plain_data, with_joined_lists
from tympan.training.first_weights import prepared_model, report_size
from tympan.training.manifest import RecordingWriter, make_manifest, write_manifest
from tympan.training.optimizers import build_optimizer, layer_factors, names_without_decay, own_rates
from tympan.training.preflight import check_precision_and_shapes, check_run, one_message
from tympan.training.processes import dist_options_of, join_ranks, launch_plan
from tympan.training.reporter import Done, is_repeated
from tympan.training.schedulers import build_scheduler
from tympan.training.task import AnyTask, check_data_names, data_of, start_command
from tympan.training.trainer import Stopped, Trainer
from tympan.training.unfreezing import Unfreezing
from tympan.training.update import Updater, trainable
from tympan.training.watchers import build_watchers
from tympan.training.writer import SilentWriter, Writer


def run_training(task: AnyTask, config: TrainConfig, *, argv: Sequence[str] | None = None) -> int:
    """Run training after the options are parsed, for all training commands. Returns the exit code."""
    if config.output_dir is None:
        raise UserError("--output_dir is required: the directory for models, logs and checkpoints of the run")
    if not _builds_model_only(config):
        check_data_names(task, config)
    directory = Path(config.output_dir)
    device_kind = choose_kind(ngpu=config.ngpu, device=config.device)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if compiles_every_shape(device_kind) and not _was_given(config, "batch_type", arguments):
        # Such a device compiles every new shape: fixed shapes ran 17 times as fast in the Ascend port of the recipe
        config = replace(config, batch_type="bucket")
    dist_options = dist_options_of(config)
    ranks = worker_ranks(dist_options, os.environ)
    plan = None
    if ranks is None and not (config.collect_stats or config.dry_run):
        plan = launch_plan(config, dist_options)
    if ranks is not None:
        return as_worker(ranks.rank, lambda: _locked_work(task, config, device_kind, ranks))
    if plan is None:
        return _locked_work(task, config, device_kind, None)
    command = [*start_command(task), *arguments, "--resume", "true"]
    if plan.hosts.rank > 0:
        return launch(plan, command)
    with _lock(directory):
        if not config.resume:
            set_aside(directory)
        return launch(plan, command)


def _locked_work(task: AnyTask, config: TrainConfig, device_kind: str, ranks: Ranks | None) -> int:
    """Call `_work` with the directory locked, unless the parent process holds the lock already."""
    is_first = ranks is None or (ranks.rank == 0 and not is_launched())
    if config.dry_run or not is_first:
        return _work(task, config, device_kind, ranks)
    with _lock(Path(config.output_dir or ".")):
        return _work(task, config, device_kind, ranks)


def _lock(directory: Path) -> AbstractContextManager[None]:
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    return directory_lock(directory, run=run if run != "none" else None, advice="or give this run another --output_dir")


def _work(task: AnyTask, config: TrainConfig, device_kind: str, ranks: Ranks | None) -> int:
    """Run training in this process: build, fit, close."""
    variables = prepare_environment(device_kind, os.environ)
    keep_freed_memory()
    directory = Path(config.output_dir or ".")
    rank = 0 if ranks is None else ranks.rank
    log_file = "train.log" if rank == 0 else f"train.rank{rank}.log"
    setup_logging(config.log_level, directory / log_file, console=rank == 0, rank=None if ranks is None else rank)
    stop = StopSignal()
    stop.install()
    local_rank = 0 if ranks is None else ranks.local_rank
    device = device_of(device_kind, local_rank=local_rank)
    set_compile_mode(device_kind, config.npu_jit_compile)
    if variables:
        logging.info("environment: %s", ", ".join(f"{name}={value}" for name, value in variables.items()))
    if config.cpu_affinity:
        cores = pin_to_cores(local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        logging.info("CPU cores of this process: %s", ", ".join(map(str, cores)) or "all")
    comm = join_ranks(config, device, ranks)
    logging.info("%s training on %s, process %d of %d", task.name, describe(device), rank + 1, comm.size)
    try:
        if config.collect_stats:
            return _collect(task, config, directory)
        if _builds_model_only(config):
            _build_model_only(task, config, device)
            return 0
        if device.type == "cpu" and should_advise_bfloat16(config):
            logging.info(FAST_BFLOAT16)
        trainer = build_trainer(task, config, comm=comm, device=device, stop=stop)
        if config.dry_run:
            logging.info("--dry_run true: everything was built; nothing was trained")
            return 0
        with torch.autograd.set_detect_anomaly(config.detect_anomaly):
            trainer.fit()
    except Stopped:
        trainer.writer.close()
        logging.warning("stopped and saved the state; continue with --resume true (exit code %d)", EXIT_REQUEUE)
        return EXIT_REQUEUE
    trainer.writer.close()
    comm.close()
    trainer.check_result()
    return 0


def _builds_model_only(config: TrainConfig) -> bool:
    """Return whether this is a dry run without data, which checks only the configuration, as in ESPnet2."""
    has_data = any(triples for _, triples in data_of(config))
    return config.dry_run and (config.iterator_type == "none" or not has_data)


def _build_model_only(task: AnyTask, config: TrainConfig, device: torch.device) -> None:
    set_all_seeds(config.seed)
    model = prepared_model(task, task.complete(config), is_pretrained=False)
    precision = choose_precision(
        config.train_dtype, device_type=device.type, use_amp=config.use_amp, loss_scale=config.loss_scale
    )
    build_updater(config, model, comm=Solo(), device=device, precision=precision)
    report_size(model)
    logging.info("--dry_run true: the model and the optimizer were built; no data was read")


def build_trainer(
    task: AnyTask, config: TrainConfig, *, comm: Comm, device: torch.device, stop: StopSignal | None = None
) -> Trainer:
    """Build model, data, optimizer and writer of a run, and restore its checkpoint if it resumes."""
    set_all_seeds(config.seed)
    set_determinism(
        deterministic=config.deterministic,
        cudnn_enabled=config.cudnn_enabled,
        cudnn_benchmark=config.cudnn_benchmark,
        cudnn_deterministic=config.cudnn_deterministic,
        use_tf32=config.use_tf32,
    )
    precision = choose_precision(
        config.train_dtype, device_type=device.type, use_amp=config.use_amp, loss_scale=config.loss_scale
    )
    check_precision_and_shapes(config, precision)
    given = config
    config = with_joined_lists(task.complete(config))
    data = build_data(task, config, comm=comm, pin_memory=device.type != "cpu")
    model = prepared_model(task, config)
    _report_model(model, data, config, comm)
    _report_findings(task, config, model, data)
    precision.prepare(model)
    model.to(device)
    updater = build_updater(config, model, comm=comm, device=device, precision=precision)
    identity = Identity(
        task=task.name,
        optim=config.optim,
        scheduler=config.scheduler,
        tokens={name: item.tokens for name, item in task.tokens(config).items()},
        options={item.name: getattr(given, item.name) for item in fields(given)},
    )
    trainer = Trainer(
        updater,
        train_data=data.train,
        valid_data=data.valid,
        comm=comm,
        writer=SilentWriter(),
        options=config,
        seed=config.seed,
        is_stopping=stop or (lambda: False),
        start_epoch=_epoch_start(config, model, comm),
    )
    is_resumed = _resume(config, identity, trainer)
    if is_resumed:
        remove_log_lines(partial(is_repeated, epoch=trainer.position.epoch, step=trainer.position.step))
        logging.info("resumed at epoch %d, batch %d", trainer.position.epoch, trainer.position.step)
    with one_message(config, is_own_task=not type(task).__module__.startswith("tympan.")):
        check_run(trainer)
    comm.barrier()
    if comm.rank == 0 and not config.dry_run:
        trainer.writer = _open_experiment(
            task, config, identity, data, comm, device, is_resumed=is_resumed, done=trainer.done()
        )
    return trainer


def _open_experiment(
    task: AnyTask,
    config: TrainConfig,
    identity: Identity,
    data: TrainingData,
    comm: Comm,
    device: torch.device,
    *,
    is_resumed: bool,
    done: Done,
) -> Writer:
    """Prepare the experiment directory. Called after all checks, so that a mistake does not change the directory."""
    directory = Path(config.output_dir or ".")
    removed = [*remove_leftovers(directory), *remove_links(directory)]
    if removed:
        logging.info("removed incomplete files of a killed run: %s", ", ".join(removed))
    if not is_resumed:
        set_aside(directory)
    config_text = dump_run_config(config)
    with atomic_write(directory / "config.yaml") as stream:
        stream.write(config_text)
    manifest = make_manifest(task, config, config_text=config_text, device=describe(device), processes=comm.size)
    write_manifest(directory, manifest)
    return RecordingWriter(
        directory,
        identity=identity,
        criteria=config.best_model_criterion,
        nbests=config.keep_nbest_models,
        keep_last=config.keep_last_models,
        averaging_interval=config.nbest_averaging_interval,
        save_strategy=config.save_strategy,
        also_train=config.also_train,
        watchers=build_watchers(
            config, directory, data.valid, device=device, processes=comm.size, is_resumed=is_resumed, done=done
        ),
    )


def build_updater(
    config: TrainConfig, model: nn.Module, *, comm: Comm, device: torch.device, precision: Precision
) -> Updater:
    """Build the model distributed over the processes, with its optimizer and scheduler."""
    if config.grad_checkpointing:
        if not isinstance(model, Recomputes):
            raise UserError("--grad_checkpointing true: this model does not support gradient checkpointing")
        model.set_grad_checkpointing(True)
    parallel = Parallel(
        model,
        comm=comm,
        device=device,
        options=ParallelOptions(
            fsdp=config.fsdp and comm.size > 1,
            sync_batchnorm=config.sync_batchnorm,
            unused_parameters=config.unused_parameters,
            gradient_as_bucket_view=config.gradient_as_bucket_view,
            comm_hook=config.ddp_comm_hook,
        ),
        compiled=config.compile,
    )
    named = trainable(model)
    masters = MasterWeights([parameter for _, parameter in named], updates=precision.updates)
    moved = [(name, master) for (name, _), master in zip(named, masters.masters, strict=True)]
    spared = names_without_decay(model, **config.exclude_weight_decay_conf) if config.exclude_weight_decay else set()
    optimizer = build_optimizer(
        OPTIMIZERS.get_class(config.optim),
        config.optim_conf,
        moved,
        without_decay=spared,
        lr_factors=None if config.layer_decay is None else layer_factors(model, config.layer_decay),
        own_rates=own_rates(model) if config.exclude_weight_decay else None,
    )
    scheduler = None
    if config.scheduler is not None:
        scheduler = build_scheduler(config.scheduler, config.scheduler_conf, optimizer)
    return Updater(
        parallel,
        optimizer,
        scheduler,
        masters=masters,
        precision=precision,
        comm=comm,
        device=device,
        options=config,
        seed=config.seed,
    )


def _epoch_start(config: TrainConfig, model: nn.Module, comm: Comm) -> Callable[[int], None]:
    if config.unfreeze_interval is None:
        return lambda epoch: None
    if comm.size > 1 and not config.unused_parameters:
        raise UserError("--unfreeze_interval with several processes needs --unused_parameters true")
    return Unfreezing(model, config.unfreeze_interval).start_epoch


def _report_model(model: nn.Module, data: TrainingData, config: TrainConfig, comm: Comm) -> None:
    report_size(model)
    for name, batches in (("train", data.train), ("valid", data.valid)):
        logging.info("%s data: %s", name, batches.describe().replace("\n", "; "))
    size = data.train.mean_size()
    seconds = "" if size.seconds is None else f" and {size.seconds * config.accum_grad:.1f} s of audio"
    counting = (
        f"batch_size is per process, with {comm.size} processes (ESPnet1)"
        if config.batch_size_per_device
        else f"batch_size is the total over {comm.size} processes (ESPnet2)"
    )
    utterances = size.utterances * config.accum_grad
    logging.info("average batch per update: %.1f utterances%s; %s", utterances, seconds, counting)


def _report_findings(
    task: AnyTask, config: TrainConfig, model: nn.Module, data: TrainingData, *, shown: int = 50
) -> None:
    for finding in task.findings(config, model=model, batches=data.train):
        found = finding.utterances
        if found:
            more = [f"and {len(found) - shown} more"] if len(found) > shown else []
            logging.warning("%d %s:\n  %s", len(found), finding.message, "\n  ".join([*found[:shown], *more]))


def _resume(config: TrainConfig, identity: Identity, trainer: Trainer) -> bool:
    """Continue from the checkpoint, if there is one. After a restart by the launcher, --resume is ignored."""
    is_restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    if config.dry_run or not (config.resume or is_restart):
        return False
    state = load_checkpoint(
        Path(config.output_dir or "."),
        identity=identity,
        model_state=trainer.updater.parallel.module.state_dict(),
        load=trainer.load_state_dict,
    )
    if state is None:
        return False
    report_changes(state, identity)
    return True


def _collect(task: AnyTask, config: TrainConfig, directory: Path) -> int:
    config = task.complete(config)
    model = task.build_model(task.for_statistics(config))
    load_pretrained_parts(model)
    data = build_plain_data(task, config)
    for side, batches in (("train", data.train), ("valid", data.valid)):
        collect_stats(
            model,
            batches,
            directory / side,
            tokens=task.tokens(config),
            log_interval=config.log_interval,
            writes_features=config.write_collected_feats,
        )
    return 0


def _was_given(config: TrainConfig, name: str, arguments: Sequence[str]) -> bool:
    """Return whether the user has set this option, on the command line or in a file."""
    line = read_command_line(arguments, options_of(type(config)), Mistakes())
    return name in line.values or any(name in read_layer(Path(path), RULES).values for path in line.configs)
