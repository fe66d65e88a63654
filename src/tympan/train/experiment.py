"""The experiment directory at both ends of a run: what it is made of before, what came out after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tympan.config.train import TrainConfig
from tympan.runtime.atomic import atomic_write
from tympan.train.manifest import make_manifest, read_manifest, weights_digest, write_manifest
from tympan.train.reporter import Reporter
from tympan.train.writer import ExperimentWriter


def write_beginnings(
    directory: Path, config: TrainConfig, *, kind: str, config_text: str, device: str, processes: int
) -> None:
    """config.yaml and the manifest."""
    with atomic_write(directory / "config.yaml") as stream:
        stream.write(config_text)
    write_manifest(
        directory,
        make_manifest(
            kind=kind,
            config_text=config_text,
            seed=config.seed,
            data_files=_files(config),
            device=device,
            processes=processes,
        ),
    )


class RecordingWriter(ExperimentWriter):
    """Adds to the manifest what came out."""

    def finish(self, reporter: Reporter) -> None:
        super().finish(reporter)
        # Not all *.pth: an earlier run may have left models of its own
        paths = [self.directory / f"{epoch}epoch.pth" for epoch in reporter.stats] + self.averaged
        results = {
            path.name: weights_digest(torch.load(path, map_location="cpu", weights_only=True))
            for path in sorted(paths)
            if path.is_file() and not path.is_symlink()
        }
        manifest = read_manifest(self.directory)
        write_manifest(self.directory, {**manifest, "weights_sha256": results, "epochs": reporter.stats})


def _files(config: TrainConfig) -> list[str]:
    """Every file that the configuration names and that decides the result."""
    triples = (*config.train_data_path_and_name_and_type, *config.valid_data_path_and_name_and_type)
    named: list[Any] = [path for path, _, _ in triples]
    named += [*config.train_shape_file, *config.valid_shape_file]
    named += [entry.partition(":")[0] for entry in config.init_param]
    named += [getattr(config, name, None) for name in ("bpemodel", "rir_scp", "noise_scp")]
    named.append((getattr(config, "normalize_conf", None) or {}).get("stats_file"))
    return [name for name in named if name]
