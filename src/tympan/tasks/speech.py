"""Code shared by the tasks with speech input: speech recognition and speech translation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tympan.config.model import SpeechTrainConfig
from tympan.errors import UserError
from tympan.training.task import Finding

if TYPE_CHECKING:
    import numpy as np

    from tympan.data.augment import WaveformAugmentation
    from tympan.data.batch import Batches
    from tympan.data.preprocess import Preprocessor


Config = TypeVar("Config", bound=SpeechTrainConfig)


def speech_preprocess(
    config: SpeechTrainConfig, *, texts: Mapping[str, Callable[[str], np.ndarray]], rate: int | None, is_augmented: bool
) -> Preprocessor:
    """Augmentation and volume normalization of speech from the options, and tokenization of `texts` by data name."""
    from tympan.data.preprocess import Preprocessor, SpeechPreprocessor

    conf = config.preprocessor_conf
    _refuse_waveform_options(config, conf)
    speech = SpeechPreprocessor(
        augmentation=build_augmentation(config, conf, rate) if is_augmented else None,
        volume_normalize=config.speech_volume_normalize,
        force_single_channel=conf.get("force_single_channel", False),
        min_sample_size=conf.get("min_sample_size", -1),
        audio_pad_value=conf.get("audio_pad_value", 0.0),
    )
    return Preprocessor(texts=texts, speech=speech, speech_name=conf.get("speech_name", "speech"))


def speech_rate(config: SpeechTrainConfig) -> int | None:
    """Sample rate of the options, in Hz. ESPnet2 also writes `16k`."""
    from tympan.features.frontend import parse_rate

    for option in ("preprocessor_conf", "frontend_conf"):
        if rate := getattr(config, option).get("fs"):
            return parse_rate(rate, option=f"{option} fs")
    return None


def speech_files(config: SpeechTrainConfig) -> list[str | None]:
    """Files besides the data that affect the result."""
    return [config.rir_scp, config.noise_scp, config.normalize_conf.get("stats_file")]


def without_normalization(config: Config) -> Config:
    """The configuration for collecting normalization statistics."""
    return replace(config, normalize=None, normalize_conf={})


def too_short(
    model: object, batches: Batches, speeds: Sequence[float], *, text: str = "text", encoders: str = "encoder_conf"
) -> Iterator[Finding]:
    """Utterances with fewer encoder frames than a loss of the model needs for their text.

    Texts are read only if the lengths do not decide. If the lengths are unknown, nothing is reported. UserError if all
    utterances are too short; it names `encoders`, the options of the encoders that subsample.
    """
    import numpy as np
    import torch

    from tympan.models.abilities import NeedsFrames

    lengths = batches.lengths()
    if not isinstance(model, NeedsFrames) or "speech" not in lengths or text not in lengths:
        return
    stretch = min(1.0, 1.0 / max(speeds or [1.0]))
    frames = model.output_lengths(torch.from_numpy((lengths["speech"] * stretch).astype(np.int64)))
    tokens = torch.from_numpy(lengths[text].astype(np.int64))
    # All tokens may be the same, so that all but the first repeat the one before
    most = model.frames_needed(tokens, (tokens - 1).clamp(min=0))
    for loss, needed in most.items():
        found = []
        for row in (frames < needed).nonzero().flatten().tolist():
            utterance = batches.utterance(row)
            ids = torch.from_numpy(utterance.arrays[text])
            repeats = (ids[1:] == ids[:-1]).sum()
            exact = int(model.frames_needed(torch.tensor(len(ids)), repeats)[loss])
            if frames[row] < exact:
                found.append(f"{utterance.id}: {int(frames[row])} encoder frames for a transcript that needs {exact}")
        if found and len(found) == len(tokens):
            raise UserError(
                f"all {len(found)} training utterances are too short for {loss}, such as {found[0]}. Use less "
                f"subsampling (input_layer or subsample of {encoders}, length_adaptor_n_layers of postencoder_conf, "
                "hop_length of frontend_conf), smaller factors of speed_perturb, longer recordings, or a token_type "
                "with more letters per token"
            )
        yield Finding(f"utterances are too short for {loss} and do not contribute to its loss", found)


def build_augmentation(
    config: SpeechTrainConfig, conf: Mapping[str, Any], rate: int | None
) -> WaveformAugmentation | None:
    """The augmentation of the training data; `conf` is preprocessor_conf, and `rate` the sample rate if it is known."""
    from tympan.data.augment import WaveformAugmentation, describe_speeds, parse_db_range

    parse_db_range(config.noise_db_range)  # a mistake in it is reported even if nothing uses it
    effects = conf.get("data_aug_effects")
    logging.info("speed perturbation: %s", describe_speeds(config.speed_perturb))
    if not any((config.speed_perturb, config.volume_perturb, config.rir_scp, config.noise_scp, effects)):
        return None
    return WaveformAugmentation(
        seed=config.seed,
        rate=rate,
        speed_perturb=config.speed_perturb,
        volume_perturb=config.volume_perturb,
        rir_scp=config.rir_scp,
        rir_apply_prob=config.rir_apply_prob,
        noise_scp=config.noise_scp,
        noise_apply_prob=config.noise_apply_prob,
        noise_db_range=config.noise_db_range,
        data_aug_effects=effects,
        data_aug_num=tuple(conf.get("data_aug_num", (1, 1))),
        data_aug_prob=conf.get("data_aug_prob", 0.0),
        force_single_channel=conf.get("force_single_channel", False),
    )


def _refuse_waveform_options(config: SpeechTrainConfig, conf: Mapping[str, Any]) -> None:
    """Reject audio options for stored features, which would silently be processed as multi-channel audio."""
    if config.takes_audio:
        return
    options = {
        "speed_perturb": config.speed_perturb,
        "volume_perturb": config.volume_perturb,
        "rir_scp": config.rir_scp,
        "noise_scp": config.noise_scp,
        "speech_volume_normalize": config.speech_volume_normalize,
        "preprocessor_conf data_aug_effects": conf.get("data_aug_effects"),
        "preprocessor_conf force_single_channel": conf.get("force_single_channel"),
    }
    given = [name for name, value in options.items() if value]
    if given:
        raise UserError(
            f"{', '.join(given)}: only works with audio input, but input_size is set, so the input is features"
        )
