"""Compute the features of one utterance: filterbank with or without pitch, or MFCC."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import yaml

from tympan.config.yaml_text import read_mapping
from tympan.data.audio import Audio, resample
from tympan.data.seeds import rng_for
from tympan.errors import UserError
from tympan.features.arrays import Floats
from tympan.features.cmvn import apply_cmvn
from tympan.features.conf import options_from, read_conf
from tympan.features.deltas import add_deltas
from tympan.features.fbank import FbankOptions, FrameOptions, MfccOptions, fbank, mfcc
from tympan.features.pitch import PitchOptions, pitch
from tympan.features.pitch_post import PitchPostOptions, process_pitch
from tympan.files import explained
from tympan.runtime.atomic import atomic_write

FeatsType = Literal["fbank_pitch", "fbank", "mfcc"]

_LENGTH_TOLERANCE = 2
"""Maximum difference in frames between pitch and filterbank when pasting them, as in Kaldi's make_fbank_pitch."""


@dataclass(frozen=True)
class FeatureOptions:
    """All options that affect the features of given audio."""

    feats_type: FeatsType = "fbank_pitch"
    fbank: FbankOptions = field(default_factory=FbankOptions)
    mfcc: MfccOptions = field(default_factory=MfccOptions)
    pitch: PitchOptions = field(default_factory=PitchOptions)
    pitch_post: PitchPostOptions = field(default_factory=PitchPostOptions)
    do_delta: bool = False
    seed: int = 0
    """Random seed of dither and of the noise on the delta pitch."""

    def __post_init__(self) -> None:
        if self.feats_type not in get_args(FeatsType):
            raise UserError(f"feats_type is '{self.feats_type}', allowed: {', '.join(get_args(FeatsType))}")
        if self.feats_type == "fbank_pitch":
            for name in ("sample_frequency", "frame_shift"):
                one, other = getattr(self.fbank, name), getattr(self.pitch, name)
                if one != other:
                    option = name.replace("_", "-")
                    raise UserError(
                        f"--{option} is {one:g} for the filterbank and {other:g} for the pitch; make them equal"
                    )

    @property
    def frame(self) -> FrameOptions:
        return self.mfcc if self.feats_type == "mfcc" else self.fbank

    @property
    def dim(self) -> int:
        if self.feats_type == "mfcc":
            base = self.mfcc.num_ceps
        else:
            base = self.fbank.num_mel_bins + self.fbank.use_energy
            base += self.pitch_post.dim if self.feats_type == "fbank_pitch" else 0
        return base * (3 if self.do_delta else 1)

    @classmethod
    def from_conf(
        cls,
        feats_type: FeatsType,
        *,
        fbank_config: Path | None = None,
        mfcc_config: Path | None = None,
        pitch_config: Path | None = None,
        pitch_postprocess_config: Path | None = None,
        dither: float | None = None,
        seed: int = 0,
    ) -> FeatureOptions:
        """Read Kaldi's conf files. Without a pitch_config, pitch uses the framing options of the filterbank."""
        bank = read_conf(fbank_config, FbankOptions) if fbank_config else FbankOptions()
        cepstra = read_conf(mfcc_config, MfccOptions) if mfcc_config else MfccOptions()
        if dither is not None:
            bank, cepstra = replace(bank, dither=dither), replace(cepstra, dither=dither)
        shared = ("sample_frequency", "frame_length", "frame_shift", "snip_edges")
        tracker = (
            read_conf(pitch_config, PitchOptions)
            if pitch_config
            else PitchOptions(**{name: getattr(bank, name) for name in shared})
        )
        post = read_conf(pitch_postprocess_config, PitchPostOptions) if pitch_postprocess_config else PitchPostOptions()
        return cls(feats_type, fbank=bank, mfcc=cepstra, pitch=tracker, pitch_post=post, seed=seed)


def compute_features(audio: Audio, options: FeatureOptions, *, utterance: str, stats: Floats | None = None) -> Floats:
    """(frames, dim) float32 of one-channel audio; (0, dim) if it is shorter than a frame.

    Random numbers depend only on the utterance id and the seed, so that runs are reproducible. With CMVN
    statistics the features are normalized before the deltas are added, as in the recipe.
    """
    samples = _at_rate(audio, options.frame, utterance)
    noise = rng_for(options.seed, utterance, "dither")
    if options.feats_type == "mfcc":
        features = mfcc(samples, options.mfcc, rng=noise)
    else:
        features = fbank(samples, options.fbank, rng=noise)
    if options.feats_type == "fbank_pitch":
        tracked = pitch(samples, options.pitch)
        tracked = process_pitch(tracked, options.pitch_post, rng=rng_for(options.seed, utterance, "pitch"))
        features = _paste(features, tracked, utterance)
    if stats is not None:
        features = apply_cmvn(features, stats, norm_vars=True)
    return add_deltas(features) if options.do_delta else features


