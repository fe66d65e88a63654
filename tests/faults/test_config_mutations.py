"""Random values for options and parameters: one message, or a model that trains. Never a traceback, nan or a hang."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from tests.faults.config_families import FAMILIES, REGISTRIES, Family, Materials, part
from tests.faults.config_mutations import WEIGHTS, make_trial
from tympan.config.signature import REQUIRED

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

TRIALS = int(os.environ.get("TYMPAN_TRIALS", "200"))
SEED = int(os.environ.get("TYMPAN_SEED", "0"))


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Materials]:
    made = Materials.make(tmp_path_factory.mktemp("materials"))
    yield made
    made.server.close()


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    level = logging.getLogger().level
    logging.getLogger().setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.getLogger().setLevel(level)


def faults(
    materials: Materials,
    numbers: range,
    *,
    families: Mapping[str, Family] = FAMILIES,
    weights: Mapping[str, float] = WEIGHTS,
) -> list[str]:
    found = []
    for number in numbers:
        trial = make_trial(number, materials.folder, families=families, weights=weights)
        outcome, what = trial.run(materials)
        if outcome not in ("rejected", "accepted"):
            found.append(f"trial {number} ({', '.join(map(str, trial.changes))}): {outcome}: {what}")
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_change_every_family_trains(materials: Materials, family: str) -> None:
    """Otherwise every mutation would be rejected for another reason."""
    trial = make_trial(1, materials.folder, family=family, most_changes=0)
    assert trial.changes == []
    assert replace(trial, always_runs=False).run(materials) == ("accepted", "")


def test_random_values(materials: Materials) -> None:
    found = faults(materials, range(60))
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(10))
def test_many_random_values(materials: Materials, part: int) -> None:
    """2,000 configurations. `make soak` sets a larger number, and TYMPAN_SEED other values."""
    first = 1000 + SEED * 1_000_000 + part * TRIALS
    found = faults(materials, range(first, first + TRIALS))
    assert not found, "\n".join(found)


def test_every_family_is_drawn() -> None:
    assert set(WEIGHTS) == set(FAMILIES)


@pytest.mark.parametrize("kind", ["optim", "scheduler", "specaug", "adapter", "joint_net", "lm"])
def test_every_choice_has_the_values_that_it_needs(kind: str) -> None:
    """A valid configuration for a choice that somebody adds to the registry, too."""
    registry = REGISTRIES[kind]
    for name in registry.names():
        needed = {key for key, item in registry.parameters(name).items() if item.default is REQUIRED}
        assert needed <= set(part(kind, name)[f"{kind}_conf"]), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--input_size", "40"], "expects features (time, dim), but the data is audio"),
        (["--preencoder", "linear", "--preencoder_conf", "output_size=2"], "needs more than 2 values per frame"),
        (["--optim", "lbfgs", "--optim_conf", "line_search_fn=x"], "line_search_fn: must be null or strong_wolfe"),
        (["--optim", "lbfgs", "--layer_decay", "0.9"], "--optim lbfgs has the same options for all weights"),
        (["--frontend_conf", "fmin=7999.99999999999"], "must be at least 1 Hz below fmax, which is 8000 Hz here"),
        (["--token_type", "whisper_en"], "--token_type whisper_en needs no --token_list, or one of "),
        (["--preprocessor_conf", "fs=2"], "preprocessor_conf fs: '2' must be between 100 Hz and 1 MHz"),
        (["--aux_ctc_tasks", "[tone]"], "is needed for tone (which aux_ctc_tasks or another option names): PATH"),
        (["--optim", "rprop", "--optim_conf", "capturable=true"], "with lr=0.001, capturable=True: "),
        (["--optim", "adagrad", "--optim_conf", "differentiable=true"], "lr=0.001, differentiable=True: "),
        (["--model_conf", "lang_token_id=6"], "lang_token_id: must be below the number of tokens, which is 6"),
        (["--model_conf", "lang_token_id=-2"], "model_conf lang_token_id: must be between -1 and 1000000, found -2"),
        (["--init_param", "missing.pth"], "--init_param missing.pth: missing.pth: no such weights file"),
        (["--frontend_conf", "fs=latest"], "frontend_conf fs: 'latest' is not a sample rate"),
        (["--frontend_conf", "apply_stft=false"], "apply_stft: false expects spectra, but the data is audio"),
        (["--preprocessor_conf", "unk_symbol=<none>"], "preprocessor_conf unk_symbol"),
        (["--sync_batchnorm", "{}"], "--sync_batchnorm: expects true or false, found '{}'"),
        (["--encoder", "dynamic_conv", "--encoder_conf", "null", "output_size=15"], "output_size 15 must be a"),
        (["--speed_perturb", "{}"], "--speed_perturb: expects numbers, found '{}'"),
        (["--use_preprocessor", "false"], "converting text to token ids needs use_preprocessor true, a token_type and"),
        (["--valid_batch_type", "folded"], "batch_type or valid_batch_type folded (the default) needs one fold_length"),
        (["--train_shape_file", "[missing, 5]"], "--train_shape_file missing: no such file; --collect_stats true"),
        (["--encoder", "longformer"], "encoder_conf: attention_windows has 6 values, but num_blocks is 2: "),
        (["--encoder", "lightweight_conv", "--encoder_conf", "null", "num_blocks=2"], "encoder_conf: conv_kernel_le"),
        (["--preprocessor_conf", "text_name=dot"], "preprocessor_conf text_name must be the name of this data"),
        (["--encoder_conf", "cnn_module_kernel=8"], "must be odd, found 8 ("),
        (["--noise_db_range", "nan"], "noise_db_range: expected LOW_HIGH in dB such as '13_15', between -200 and 200"),
        (["--optim", "lbfgs", "--loss_scale", "7"], "lbfgs can't be used with loss scaling: remove --loss_scale"),
        (["--keep_nbest_models", "[]"], "--keep_nbest_models: needs at least one number"),
    ],
)  # fmt: skip
def test_mistakes_that_show_only_when_a_model_is_built(materials: Materials, options: list[str], message: str) -> None:
    config = ["--config", str(materials.folder / "base.yaml"), "--output_dir", str(materials.folder / "built")]
    ended = materials.server.run(["asr_train", *config, *options], fresh=False)
    assert (ended.code, message in ended.output) == (2, True), ended.output[-1000:]
    assert "Traceback" not in ended.output


@pytest.mark.parametrize(
    ("family", "number", "name", "key", "value", "message"),
    [
        ("whisper", 1, "encoder_conf", "use_specaug", True, "encoder_conf use_specaug: specaug_conf does not fit: "),
        (
            "hybrid",
            24000379,
            "input_size",
            None,
            3,
            "its convolutions leave none (input_size, n_mels of frontend_conf, ",
        ),
        ("fine_tuning", 3007299, "batch_s", None, 1e-320, "--batch_s: must be 0 or at least 1e-37 away from 0"),
        ("fine_tuning", 1, "batch_s", None, 1e-30, "--batch_s 1e-30 (--batch_bins is this in samples or frames): "),
        ("fine_tuning", 1, "batch_s", None, 0.001, "--batch_s 0.001 (--batch_bins is this in samples or frames): "),
        ("whisper", 1, "token_type", None, "bpe", "token_list is missing, and --token_type bpe needs one: "),
        (
            "pretrained",
            2006355,
            "encoder_conf",
            "w2v_url",
            "x" * 300,
            "encoder_conf: " + "x" * 300 + ": File name too long",
        ),
        ("pretrained", 3001275, "encoder_conf", "hubert_url", "/", "encoder_conf: /: no such file"),
        (
            "translation",
            3003210,
            "src_token_type",
            None,
            "hugging_face",
            "source language (src_token_type, src_token_l",
        ),
        (
            "pretrained",
            3010674,
            "val_scheduler_criterion",
            None,
            ["train", "tanh"],
            "--val_scheduler_criterion train t",
        ),
        (
            "adapters",
            4002218,
            "encoder_conf",
            "positionwise_layer_type",
            "conv1d",
            "_conf positionwise_layer_type linear",
        ),
        ("transducer", 4006705, "model_conf", "transducer_multi_blank_durations", [8, 8], "each duration only once"),
        ("transducer", 1, "use_adapter", None, True, ". Name some of them, or set --use_adapter false"),
        (
            "translation",
            27000568,
            "hier_encoder",
            None,
            "vgg_rnn",
            "extra_mt_encoder and hier_encoder have one decoder",
        ),
        (
            "translation",
            71005321,
            "extra_asr_decoder",
            None,
            "dynamic_conv",
            "extra_asr_decoder_conf: conv_kernel_length has 6 values, but num_blocks is 1",
        ),
        (
            "translation",
            51004834,
            "hier_encoder",
            None,
            "contextual_block_conformer",
            "(input_layer or subsample of encoder_conf or of hier_encoder_conf, ",
        ),
    ],
)
def test_one_change_of_a_family_is_named(
    materials: Materials, family: str, number: int, name: str, key: str | None, value: object, message: str
) -> None:
    """`number` draws the valid configuration."""
    trial = make_trial(number, materials.folder, family=family if number == 1 else None, most_changes=0)
    assert trial.family.name == family
    config = {**trial.config, name: value if key is None else {**trial.config.get(name, {}), key: value}}
    outcome, what = replace(trial, config=config, always_runs=False).run(materials)
    assert (outcome, message in what) == ("rejected", True), what


@pytest.mark.parametrize(
    ("option", "message"),
    [("test_dir", "no such data directory"), ("decode_config", "no such file"), ("adapter", "no such file")],
)
@pytest.mark.parametrize("name", ["missing", "x" * 300])
def test_a_path_that_does_not_exist_is_named_with_its_option(
    materials: Materials, option: str, message: str, name: str
) -> None:
    trial = make_trial(1, materials.folder, family="decoding" if option == "adapter" else "fine_tuning", most_changes=0)
    outcome, what = replace(trial, config={**trial.config, option: name}, always_runs=False).run(materials)
    messages = [message, "cannot be read: File name too long"] if len(name) > 255 else [message]
    assert (outcome, any(f"--{option} {name}: {said}" in what for said in messages)) == ("rejected", True), what
