"""ESPnet2's interface: the commands of its documentation, its printed configurations, and the files of its models."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tympan.config import choices, dump_config, dump_run_config, load_training_config, parse_training
from tympan.config.asr import AsrTrainConfig
from tympan.config.lm import LmTrainConfig
from tympan.config.registry import Registry
from tympan.config.signature import _Unreadable, import_class, signature_from_class, signature_from_source
from tympan.config.st import StTrainConfig
from tympan.errors import UserError

# What a run needs besides the options of a test case.
MODEL = ["--encoder", "conformer", "--decoder", "transformer"]


def parse(*argv: str) -> AsrTrainConfig:
    return parse_training(AsrTrainConfig, [*MODEL, *argv], prog="tympan asr_train")


def printed(schema: type[Any], argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        parse_training(schema, [*argv, "--print_config"], prog="t")
    assert caught.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--optim_conf", "lr=0.1", "--optim_conf", "rho=0.8"], {"optim_conf.lr": 0.1, "optim_conf.rho": 0.8}),
        (["--optim_conf", "{lr: 0.1, rho: 0.8}"], {"optim_conf.lr": 0.1, "optim_conf.rho": 0.8}),
        (["--optim", "adam"], {"optim": "adam", "optim_conf.betas": (0.9, 0.999), "optim_conf.lr": 0.001}),
        (["--optim", "sgd"], {"optim_conf.lr": 0.1, "optim_conf.nesterov": False}),
        (["--scheduler", "ReduceLROnPlateau"], {"scheduler": "reducelronplateau", "scheduler_conf.factor": 0.1}),
        (["--scheduler", "none"], {"scheduler": None, "scheduler_conf": {}}),
        (["--resume", "true"], {"resume": True}),
        (["--log_interval", "100"], {"log_interval": 100}),
        (["--num_iters_per_epoch", "1000"], {"num_iters_per_epoch": 1000}),
        (["--ngpu", "2"], {"ngpu": 2}),
        (["--batch_size", "20"], {"batch_size": 20, "valid_batch_size": None}),
        (["--valid_batch_size", "200"], {"valid_batch_size": 200}),
        (["--batch_size", "10", "--ngpu", "2"], {"batch_size": 10, "batch_size_per_device": False}),
        (["--accum_grad", "2"], {"accum_grad": 2}),
        *((["--train_dtype", name], {"train_dtype": name}) for name in ("float16", "float32", "float64")),
        *((["--train_dtype", name], {"train_dtype": name}) for name in ("O0", "O1", "O2", "O3", "bfloat16")),
        (["--cudnn_deterministic", "true"], {"cudnn_deterministic": True}),
        (["--batch_type", "seq"], {"batch_type": "folded"}),
        (["--batch_type", "bin"], {"batch_type": "numel"}),
        (["--batch_type", "frame"], {"batch_type": "length"}),
        (
            ["--train_data_path_and_name_and_type", "dump/wav.scp,speech,sound"],
            {"train_data_path_and_name_and_type": [("dump/wav.scp", "speech", "sound")]},
        ),
        (["--keep_nbest_models", "5", "10"], {"keep_nbest_models": [5, 10]}),
        (["--best_model_criterion", "valid,acc,max"], {"best_model_criterion": [("valid", "acc", "max")]}),
        (["--val_scheduler_criterion", "valid", "acc"], {"val_scheduler_criterion": ("valid", "acc")}),
        (["--init_param", "a.pth:encoder:encoder", "b.pth"], {"init_param": ["a.pth:encoder:encoder", "b.pth"]}),
        (["--noise_db_range", "13_15"], {"noise_db_range": "13_15"}),
        (["--ddp_comm_hook", "fp16_compress_hook"], {"ddp_comm_hook": "fp16"}),
        (["--elastic", "1:2"], {"elastic": "1:2"}),
        (["--frontend_conf", "n_fft=400", "hop_length=160"], {"frontend_conf.n_fft": 400, "frontend_conf.fs": 16000}),
        (["--log_level", "debug"], {"log_level": "DEBUG"}),
    ],
)
def test_the_documents_commands(argv: list[str], expected: dict[str, Any]) -> None:
    config = parse(*argv)
    for path, value in expected.items():
        name, _, key = path.partition(".")
        found = getattr(config, name)
        assert (found[key] if key else found) == value


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--batch-size", "3"], "option names are written with '_'. Use '--batch_size'"),
        (["--optim", "adamm"], "there is no optim 'adamm'. Did you mean 'adam'?"),
        (["--optim", "lamb"], "install torch_optimizer and use 'torch_optimizer:Lamb'"),
        (["--encoder", "avhubert"], "ESPnet2's encoder 'avhubert' is not supported; use 'conformer'"),
        (["--decoder", "transformer_md"], "ESPnet2's decoder 'transformer_md' is not supported; use 'transformer'"),
        (["--use_deepspeed", "true"], "--use_deepspeed: use_deepspeed needs --deepspeed_config"),
        (["--also_train", "ctc"], "--also_train: needs --use_adapter true"),
        (
            ["--layer_decay", "0.9", "--scheduler", "onecyclelr"],
            "--layer_decay: can't be used with --scheduler onecyclelr",
        ),
        (
            ["--layer_decay", "0.9", "--scheduler", "deepspeedwarmuplr", "--scheduler_conf", "warmup_max_lr=0.1"],
            "--layer_decay: can't be used with --scheduler deepspeedwarmuplr",
        ),
        (["--adapter_conf", "rnk=3"], "--adapter_conf: rnk: the adapter 'lora' has no key 'rnk'. Did you mean 'rank'?"),
        (["--adapter_conf", "rank=0"], "--adapter_conf: rank: must be between 1 and 10000, found 0"),
        (["--save_strategy", "adapter_only"], "--save_strategy: needs --use_adapter true"),
        (["--iterator_type", "chunk"], "'chunk' of ESPnet2 is not supported; use 'sequence'"),
        (["--batch_type", "catbel"], "'catbel' of ESPnet2 is not supported"),
        (["--token_type", "hugging_fac"], "Did you mean 'hugging_face'?"),
        (["--ctc_conf", "ctc_type=warpctc"], "ctc_type: expects builtin | builtin2 | gtnctc | brctc, found 'warpctc'"),
        (
            ["--ctc_conf", "reduce=false"],
            "--ctc_conf: reduce: false gives one loss per utterance, which only --model",
        ),
        (["--model", "maskctc"], "--model: maskctc and --decoder mlm belong together, found --decoder transformer"),
        (["--decoder", "mlm"], "needs --model maskctc"),
        (["--model_conf", "aux_ctc={3: lid}"], "aux_ctc uses the text 'lid', which is not in --aux_ctc_tasks"),
        (["--model_conf", "aux_ctc={3: lid}"], "names the layer 3, but encoder_conf interctc_layer_idx is []"),
        (
            ["--encoder_conf", "num_blcks=3"],
            "the encoder 'conformer' has no key 'num_blcks'. Did you mean 'num_blocks'?",
        ),
        (["--encoder_conf", "num_blocks=many"], "--encoder_conf num_blocks: expects int, found 'many' (text)"),
        (["--encoder_conf", "input_size=80"], "the encoder 'conformer' has no key 'input_size'"),
        (["--batch_size", "0"], "--batch_size: must be at least 1, found 0"),
        (["--device", "cpu", "--ngpu", "1"], "--ngpu: 1 asks for accelerators, but device is cpu. Use --nproc"),
        (
            ["--nproc", "2", "--ngpu", "1"],
            "--nproc: is for the CPU only: with --ngpu N, one process is started per device",
        ),
        (["--elastic", "4:2"], "--elastic: expects MIN:MAX with 1 <= MIN <= MAX, such as 2:4, found '4:2'"),
        (["--use_amp", "true", "--train_dtype", "O2"], "--use_amp: can't be used with train_dtype O2"),
        (
            ["--decoder", "none"],
            "--decoder: is null, so the model is trained with CTC only: use --model_conf ctc_weight=1.0, found 0.5",
        ),
        (["--max_batch_size", "2", "--min_batch_size", "3"], "--max_batch_size: 2 is below min_batch_size, which is 3"),
        (["--write_collected_feats", "true"], "--write_collected_feats: needs --collect_stats true"),
        (
            ["--exclude_weight_decay_conf", "bias_weight_decay=true"],
            "--exclude_weight_decay_conf: needs --exclude_weight_decay true",
        ),
        (
            ["--exclude_weight_decay", "true", "--exclude_weight_decay_conf", "bias_weight_decy=true"],
            "--exclude_weight_decay_conf: there is no key 'bias_weight_decy'. Did you mean 'bias_weight_decay'?",
        ),
        (
            ["--exclude_weight_decay", "true", "--exclude_weight_decay_conf", "keys=embed"],
            "--exclude_weight_decay_conf: keys expects a list of parts of parameter names, found 'embed'",
        ),
        (["--grad_clip", "-1"], "--grad_clip: must be above 0, found -1"),
        (["--train_data_path_and_name_and_type", "t,text,text"], "--token_type: bpe needs --bpemodel"),
        (["--frontend", "none"], "--frontend: is null, so --input_size must give"),
        (["--normalize", "global_mvn"], "--normalize: global_mvn needs --normalize_conf stats_file=FILE"),
        (["--scheduler", "steplr"], "--scheduler_conf: the scheduler 'steplr' needs the key 'step_size'"),
        (
            ["--fold_length", "800", "--train_shape_file", "a", "b"],
            "--fold_length: has 1 numbers, but there are 2 of train_shape_file",
        ),
    ],
)
def test_mistakes(argv: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(*argv)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "given",
    ["--ctc_conf ctc_type=builtin2", "--model_conf lang_token_id=3", "--model_conf autocast_frontend=true",
     "--grad_clip inf", "--exclude_weight_decay true --exclude_weight_decay_conf normalization_weight_decay=true"],
)  # fmt: skip
def test_espnet2s_values_that_are_no_default(given: str) -> None:
    parse(*given.split())


def test_the_file_of_deepspeed_alone_has_no_effect() -> None:
    assert parse("--deepspeed_config", "conf/deepspeed.json").deepspeed_config == "conf/deepspeed.json"


def test_conflicts_are_told_with_the_rest_but_not_for_options_that_are_wrong_anyway() -> None:
    with pytest.raises(UserError) as caught:
        parse("--decoder", "transformr", "--batch_size", "0", "--device", "cpu", "--ngpu", "1")
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [
        "3 mistakes:",
        "  --decoder",
        "  --batch_size",
        "  --ngpu",
    ]


def test_all_mistakes_together() -> None:
    with pytest.raises(UserError) as caught:
        parse(
            "--batch-size", "3", "--optim", "adm", "--max_epoch", "x", "--encoder_conf", "a=1", "--sharded_ddp", "true"
        )
    assert str(caught.value).startswith("5 mistakes:")


@pytest.mark.parametrize(
    ("file", "schema", "argv"),
    [
        ("espnet2_print_config.yaml", AsrTrainConfig, []),
        ("espnet2_print_config_adam.yaml", AsrTrainConfig, ["--optim", "adam"]),
        ("espnet2_print_config_reducelr.yaml", AsrTrainConfig, ["--scheduler", "ReduceLROnPlateau"]),
        ("espnet2_print_config_conformer.yaml", AsrTrainConfig, MODEL),
        (
            "espnet2_print_config_recipe.yaml",
            AsrTrainConfig,
            [*MODEL, "--optim", "adam", "--scheduler", "warmuplr", "--specaug", "specaug"],
        ),
        ("espnet2_print_config_lm.yaml", LmTrainConfig, []),
    ],
)
def test_same_keys_defaults_and_order_as_espnet2(
    reference: Path, capsys: pytest.CaptureFixture[str], file: str, schema: type[Any], argv: list[str]
) -> None:
    theirs = yaml.safe_load((reference / file).read_text(encoding="utf-8"))
    ours = yaml.safe_load(printed(schema, argv, capsys))
    assert [key for key in ours if key in theirs] == list(theirs)
    for key, value in theirs.items():
        if isinstance(value, dict):
            assert {name: ours[key].get(name, "missing") for name in value} == value, key
        else:
            assert ours[key] == value, key


@pytest.mark.parametrize(
    ("schema", "argv"),
    [
        (AsrTrainConfig, []),
        (AsrTrainConfig, [*MODEL, "--optim", "adamw", "--scheduler", "warmuplr", "--specaug", "specaug"]),
        (AsrTrainConfig, ["--encoder", "e_branchformer", "--decoder", "rnn", "--preencoder", "linear"]),
        (AsrTrainConfig, ["--encoder", "branchformer", "--normalize", "global_mvn"]),
        (AsrTrainConfig, ["--encoder", "vgg_rnn", "--grad_clip_type", "inf", "--token_list", "[a, 'no', 1e3]"]),
        (AsrTrainConfig, ["--encoder", "transformer", "--scheduler", "onecyclelr", "--optim", "rprop"]),
        (LmTrainConfig, []),
        (LmTrainConfig, ["--lm", "transformer", "--token_list", "tokens.txt"]),
        *((LmTrainConfig, ["--optim", name]) for name in choices.OPTIMIZERS.names()),
        *((LmTrainConfig, ["--scheduler", name]) for name in choices.SCHEDULERS.names()),
    ],
)
def test_printed_config_prints_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], schema: type[Any], argv: list[str]
) -> None:
    first = printed(schema, argv, capsys)
    path = tmp_path / "config.yaml"
    path.write_text(first, encoding="utf-8")
    assert printed(schema, ["--config", str(path)], capsys) == first
    assert dump_config(load_training_config(schema, path)) == first


@pytest.mark.parametrize(
    ("schema", "key", "other"),
    [
        (AsrTrainConfig, "preprocessor_conf.text_length_warning_thres", 50),
        (StTrainConfig, "preprocessor_conf.audio_pad_value", 1.5),
        (StTrainConfig, "preprocessor_conf.text_name", ["text", "src_text"]),
        (LmTrainConfig, "model_conf.length_normalized_loss", False),
        (LmTrainConfig, "optim_conf.foreach", True),
    ],
)
def test_config_of_a_run_has_no_keys_that_releases_of_espnet2_reject(
    tmp_path: Path, schema: type[Any], key: str, other: object
) -> None:
    """ESPnet2 gives every key of a `_conf` to its class, so it could not load the model."""
    option, name = key.split(".")
    argv = MODEL if schema is not LmTrainConfig else ["--optim", "sgd"]
    config = parse_training(schema, argv, prog="t")
    kept = yaml.safe_load(dump_run_config(config))
    assert name not in kept[option]
    assert kept[option].keys() < getattr(config, option).keys()
    path = tmp_path / "config.yaml"
    path.write_text(dump_run_config(config), encoding="utf-8")
    assert dump_config(load_training_config(schema, path)) == dump_config(config)
    changed = parse_training(schema, [*argv, f"--{option}", f"{name}={other}"], prog="t")
    assert yaml.safe_load(dump_run_config(changed))[option][name] == other


@pytest.mark.parametrize("decoder", ["transducer", "stateless"])
def test_config_of_a_run_leaves_out_what_espnet2_gives_to_its_transducers(decoder: str) -> None:
    """ESPnet2 fails if decoder_conf has embed_pad too."""
    config = parse_training(AsrTrainConfig, ["--decoder", decoder], prog="t")
    assert config.decoder_conf["embed_pad"] == 0
    assert "embed_pad" not in yaml.safe_load(dump_run_config(config))["decoder_conf"]


@pytest.mark.parametrize(
    "text",
    [
        "preprocessor_conf: {text_length_warning_thres: 500}",
        "scheduler: cycliclr\nscheduler_conf: {base_lr: 0.1, max_lr: 0.2, scale_fn: null}",
        "scheduler: warmupreducelronplateau\nscheduler_conf: {warmup_steps: 25000, verbose: false}",
        "scheduler: steplr\nscheduler_conf: {step_size: 3, verbose: false}",
        "encoder: beats\nencoder_conf: {is_pretraining: false}\nfrontend: null\nnormalize: null",
        "model: maskctc\nmodel_conf: {joint_network: null}\ndecoder: mlm",
    ],
)
def test_keys_that_espnet2_prints_are_taken(tmp_path: Path, text: str) -> None:
    """Some belong to its own classes, some to older releases of torch."""
    path = tmp_path / "printed.yaml"
    path.write_text("decoder: rnn\n" * ("decoder" not in text) + text + "\n")
    parse_training(AsrTrainConfig, ["--config", str(path)], prog="t")


@pytest.mark.parametrize(
    "folder", ["conformer", "transformer", "e_branchformer", "branchformer", "vgg_rnn", "ctc_only"]
)
def test_espnet2_models_load(golden: Path, folder: str) -> None:
    config = load_training_config(AsrTrainConfig, golden / "espnet2" / folder / "config.yaml")
    given = yaml.safe_load((golden / "espnet2" / folder / "config.yaml").read_text(encoding="utf-8"))
    assert config.token_list == given["token_list"]
    assert config.encoder_conf["num_blocks" if "former" in config.encoder else "num_layers"]


def test_a_config_that_espnet2_saved_loads(golden: Path) -> None:
    folder = golden / "espnet2" / "an4_trained"
    asr = load_training_config(AsrTrainConfig, folder / "asr_config.yaml")
    assert (str(asr.normalize_conf["stats_file"]), asr.keep_nbest_models) == (
        "exp/stats_an4/train/feats_stats.npz",
        [1],
    )
    lm = load_training_config(LmTrainConfig, folder / "lm_config.yaml")
    assert (lm.lm, lm.lm_conf["unit"]) == ("seq_rnn", 128)


def test_keys_that_espnet2_notes_are_no_options(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("version: '1'\nconfig: other.yaml\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        parse("--config", str(path))
    assert f"{path}:1: unknown option 'version'" in str(caught.value)
    assert f"{path}:2: unknown option 'config'" in str(caught.value)


def test_how_a_model_was_trained_does_not_keep_it_from_being_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("encoder: conformer\nsharded_ddp: true\npretrain_key: []\ntoken_list: [a, b]\n", encoding="utf-8")
    config = load_training_config(AsrTrainConfig, path)
    assert (config.encoder, config.token_list, config.sharded_ddp) == ("conformer", ["a", "b"], False)
    assert "unknown option 'pretrain_key'" in caplog.text
    assert "use --fsdp true" in caplog.text
    path.write_text("encoder: conformer\nencoder_conf: {num_blcks: 3}\n", encoding="utf-8")
    with pytest.raises(UserError, match="num_blcks"):
        load_training_config(AsrTrainConfig, path)


def test_a_models_file_may_not_name_a_class_to_import(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("max_epoch: 3\nencoder: evil.module:Encoder\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_training_config(AsrTrainConfig, path)
    assert str(caught.value) == (
        f"{path}:2: encoder names the class 'evil.module:Encoder', and loading the model would run its code. "
        "If you trust it, use --allow_import true"
    )
    with pytest.raises(UserError, match="there is no module 'evil'"):
        load_training_config(AsrTrainConfig, path, allow_import=True)


def _targets() -> list[tuple[str, frozenset[str]]]:
    registries = [item for item in vars(choices).values() if isinstance(item, Registry)]
    return [(registry.target(name), registry._supplied) for registry in registries for name in registry.names()]


LIGHTNING = """\
encoder: conformer
lightning_conf:
    accelerator: gpu
    precision: bf16-mixed
    max_epochs: 70
    accumulate_grad_batches: 2
    check_val_every_n_epoch: 1
    gradient_clip_val: 1.0
    strategy: ddp
    best_model_criterion:
    -   - valid/acc
        - max
        - 10
    -   - step
        - max
        - 4