def save_options(path: str | os.PathLike[str], options: FeatureOptions, *, cmvn: str | None = None) -> None:
    """Write features.yaml with all options, so that it does not depend on later defaults."""
    content: dict[str, object] = {
        "feats_type": options.feats_type,
        "fs": int(options.frame.sample_frequency),
        "fbank": asdict(options.frame),
        "pitch": asdict(options.pitch) if options.feats_type == "fbank_pitch" else {},
        "pitch_postprocess": asdict(options.pitch_post) if options.feats_type == "fbank_pitch" else {},
        "do_delta": options.do_delta,
        "cmvn": cmvn,
        "seed": options.seed,
    }
    with atomic_write(path) as stream:
        yaml.safe_dump(content, stream, sort_keys=False)


def load_options(path: str | os.PathLike[str]) -> FeatureOptions:
    """Read features.yaml. Its `cmvn` is a file next to it, which `features.cmvn.read_stats` reads."""
    place = str(path)
    content = read_mapping(Path(path))
    if "feats_type" not in content:
        raise UserError(f"{place}: expected a mapping with feats_type, fs, fbank and pitch")
    with explained(place, "the options of stored features"):
        return _options_of(content, place)


def _options_of(content: Mapping[str, Any], place: str) -> FeatureOptions:
    feats_type = content["feats_type"]
    rate = {"sample_frequency": content["fs"]} if content.get("fs") else {}
    frame = {**rate, **(content.get("fbank") or {})}
    tracker = {**rate, **(content.get("pitch") or {})}
    return FeatureOptions(
        feats_type,
        fbank=options_from(FbankOptions, frame, place=place) if feats_type != "mfcc" else FbankOptions(),
        mfcc=options_from(MfccOptions, frame, place=place) if feats_type == "mfcc" else MfccOptions(),
        pitch=options_from(PitchOptions, tracker, place=place) if feats_type == "fbank_pitch" else PitchOptions(),
        pitch_post=options_from(PitchPostOptions, content.get("pitch_postprocess") or {}, place=place),
        do_delta=bool(content.get("do_delta", False)),
        seed=int(content.get("seed", 0)),
    )


def describe_difference(one: FeatureOptions, other: FeatureOptions) -> str:
    """The first options that differ, for a message; empty if both give the same features."""
    differences = []
    for entry in fields(one):
        left, right = getattr(one, entry.name), getattr(other, entry.name)
        if left == right:
            continue
        if isinstance(left, (FrameOptions, PitchOptions, PitchPostOptions)):
            names = [name for name, value in asdict(left).items() if asdict(right)[name] != value]
            differences += [
                f"--{name.replace('_', '-')} {getattr(left, name)} / {getattr(right, name)}" for name in names
            ]
        else:
            differences.append(f"{entry.name} {left} / {right}")
    return ", ".join(differences[:5])


def _at_rate(audio: Audio, frame: FrameOptions, utterance: str) -> Floats:
    if audio.samples.ndim != 1:
        raise UserError(
            f"'{utterance}' has {audio.samples.shape[1]} channels; choose one with --channel N (counted from 0)"
        )
    wanted = int(frame.sample_frequency)
    if audio.rate == wanted:
        return audio.samples
    if frame.allow_downsample if audio.rate > wanted else frame.allow_upsample:
        return resample(audio.samples, audio.rate, wanted)
    way = "--allow-downsample=true" if audio.rate > wanted else "--allow-upsample=true"
    raise UserError(
        f"'{utterance}' has a sample rate of {audio.rate} Hz, but the options have --sample-frequency={wanted}. "
        f"Write --sample-frequency={audio.rate} in the conf file, or {way} to have it resampled."
    )


def _paste(features: Floats, tracked: Floats, utterance: str) -> Floats:
    difference = abs(len(features) - len(tracked))
    shorter = min(len(features), len(tracked))
    if difference > _LENGTH_TOLERANCE and shorter:
        raise UserError(
            f"'{utterance}': {len(features)} filterbank frames and {len(tracked)} pitch frames cannot be combined; "
            "check --snip-edges and --frame-shift in both conf files"
        )
    return np.concatenate([features[:shorter], tracked[:shorter]], axis=1)
