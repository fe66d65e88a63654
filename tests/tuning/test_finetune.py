"""`tympan finetune` as a user runs it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
import yaml

import tympan
from tympan.bin.main import cli
from tympan.errors import UserError
from tympan.models.weights import load_weights
from tympan.runtime.child import code_command
from tympan.tuning.run import Finetuned

COMMON: dict[str, Any] = {
    "num_workers": 0,
    "max_epoch": 2,
    "asr_args": "--use_tensorboard false --use_matplotlib false",
}


def finetune(corpus: Path, output: Path, *, data: str = "", **options: Any) -> Finetuned:
    given = {"train_dir": corpus / data / "train", "dev_dir": corpus / data / "valid", **COMMON, **options}
    return tympan.finetune(corpus / "exp", output_dir=output, **given)


def log_of(output: Path) -> str:
    return (output / "finetune.log").read_text(encoding="utf-8") + (output / "train" / "train.log").read_text("utf-8")


def test_full_training_writes_model_report_and_texts(corpus: Path, tmp_path: Path) -> None:
    done = finetune(corpus, tmp_path / "out", keep_dir=corpus / "valid", lr=0.003)
    assert set(done.results) == {"dev", "keep"}
    assert done.summary.splitlines()[-1].endswith(f"tympan transcribe {tmp_path / 'out' / 'model'} AUDIO")
    report = (tmp_path / "out" / "report.md").read_text()
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    for name, result in done.results.items():
        for when, scored in (("before", result.before), ("after", result.after)):
            hypotheses = tmp_path / "out" / "decode" / when / name / "text"
            assert hypotheses.read_text().count("\n") == 4
            assert stored["sets"][name][when] == scored.total.error_rate
        assert stored["sets"][name]["p"] == result.comparison.p_value
        assert f"| {name} | 4 | {result.before.total.error_rate:.1f} | {result.after.total.error_rate:.1f} |" in report
        assert (tmp_path / "out" / f"report_{name}.html").stat().st_size > 1000
    assert result.before.total.error_rate == tympan.evaluate(corpus / "exp", corpus / "valid").total.error_rate
    assert result.after.total.error_rate == tympan.evaluate(done.model, corpus / "valid").total.error_rate
    old, new = (
        load_weights(tmp_path / "out" / "base" / "model.safetensors"),
        load_weights(done.model / "model.safetensors"),
    )
    assert all(not torch.equal(old[name], new[name]) for name in old if name.endswith("weight") and "norm" not in name)


def test_an_extended_token_list_is_learned(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finetune(corpus, out, data="new", extend_vocab=True)
    log = log_of(out)
    assert "1 tokens of the text are not in the token list" in log
    assert ": ç (" in log
    before, start = (
        yaml.safe_load((out / name / "config.yaml").read_text())["token_list"] for name in ("base", "start")
    )
    assert start == [*before[:-1], "ç", "<sos/eos>"]
    old, new = (load_weights(out / name / "model.safetensors") for name in ("base", "start"))
    rows = {"ctc.ctc_lo.weight", "ctc.ctc_lo.bias", "decoder.embed.0.weight", "decoder.output_layer.weight",
            "decoder.output_layer.bias"}  # fmt: skip
    for name, tensor in old.items():
        if name not in rows:
            assert torch.equal(new[name], tensor)
            continue
        kept = torch.tensor([start.index(token) for token in before])
        assert torch.equal(new[name][kept], tensor)
        assert torch.equal(new[name][start.index("ç")], tensor[before.index("c")])
    assert yaml.safe_load((out / "model" / "config.yaml").read_text())["token_list"] == start


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_in_the_same_directory_is_rejected(corpus: Path, tmp_path: Path, resume: bool) -> None:
    """The first one has not begun to train: its folders were removed by the second."""
    out = tmp_path / "out"
    (out / "base").mkdir(parents=True)
    (out / "finetune.log").write_text("")
    hold = (
        "import sys\nfrom pathlib import Path\nfrom tympan.runtime.lock import directory_lock\n"
        "with directory_lock(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [*code_command(hold), str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            UserError, match=rf"another run \(process {holder.pid} .*or give this run another --output_dir"
        ):
            finetune(corpus, out, resume=resume)
        assert (out / "base").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"asr_args": '"open'}, "--asr_args: no closing quotation in '\"open'"),
        ({"bpemodel": "/dev/zero"}, "--bpemodel /dev/zero: is a device, but a file is expected"),
        ({"bpemodel": __file__}, "--bpemodel: belongs to --token_list, which is missing"),
        ({"token_list": "/nope"}, "--token_list /nope: no such file"),
        ({"train_config": "/nope"}, "--train_config /nope: no such file"),
        ({"decode_config": "/nope"}, "--decode_config /nope: no such file"),
        ({"asr_args": "--grad_clip nan"}, "--grad_clip: must be above 0, found nan"),
    ],
)
def test_mistakes_are_found_before_anything_is_decoded(
    corpus: Path, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        finetune(corpus, tmp_path / "out", **options)
    assert not (tmp_path / "out" / "decode").exists()


@pytest.mark.parametrize(
    ("method", "trained"),
    [
        ("decoder", ("decoder.", "ctc.")),
        ("top_n", ("decoder.", "ctc.", "encoder.encoders.1.", "encoder.after_norm.")),
    ],
)
def test_methods_that_freeze(corpus: Path, tmp_path: Path, method: str, trained: tuple[str, ...]) -> None:
    big = yaml.safe_load((corpus / "train.yaml").read_text())
    big["encoder_conf"]["num_blocks"] = 2
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(big))
    tympan.train("asr", tmp_path / "two.yaml", output_dir=tmp_path / "two", max_epoch=1)
    options = {**COMMON, "max_epoch": 1, "train_dir": corpus / "train", "dev_dir": corpus / "valid", "top_n": 1}
    tympan.finetune(tmp_path / "two", output_dir=tmp_path / "out", method=method, **options)
    old = load_weights(tmp_path / "out" / "base" / "model.safetensors")
    new = load_weights(tmp_path / "out" / "train" / "1epoch.pth")
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed
    assert all(name.startswith(trained) for name in changed)
    assert all(any(name.startswith(prefix) for name in changed) for prefix in trained)


def test_lora_saves_only_adapters_and_the_packed_model_merges_them(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = finetune(corpus, out, method="lora", adapter_conf={"rank": 2}, also_train=["ctc"], lr=0.01)
    saved = torch.load(out / "train" / "valid.acc.best.pth", weights_only=True)
    assert {name for name in saved if "lora_" not in name} == {"ctc.ctc_lo.weight", "ctc.ctc_lo.bias"}
    checkpoint = torch.load(out / "train" / "checkpoint.pth", weights_only=True)
    assert len(checkpoint["optimizers"][0]["state"]) == len(saved)
    parts = [name for name in saved if "lora_" in name]
    assert all(f"{number:,} of them trainable" in log_of(out) for number in [sum(saved[n].numel() for n in saved)])
    base = load_weights(out / "base" / "model.safetensors")
    merged = load_weights(done.model / "model.safetensors")
    assert merged.keys() == base.keys()
    for name in base:
        if f"{name.removesuffix('.weight')}.lora_A" in parts:
            layer = name.removesuffix(".weight")
            update = saved[f"{layer}.lora_B"] @ saved[f"{layer}.lora_A"] * 16 / 2
            torch.testing.assert_close(merged[name], base[name] + update, atol=1e-6, rtol=1e-5)
        elif name not in saved:
            assert torch.equal(merged[name], base[name])


@pytest.mark.parametrize("method", ["lora", "houlsby"])
def test_an_adapter_at_decode_time_equals_the_packed_model(corpus: Path, tmp_path: Path, method: str) -> None:
    out = tmp_path / "out"
    done = finetune(corpus, out, method=method, lr=0.02)
    audio = str(corpus / "valid" / "valid000.wav")
    wanted = tympan.load(done.model).encode(audio)
    alone = tmp_path / "adapter"
    assert cli(["pack", str(alone), "--model", str(out / "train"), "--merge", "false"]) == 0
    size = sum(file.stat().st_size for file in alone.iterdir())
    assert size < (done.model / "model.safetensors").stat().st_size
    plain = tympan.load(out / "base").encode(audio)
    for adapter in (out / "train", out / "train" / "valid.acc.best.pth", alone):
        found = tympan.load(out / "base", adapter=adapter).encode(audio)
        torch.testing.assert_close(found.out, wanted.out, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(found.out, plain.out, atol=1e-3)
    merged = tmp_path / "merged"
    assert cli(["pack", str(merged), "--model", str(out / "base"), "--adapter", str(alone), "--merge"]) == 0
    torch.testing.assert_close(tympan.load(merged).encode(audio).out, wanted.out, atol=1e-5, rtol=1e-5)
    assert cli(["transcribe", str(out / "base"), audio, "--adapter", str(alone)]) == 0


def test_replay_mixes_old_data_by_ratio(corpus: Path, tmp_path: Path) -> None:
    finetune(corpus, tmp_path / "out", data="new", extend_vocab=True, replay_dir=corpus / "train", replay_ratio=0.25)
    names = [line.split()[0] for line in (tmp_path / "out" / "data" / "train" / "text").read_text().splitlines()]
    assert len(names) == 20
    assert sum(name.startswith("replay-") for name in names) == 4


def test_an_interrupted_run_is_continued(corpus: Path, tmp_path: Path) -> None:
    done = finetune(corpus, tmp_path / "out")
    (tmp_path / "out" / "report.md").unlink()
    with pytest.raises(UserError, match="not empty; choose another --output_dir, or continue the run with --resume"):
        finetune(corpus, tmp_path / "out")
    again = finetune(corpus, tmp_path / "out", resume=True)
    assert again.results["dev"].after.total == done.results["dev"].after.total


def test_a_replaced_token_list_keeps_the_rows_of_common_tokens(corpus: Path, tmp_path: Path) -> None:
    tokens = ["<blank>", "<unk>", "c", "b", "d", "a", "<sos/eos>"]
    (tmp_path / "tokens.txt").write_text("\n".join(tokens) + "\n")
    finetune(corpus, tmp_path / "out", token_list=tmp_path / "tokens.txt")
    old, new = (load_weights(tmp_path / "out" / name / "model.safetensors") for name in ("base", "start"))
    before = yaml.safe_load((tmp_path / "out" / "base" / "config.yaml").read_text())["token_list"]
    for token in set(before) & set(tokens):
        name = "ctc.ctc_lo.weight"
        assert torch.equal(new[name][tokens.index(token)], old[name][before.index(token)])
    (tmp_path / "other.txt").write_text("<blank>\n<unk>\nX\nY\n<sos/eos>\n")
    with pytest.raises(UserError, match=r"of 5 tokens, only <blank>, <unk>, <sos/eos> can be mapped"):
        finetune(corpus, tmp_path / "out2", token_list=tmp_path / "other.txt")


def test_bad_input_is_reported(corpus: Path, tmp_path: Path) -> None:
    samples, _ = soundfile.read(corpus / "train" / "train000.wav")
    soundfile.write(tmp_path / "a.wav", samples, 16000)
    (tmp_path / "wav.scp").write_text(f"a {tmp_path / 'a.wav'}\n")
    (tmp_path / "text").write_text("a abc\n")
    with pytest.raises(
        UserError, match=r"--train_dir .*: the model takes audio of 8000 Hz, found 1 recordings of 16000"
    ):
        finetune(corpus, tmp_path / "rate", train_dir=tmp_path)
    with pytest.raises(UserError, match=r"no layer's name ends in nothing; linear layers .* linear_q"):
        finetune(corpus, tmp_path / "lora", method="lora", adapter_conf={"target_modules": ["nothing"]})
    assert not (tmp_path / "lora" / "decode").exists()
    with pytest.raises(UserError, match=r"--top_n 7: the encoder has 1 layers"):
        finetune(corpus, tmp_path / "top", method="top_n", top_n=7)
    with pytest.raises(UserError, match=r"--also_train ctcc: no weight has this name or prefix; the model has ctc"):
        finetune(corpus, tmp_path / "also", method="lora", also_train=["ctcc"])
    with pytest.raises(UserError, match=r"expects full \| lora \| houlsby \| decoder \| top_n, found 'everything'"):
        finetune(corpus, tmp_path / "method", method="everything")
    shutil.copytree(corpus / "train", tmp_path / "upper")
    (tmp_path / "upper" / "text").write_text((corpus / "train" / "text").read_text().upper().replace("TRAIN", "train"))
    with pytest.raises(UserError, match=r"3 tokens of the text are not in .* 100\.0 % .* \(upper or lower case"):
        finetune(corpus, tmp_path / "case", train_dir=tmp_path / "upper")
    (tmp_path / "adapter").mkdir()
    with pytest.raises(
        UserError, match=r"expects a file of adapter weights, or a folder with one of adapter\.safetensors"
    ):
        tympan.load(corpus / "exp", adapter=tmp_path / "adapter")
    with pytest.raises(UserError, match="holds no separate adapters"):
        tympan.load(corpus / "exp", adapter=corpus / "exp")


def test_overlap_little_data_and_unknown_tokens_are_warned_of(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finetune(corpus, out, train_dir=corpus / "new" / "train", dev_dir=corpus / "train")
    log = log_of(out)
    assert "16 recordings of the dev data are also in the training data" in log
    assert "the training data has only 6 s of speech. This is too little" in log
    assert "They become <unk>; --extend_vocab true adds them" in log


def test_layer_decay_and_unfreezing_reach_the_training(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finetune(corpus, out, layer_decay=0.5, unfreeze_interval=1, lr=0.01)
    base = load_weights(out / "base" / "model.safetensors")
    first, second = (load_weights(out / "train" / f"{epoch}epoch.pth") for epoch in (1, 2))
    encoder = [name for name in base if name.startswith("encoder.")]
    assert all(torch.equal(base[name], first[name]) for name in encoder), "statistics of batch norms, too"
    assert not torch.equal(base["ctc.ctc_lo.weight"], first["ctc.ctc_lo.weight"])
    layer, below = "encoder.encoders.0.feed_forward.w_1.weight", "encoder.embed.conv.0.weight"
    assert not torch.equal(second[layer], base[layer])
    assert torch.equal(second[below], base[below])
    assert "epoch 2: 1 of 1 encoder layers are trained" in log_of(out)
    rates = [float(rate) for rate in re.findall(r"optim0_lr\d=([\d.e+-]+)", log_of(out).splitlines()[-1])]
    assert not rates or max(rates) > min(rates)