"""


def test_options_of_the_lightning_trainer(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(LIGHTNING)
    argv = ["--config", str(path), "--decoder", "transformer", "--token_list", "[<blank>, <unk>, a, <sos/eos>]"]
    config = parse_training(AsrTrainConfig, argv, prog="t")
    assert (config.max_epoch, config.accum_grad, config.grad_clip, config.use_amp) == (70, 2, 1.0, True)
    assert [list(item) for item in config.best_model_criterion] == [["valid", "acc", "max"]]
    assert config.keep_nbest_models == [10]
    path.write_text(LIGHTNING + "    val_check_interval: 1000\n")
    with pytest.raises(UserError, match=r"a\.yaml:\d+: lightning_conf\.val_check_interval: 1000 has no translation"):
        parse_training(AsrTrainConfig, argv, prog="t")


@pytest.mark.parametrize(("target", "supplied"), _targets(), ids=lambda item: item if isinstance(item, str) else "")
def test_reading_a_signature_from_source_equals_importing_it(target: str, supplied: frozenset[str]) -> None:
    inspected = signature_from_class(import_class(target), supplied)
    try:
        read = signature_from_source(target, supplied)
    except _Unreadable:
        read = inspected
    assert list(read) == list(inspected)
    for name, parameter in inspected.items():
        assert read[name].default == parameter.default or (parameter.default != parameter.default), name
        assert repr(read[name].type) == repr(parameter.type), name
        assert read[name].range == parameter.range, name


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_training(AsrTrainConfig, ["--help"], prog="tympan asr_train")
    text = capsys.readouterr().out
    for field in dataclasses.fields(AsrTrainConfig):
        assert f"--{field.name} " in text
    assert "conformer, transformer, e_branchformer" in " ".join(text.split())


def test_print_config_does_not_import_torch() -> None:
    code = (
        "import sys; from tympan.config import parse_training; from tympan.config.asr import AsrTrainConfig\n"
        "try: parse_training(AsrTrainConfig, sys.argv[1:], prog='t')\n"
        "finally: assert 'torch' not in sys.modules"
    )
    argv = [*MODEL, "--optim", "adam", "--scheduler", "warmuplr", "--specaug", "specaug", "--print_config"]
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cnn_module_kernel: 31" in done.stdout
