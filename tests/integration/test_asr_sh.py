"""The commands of ESPnet2's asr.sh, stage by stage, with the arguments that it passes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from train_corpus import PYTHON, environment, make_corpus

import tympan
from tympan.bin.main import cli

TEXT_OPTIONS = ["--bpemodel", "none", "--token_type", "char", "--non_linguistic_symbols", "none"]
TEXT_OPTIONS += ["--cleaner", "none", "--g2p", "none"]
SHORT = {"batch_type": "folded", "batch_size": 4, "max_epoch": 1, "num_iters_per_epoch": 1, "keep_nbest_models": 1}
ASR = {
    **SHORT, "encoder": "vgg_rnn", "encoder_conf": {"num_layers": 1, "hidden_size": 2, "output_size": 2},
    "decoder": "rnn", "decoder_conf": {"hidden_size": 2}, "best_model_criterion": [["valid", "acc", "max"]],
    "scheduler": "reducelronplateau", "scheduler_conf": {"mode": "min", "factor": 0.5, "patience": 1},
    "val_scheduler_criterion": ["valid", "loss"],
}  # fmt: skip
LM = {
    **SHORT, "lm_conf": {"nlayers": 1, "unit": 2}, "patience": 1, "best_model_criterion": [["valid", "loss", "min"]],
}  # fmt: skip


def tympan_command(line: str, *more: str) -> None:
    words = [*line.split(), *more]
    assert cli(words) == 0, words


def tokenized(path: Path) -> list[str]:
    """A text as stage 13 tokenizes it, through standard input and output."""
    line = [*PYTHON, "tympan", "tokenize_text", "-f", "2-", "--input", "-", "--output", "-", "--cleaner", "none"]
    line += ["--token_type", "char", "--non_linguistic_symbols", "none", "--remove_non_linguistic_symbols", "true"]
    with path.open() as text:
        return subprocess.run(
            line, stdin=text, env=environment(), capture_output=True, text=True, check=True
        ).stdout.splitlines()


def collected(command: str, data: dict[str, str], keys: dict[str, Path], stats: Path) -> None:
    """Statistics of two jobs, joined, and the shapes of texts with the number of tokens (stages 6 and 10)."""
    jobs = [stats / "logdir" / f"stats.{number}" for number in (1, 2)]
    for number, job in enumerate(jobs):
        for side, path in keys.items():
            lines = path.read_text().splitlines(keepends=True)
            (stats / "logdir").mkdir(parents=True, exist_ok=True)
            (stats / "logdir" / f"{side}.{number}.scp").write_text("".join(lines[number::2]))
        shapes = [f"--{side}_shape_file={stats}/logdir/{side}.{number}.scp" for side in keys]
        triples = [f"--{side}_data_path_and_name_and_type={item}" for side in keys for item in data[side].split()]
        tympan_command(command, "--collect_stats", "true", *shapes, *triples, "--output_dir", str(job))
    inputs = [word for job in jobs for word in ("--input_dir", str(job))]
    tympan_command("aggregate_stats_dirs", *inputs, "--output_dir", str(stats))
    for side in keys:
        lines = (stats / side / "text_shape").read_text().splitlines()
        (stats / side / "text_shape.char").write_text("".join(f"{line},6\n" for line in lines))


def test_the_stages_of_asr_sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_corpus(tmp_path).parent)
    for name, config in (("asr", ASR), ("lm", LM)):
        Path(f"{name}.yaml").write_text(yaml.safe_dump(config))
    # Stage 5
    symbols = ["--add_symbol", "<blank>:0", "--add_symbol", "<unk>:1", "--add_symbol", "<sos/eos>:-1"]
    options = "--token_type char --input train/text --output tokens.txt --non_linguistic_symbols none --field 2-"
    tympan_command(f"tokenize_text {options} --cleaner none --g2p none --write_vocabulary true", *symbols)
    texts = [*TEXT_OPTIONS, "--token_list", "tokens.txt", "--use_preprocessor", "true"]
    # Stages 6 to 8
    lm = " ".join(["lm_train", *texts, "--config", "lm.yaml"])
    sides = {side: f"{side}/text,text,text" for side in ("train", "valid")}
    collected(lm, sides, {side: Path(side, "text") for side in sides}, Path("lm_stats"))
    shapes = " ".join(f"--{side}_shape_file lm_stats/{side}/text_shape.char" for side in sides)
    data = " ".join(f"--{side}_data_path_and_name_and_type {item}" for side, item in sides.items())
    tympan_command(f"{lm} --ngpu 0 {data} {shapes} --fold_length 150 --resume true --output_dir lm")
    options = "--data_path_and_name_and_type valid/text,text,text --train_config lm/config.yaml"
    tympan_command(f"lm_calc_perplexity --ngpu 0 {options} --model_file lm/valid.loss.ave.pth --output_dir ppl")
    assert float(Path("ppl/ppl").read_text()) > 1
    # Stages 10 and 11
    asr = " ".join(["asr_train", *texts, "--config", "asr.yaml", "--frontend_conf", "fs=8k"])
    sides = {side: f"{side}/wav.scp,speech,sound {side}/text,text,text" for side in sides}
    collected(asr, sides, {side: Path(side, "wav.scp") for side in sides}, Path("stats"))
    options = "--normalize=global_mvn --normalize_conf stats_file=stats/train/feats_stats.npz"
    for side, items in sides.items():
        for item, shape in zip(items.split(), ("speech_shape", "text_shape.char"), strict=True):
            options += f" --{side}_data_path_and_name_and_type {item} --{side}_shape_file stats/{side}/{shape}"
    lengths = "--fold_length 80000 --fold_length 150"
    tympan_command(f"{asr} --ngpu 0 {lengths} {options} --resume true --ignore_init_mismatch false --output_dir exp")
    # Stage 12
    options = "--asr_train_config exp/config.yaml --asr_model_file exp/valid.acc.ave.pth"
    options += " --lm_train_config lm/config.yaml --lm_file lm/valid.loss.ave.pth"
    data = "--data_path_and_name_and_type valid/wav.scp,speech,sound --key_file valid/wav.scp --batch_size 1 --ngpu 0"
    search = "--beam_size 2 --maxlenratio 0.2"
    tympan_command(f"asr_inference {data} {options} {search} --output_dir decode")
    assert all(Path("decode/1best_recog", name).is_file() for name in ("token", "token_int", "score", "text"))
    # Stage 13
    speakers = [f"(speaker-{line.split()[0]})" for line in Path("valid/text").read_text().splitlines()]
    for name, path in (("ref", Path("valid/text")), ("hyp", Path("decode/1best_recog/text"))):
        lines = zip(tokenized(path), speakers, strict=True)
        Path(f"{name}.trn").write_text("".join(f"{text}\t{speaker}\n" for text, speaker in lines))
    tympan_command("score ref.trn hyp.trn --alignments true")
    # Stage 14
    files = "--option ppl/ppl --option stats/train/feats_stats.npz --option exp/images --outpath model.zip"
    tympan_command(f"pack asr {options} {files}")
    recording = Path("valid/wav.scp").read_text().split()[1]
    recognized = tokenized(Path("decode/1best_recog/text"))[0].replace(" ", "")
    recognizer = tympan.load("model.zip", beam_size=2, maxlenratio=0.2)
    assert recognizer(recording).text.replace(" ", "") == recognized
