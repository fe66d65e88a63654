"""Configurations of every kind of model that a command can train or use, all small and all valid."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile
import torch
import yaml

import tympan.config.choices as choices
from tests.faults.trial_server import TrialServer
from tests.integration.train_corpus import make_corpus
from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.config.option import options_of
from tympan.config.parse import parse_args
from tympan.config.read import parse_training
from tympan.config.registry import Registry
from tympan.config.resolve import PLAIN
from tympan.config.st import StTrainConfig
from tympan.config.train import TrainConfig
from tympan.decode.options import InferenceOptions, PieceOptions, SearchOptions
from tympan.decode.settings import RULES
from tympan.training.checkpoint import read_reporter
from tympan.tuning.options import FinetuneOptions

Values = dict[str, Any]

REGISTRIES: dict[str, Registry] = {
    "frontend": choices.FRONTENDS, "specaug": choices.SPECAUGS, "normalize": choices.NORMALIZERS,
    "preencoder": choices.PREENCODERS, "encoder": choices.ENCODERS, "postencoder": choices.POSTENCODERS,
    "decoder": choices.DECODERS, "optim": choices.OPTIMIZERS, "scheduler": choices.SCHEDULERS,
    "model": choices.ASR_MODELS, "ctc": choices.CTCS, "joint_net": choices.JOINT_NETWORKS,
    "adapter": choices.ADAPTERS, "preprocessor": choices.PREPROCESSORS, "lm": choices.LMS,
    "extra_asr_decoder": choices.DECODERS, "extra_mt_encoder": choices.ENCODERS, "hier_encoder": choices.ENCODERS,
}  # fmt: skip
"""The registry of each `NAME_conf`."""
SMALL: Values = {
    "output_size": 16, "attention_heads": 2, "linear_units": 24, "num_blocks": 1, "num_layers": 1, "hidden_size": 16,
    "cgmlp_linear_units": 24, "cgmlp_conv_kernel": 7, "cnn_module_kernel": 7, "fs": 16000, "n_fft": 256,
    "hop_length": 160, "n_mels": 16, "win_length": 256, "ctc_weight": 0.3, "conv_wshare": 2,
    "conv_kernel_length": "7", "max_lr": 0.01, "base_lr": 0.001, "min_lr": 0.0001, "total_steps": 100, "gamma": 0.9,
    "step_size": 10, "T_max": 10, "T_0": 10, "first_cycle_steps": 10, "milestones": [10], "warmup_steps_list": [0, 10],
    "warmup_lr_list": [0.0, 0.001], "time_mask_width_range": [0, 10], "multicgmlp_merge_conv_kernel": 7,
    "cycle_momentum": False, "joint_space_size": 12, "unit": 16, "nlayers": 1, "att_unit": 16, "embed_unit": 16,
    "head": 2, "layer": 1, "length_adaptor_n_layers": 1, "rank": 2, "alpha": 2, "bottleneck": 4,
    "attention_windows": [8], "attention_dilation": [1], "max_iter": 2, "lr": 0.001,
    "total_num_steps": 100, "warmup_num_steps": 10,
}  # fmt: skip
SMALL_ONLY_IN = {"fs": ("frontend",), "lr": ("optim",), "rank": ("adapter",), "alpha": ("adapter",)}
AUDIO_ENCODER = {"input_size": 1, "frontend": None, "specaug": None, "normalize": None, "preencoder": None}
ENCODERS = [n for n in choices.ENCODERS.names() if n not in (*choices.AUDIO_ENCODERS, "transformer_multispkr")]
S4: Values = {
    "n_layers": 1, "residual": "residual", "norm": "layer",
    "layer": [{"_name_": "s4", "d_state": 8, "n_ssm": 1, "lr": 0.001}, {"_name_": "mha", "n_head": 2},
              {"_name_": "ff"}],
}  # fmt: skip
HUBERT: Values = {
    "extractor_conv_layer_config": [[8, 10, 5], *[[8, 3, 2]] * 4, *[[8, 2, 2]] * 2], "encoder_embed_dim": 16,
    "encoder_num_layers": 1, "encoder_num_heads": 2, "encoder_ff_interm_features": 24, "encoder_pos_conv_kernel": 16,
    "encoder_pos_conv_groups": 4, "finetuning": True,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """One kind of run: the command, the class of its options, and how to draw a valid configuration."""

    name: str
    command: str
    schema: type[Any]
    draw: Callable[[random.Random, Path], Values]
    faults: Callable[[Path, str, Values], Iterator[str]]
    """What is wrong with the results of a run that ended with 0: its directory, what it printed, its configuration."""
    kept: frozenset[str] = frozenset()
    """Options that a trial does not change."""
    failure: str | None = None
    """Part of the output with exit code 1, which then is about a recording, not the fault of the command."""

    inner: tuple[str, ...] = ()
    """Options whose inner values a trial changes; none: all that have any."""
    before: Callable[[Path, Path], None] | None = None
    """Prepares the output directory from the folder of the materials."""

    @property
    def positional(self) -> list[str]:
        """The arguments without a flag, in their order."""
        return [name for name, item in options_of(self.schema).items() if item.extra.positional]

    def parse(self, arguments: Sequence[str]) -> Any:
        """What the command does with its arguments before anything else."""
        if issubclass(self.schema, TrainConfig):
            return parse_training(self.schema, arguments, prog=f"tympan {self.command}")
        rules = RULES if issubclass(self.schema, SearchOptions | PieceOptions) else PLAIN
        return parse_args(self.schema, arguments, prog=f"tympan {self.command}", rules=rules)


@dataclass(frozen=True)
class Materials:
    """What the commands read: recordings, pretrained models, and a recognizer that was trained for one epoch."""

    folder: Path
    server: TrialServer

    @staticmethod
    def make(folder: Path) -> Materials:
        make_corpus(folder, utterances=4)
        for path in folder.rglob("*.wav"):
            samples, _ = soundfile.read(path)
            soundfile.write(path, samples.repeat(2), 16000)
        for side in ("train", "valid"):
            for name in ("wav.scp", "text"):
                lines = (folder / side / name).read_text(encoding="utf-8").splitlines(keepends=True)
                (folder / side / name).write_text("".join(lines[: 4 if side == "train" else 2]), encoding="utf-8")
        _make_pretrained(folder)
        server = TrialServer(folder)
        config = {**_hybrid_of(folder, "conformer", "transformer"), "output_dir": str(folder / "exp")}
        config["encoder_conf"]["num_blocks"] = 2
        (folder / "base.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        done = server.run(["asr_train", "--config", str(folder / "base.yaml")])
        assert done.code == 0, done.output
        return Materials(folder, server)


def _make_pretrained(folder: Path) -> None:
    from tests.integration.test_whisper import make_model
    from tests.models.test_pretrained import tiny_folder

    make_model(folder / "whisper")
    tiny_folder(folder / "wavlm")


def part(kind: str, name: str | None, **values: Any) -> Values:
    """A choice with its `*_conf`: small sizes, and these values."""
    if name is None:
        return {kind: None}
    known = REGISTRIES[kind].parameters(name)
    small = {k: v for k, v in SMALL.items() if k in known and kind in SMALL_ONLY_IN.get(k, (kind,))}
    return {kind: name, f"{kind}_conf": {**small, **values}}


def _run_of(folder: Path, chance: random.Random | None) -> Values:
    """The options of any training run on the corpus."""
    optim = "adam" if chance is None else chance.choice(choices.OPTIMIZERS.names())
    scheduler = None if chance is None else chance.choice([*choices.SCHEDULERS.names(), None])
    return {
        **part("optim", optim), **part("scheduler", scheduler),
        "token_type": "char", "token_list": str(folder / "tokens.txt"), "batch_type": "unsorted", "batch_size": 2,
        "num_workers": 0, "max_epoch": 1, "use_matplotlib": False, "use_tensorboard": False, "num_att_plot": 0,
        **{f"{side}_data_path_and_name_and_type": _speech_and_text(folder, side) for side in ("train", "valid")},
    }  # fmt: skip


def _speech_and_text(folder: Path, side: str) -> list[list[str]]:
    return [[f"{folder}/{side}/wav.scp", "speech", "sound"], [f"{folder}/{side}/text", "text", "text"]]


def _hybrid_of(folder: Path, encoder: str, decoder: str, chance: random.Random | None = None) -> Values:
    return {
        **_run_of(folder, chance), **part("frontend", "default"), **part("encoder", encoder),
        **part("decoder", decoder, **(S4 if decoder == "s4" else {})), **part("model", "espnet"), "ctc_conf": {},
        "preprocessor": "default", "preprocessor_conf": {},
    }  # fmt: skip


def hybrid(chance: random.Random, folder: Path) -> Values:
    left_out = (*choices.PRETRAINED_DECODERS, *choices.TRANSDUCER_DECODERS, "mlm", "linear_decoder")
    decoder = chance.choice([name for name in choices.DECODERS.names() if name not in left_out])
    config = _hybrid_of(folder, chance.choice(ENCODERS), decoder, chance)
    config |= part("frontend", chance.choice(["default", "default", "sliding_window"]))
    config |= part("specaug", chance.choice(["specaug", None]))
    config |= part("normalize", chance.choice(["utterance_mvn", None]))
    config |= part("preencoder", chance.choice([None, None, "linear"]))
    config |= part("postencoder", chance.choice([None, None, None, "length_adaptor"]))
    return config


def adapters(chance: random.Random, folder: Path) -> Values:
    config = _hybrid_of(folder, chance.choice(["conformer", "transformer"]), "transformer", chance)
    kind = chance.choice(choices.ADAPTERS.names())
    target = {"lora": ["linear_q", "linear_v"], "houlsby": ["w_2"]}[kind]
    config |= {**part("adapter", kind, target_modules=target), "use_adapter": True}
    return config | {"save_strategy": chance.choice(["all", "adapter_only", "required_grad_only"])}


def transducer(chance: random.Random, folder: Path) -> Values:
    config = _hybrid_of(folder, chance.choice(ENCODERS), chance.choice(["transducer", "stateless"]), chance)
    config |= part("joint_net", "joint")
    del config["joint_net"]
    if chance.random() < 0.5:
        config |= {"model": "transducer", "model_conf": {"ctc_weight": chance.choice([0.0, 0.3])}}
        config["model_conf"] |= chance.choice([{}, {"rnnt_type": "pruned", "prune_range": 3}])
    if chance.random() < 0.8:  # without training, the greedy search emits its maximum of tokens for every frame
        config["model_conf"] |= {"report_cer": False, "report_wer": False}
    return config


def mask_ctc(chance: random.Random, folder: Path) -> Values:
    return {**_hybrid_of(folder, "conformer", "mlm", chance), **part("model", "maskctc")}


def several_speakers(chance: random.Random, folder: Path) -> Values:
    config = _hybrid_of(folder, "transformer_multispkr", chance.choice(["transformer", "rnn"]), chance)
    for side in ("train", "valid"):
        config[f"{side}_data_path_and_name_and_type"].append([f"{folder}/{side}/text", "text_spk2", "text"])
    config |= part("encoder", "transformer_multispkr", num_blocks_sd=1, num_inf=2)
    config |= part("model", "pit_espnet", num_inf=2, num_ref=2)
    return {**config, "preprocessor": "multi", "preprocessor_conf": {"text_name": ["text", "text_spk2"]}}


def pretrained(chance: random.Random, folder: Path) -> Values:
    """Parts that somebody else trained, as frontend or as encoder."""
    golden = Path(__file__).parents[1] / "golden" / "s3prl"
    whisper = {"whisper_model": str(folder / "whisper" / "tiny.pt")}
    wavlm = {"upstream": "hf_wavlm_custom", "path_or_url": str(folder / "wavlm")}
    frontends: dict[str, Values] = {
        "s3prl": {"frontend_conf": wavlm, "multilayer_feature": True},
        "huggingface": {"model": str(folder / "wavlm")},
        "whisper": whisper,
        "fused": {"frontends": [{"frontend_type": "s3prl", "frontend_conf": wavlm}, {"frontend_type": "default"}]},
        "wav2vec_cnn": {
            "norm_mode": "layer_norm",
            "conv_mode": "standard",
            "bias": True,
            "shapes": [[8, 10, 5], [8, 3, 2]],
        },
    }
    encoders: dict[str, Values] = {
        "whisper": whisper,
        "wav2vec2": {"w2v_url": str(golden / "wav2vec2_group.pt"), "output_size": 16},
        "hubert": {"hubert_url": str(golden / "hubert_group.pt"), "output_size": 16},
        "torchaudiohubert": HUBERT,
    }
    kind, name = chance.choice([*(("frontend", n) for n in frontends), *(("encoder", n) for n in encoders)])
    config = _hybrid_of(folder, "transformer", "transformer", chance)
    if kind == "frontend":
        config |= {"frontend": name, "frontend_conf": frontends[name], "normalize": None}
        config["encoder_conf"] |= {"input_layer": "linear"}
        return config
    del config["frontend_conf"]
    return {**config, **AUDIO_ENCODER, "encoder": name, "encoder_conf": encoders[name]}


def whisper(chance: random.Random, folder: Path) -> Values:
    """The whole model of Whisper, with its tokens."""
    conf = {"whisper_model": str(folder / "whisper" / "tiny.pt")}
    config = {**_run_of(folder, chance), **AUDIO_ENCODER, "encoder": "whisper", "encoder_conf": dict(conf)}
    del config["token_list"]
    symbols = {"sym_sos": "<|startoftranscript|>", "sym_eos": "<|endoftext|>"}
    return config | {
        "decoder": "whisper", "decoder_conf": dict(conf), "model": "espnet", "preprocessor": "default",
        "model_conf": {"ctc_weight": 0.0, "extract_feats_in_collect_stats": False, **symbols},
        "token_type": "whisper_multilingual", "bpemodel": str(folder / "whisper" / "multilingual.tiktoken"),
        "preprocessor_conf": {"whisper_language": "en", "whisper_task": "transcribe"},
    }  # fmt: skip


def translation(chance: random.Random, folder: Path) -> Values:
    config = _hybrid_of(folder, chance.choice(ENCODERS), chance.choice(["transformer", "rnn"]), chance)
    del config["model"]
    for side in ("train", "valid"):
        config[f"{side}_data_path_and_name_and_type"].append([f"{folder}/{side}/text", "src_text", "text"])
    config |= {"src_token_list": config["token_list"], "src_token_type": "char"}
    config["model_conf"] = {"asr_weight": 0.3, "mtlalpha": 0.5, "st_mtlalpha": chance.choice([0.0, 0.3])}
    config |= part("extra_asr_decoder", "transformer")
    if chance.random() < 0.3:
        config |= part("hier_encoder", "transformer", input_layer=None)
    if chance.random() < 0.3:
        config |= part("extra_mt_encoder", "transformer", input_layer="embed")
        config["model_conf"] |= {"mt_weight": 0.2}
    return config


def language_model(chance: random.Random, folder: Path) -> Values:
    config = {**_run_of(folder, chance), **part("lm", chance.choice(choices.LMS.names()))}
    for side in ("train", "valid"):
        config[f"{side}_data_path_and_name_and_type"] = [[f"{folder}/{side}/text", "text", "text"]]
    return config | {"model": "lm", "model_conf": {}}


def fine_tuning(chance: random.Random, folder: Path) -> Values:
    return {
        "model": str(folder / "exp"), "train_dir": str(folder / "train"), "dev_dir": str(folder / "valid"),
        "method": chance.choice(["full", "lora", "houlsby", "decoder", "top_n"]), "max_epoch": 1, "num_workers": 0,
        "top_n": 1, "asr_args": "--use_tensorboard false --use_matplotlib false --num_att_plot 0",
    }  # fmt: skip


def decoding(chance: random.Random, folder: Path) -> Values:
    return {
        "asr_train_config": str(folder / "exp" / "config.yaml"), "asr_model_file": str(folder / "exp" / "1epoch.pth"),
        "data_path_and_name_and_type": [[str(folder / "valid" / "wav.scp"), "speech", "sound"]], "beam_size": 2,
        "search": chance.choice(["joint", "joint", "ctc_greedy", "ctc_prefix", "rescore", "time_sync"]),
    }  # fmt: skip


def training_faults(output: Path, _printed: str, _config: Values) -> Iterator[str]:
    """A loss or a weight that is not finite, and a model that is missing."""
    directory = output / "train" if (output / "train" / "config.yaml").exists() else output
    for epoch, phases in read_reporter(directory).stats.items():
        for phase in ("train", "valid"):
            if not math.isfinite(phases[phase].get("loss", math.nan)):
                yield f"the loss of {phase} in epoch {epoch} is {phases[phase].get('loss')}"
        # The loss is 0 if every utterance is too short for CTC, such as after three layers of a length adaptor
        if phases["train"].get("grad_norm") == 0 and phases["train"]["loss"] != 0:
            yield f"nothing was learned in epoch {epoch}: all gradients are 0"
    models = sorted(directory.glob("*epoch.pth"))
    if not models:
        yield "no model was saved"
    for path in models:
        state = torch.load(path, weights_only=True)
        if not all(bool(tensor.isfinite().all()) for tensor in state.values()):
            yield f"{path.name} has weights that are not finite"


def decoding_faults(output: Path, _printed: str, _config: Values) -> Iterator[str]:
    """An utterance that is missing, and a score that is not finite."""
    if len((output / "text").read_text(encoding="utf-8").splitlines()) != 2:
        yield "an utterance is missing"
    for line in (output / "score").read_text(encoding="utf-8").splitlines():
        if not math.isfinite(float(line.split()[-1])):
            yield f"a score is not finite: {line}"


NOT_DECODED = "were not decoded"
FAMILIES = {
    family.name: family
    for family in (
        Family("hybrid", "asr_train", AsrTrainConfig, hybrid, training_faults),
        Family("transducer", "asr_train", AsrTrainConfig, transducer, training_faults),
        Family("adapters", "asr_train", AsrTrainConfig, adapters, training_faults),
        Family("mask_ctc", "asr_train", AsrTrainConfig, mask_ctc, training_faults),
        Family("several_speakers", "asr_train", AsrTrainConfig, several_speakers, training_faults),
        Family("pretrained", "asr_train", AsrTrainConfig, pretrained, training_faults),
        Family("whisper", "asr_train", AsrTrainConfig, whisper, training_faults),
        Family("translation", "st_train", StTrainConfig, translation, training_faults),
        Family("language_model", "lm_train", LmTrainConfig, language_model, training_faults),
        Family("fine_tuning", "finetune", FinetuneOptions, fine_tuning, training_faults),
        Family("decoding", "asr_inference", InferenceOptions, decoding, decoding_faults, failure=NOT_DECODED),
    )
}
