"""Repeating a recipe: finished steps are skipped, changes rerun later steps, and interrupted steps are not finished."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tympan.errors import UserError
from tympan.recipe.engine import Engine, Verdict, status_table
from tympan.recipe.stage import Stage, Step, find_stage
from tympan.runtime.child import code_command


class Kitchen:
    """raw -> dough -> bread, with the number of times that each was made."""

    def __init__(self, root: Path) -> None:
        self.root, self.made, self.heat = root, [], 200
        (root / "raw").write_text("flour")

    def stages(self) -> list[Stage]:
        return [
            Stage(0, "mix", "Mixing", lambda: [self.step("dough", "raw")]),
            Stage(1, "bake", "Baking", lambda: [self.step("bread", "dough", heat=self.heat)]),
        ]

    def step(self, name: str, need: str, **settings: object) -> Step:
        def run() -> None:
            self.made.append(name)
            (self.root / name).write_text(f"{name} of {(self.root / need).read_text()} {settings}")

        return Step(name, run, [self.root / need], [self.root / name], settings)

    def run(self, start: int = 0, stop: int = 9, **options: bool) -> list[str]:
        self.made = []
        Engine(self.root / ".tympan", say=lambda line: None).run(self.stages(), start, stop, **options)
        return self.made


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    return Kitchen(tmp_path)


def test_a_second_run_does_nothing(kitchen: Kitchen) -> None:
    assert kitchen.run() == ["dough", "bread"]
    assert kitchen.run() == []


def test_a_change_reruns_later_steps(kitchen: Kitchen) -> None:
    kitchen.run()
    (kitchen.root / "raw").write_text("rye")
    assert kitchen.run() == ["dough", "bread"]


def test_other_input_files_are_named(kitchen: Kitchen) -> None:
    """`--lm_text OTHER` said that OTHER has changed."""
    kitchen.run()
    (kitchen.root / "grain").write_text("flour")
    engine = Engine(kitchen.root / ".tympan", say=lambda line: None)
    assert engine.judge(kitchen.step("dough", "grain")).reason == f"it now reads {kitchen.root / 'grain'}"


def test_same_content_with_a_new_date_is_unchanged(kitchen: Kitchen) -> None:
    kitchen.run()
    (kitchen.root / "raw").write_text("flour")
    os.utime(kitchen.root / "raw", (1, 1))
    assert kitchen.run() == []


def test_changed_setting_reruns_only_that_step(kitchen: Kitchen) -> None:
    kitchen.run()
    kitchen.heat = 250
    assert kitchen.run() == ["bread"]


def test_lost_or_damaged_output_is_made_again(kitchen: Kitchen) -> None:
    kitchen.run()
    (kitchen.root / "bread").unlink()
    assert kitchen.run() == ["bread"]
    (kitchen.root / "dough").write_text("dou")
    assert kitchen.run() == ["dough"]
    kept = [path for path in (kitchen.root / ".tympan" / "changed").rglob("*") if path.is_file()]
    assert [path.read_text() for path in kept] == ["dou"], "somebody's edit is not lost"


def test_force_and_range(kitchen: Kitchen) -> None:
    kitchen.run()
    assert kitchen.run(start=1, force=True) == ["bread"]
    assert kitchen.run(start=0, stop=0, force=True) == ["dough"]


def test_missing_input_names_the_remedy(kitchen: Kitchen) -> None:
    with pytest.raises(UserError, match=r"stage 1 \(bake\), step 'bread' needs .*dough.*Run the earlier stages first"):
        kitchen.run(start=1)


def test_failed_step_is_not_done(kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch) -> None:
    step = kitchen.step

    def burning(name: str, need: str, **settings: object) -> Step:
        def run() -> None:
            (kitchen.root / name).write_text("half")
            raise UserError("burnt")

        return Step(name, run, [kitchen.root / need], [kitchen.root / name], settings)

    monkeypatch.setattr(kitchen, "step", burning)
    with pytest.raises(UserError, match="burnt"):
        kitchen.run()
    monkeypatch.setattr(kitchen, "step", step)
    assert kitchen.run() == ["dough", "bread"]


def test_status_names_state_time_and_size(kitchen: Kitchen) -> None:
    kitchen.run(stop=0)
    rows = status_table(Engine(kitchen.root / ".tympan"), kitchen.stages()).splitlines()
    assert rows[0].split() == ["stage", "name", "step", "state", "time", "size"]
    assert rows[1].split()[:4] == ["0", "mix", "dough", "done"]
    assert rows[2].split() == ["1", "bake", "bread", "to", "do"]


def test_stage_by_name_and_number() -> None:
    stages = Kitchen.stages.__get__(object.__new__(Kitchen))()
    assert find_stage(stages, "-1", "--stage") == -1
    assert find_stage(stages, "bake", "--stage") == 1
    with pytest.raises(UserError, match=r"--stage: there is no stage 'bakes'\. Did you mean 'bake'\?"):
        find_stage(stages, "bakes", "--stage")


def test_two_runs_in_one_directory(kitchen: Kitchen) -> None:
    hold = "import sys; from pathlib import Path; from tympan.runtime.lock import directory_lock\n"
    hold += "with directory_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    line = [*code_command(hold), str(kitchen.root)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match=f"another run .process {other.pid} on .* is working in {kitchen.root}"):
            kitchen.run()
        other.kill()


def test_found_output_needs_no_run(tmp_path: Path) -> None:
    step = Step("corpus", lambda: pytest.fail("must not run"), found=lambda: "already unpacked")
    said: list[str] = []
    Engine(tmp_path / ".tympan", say=said.append).run([Stage(-1, "download", "Fetching", lambda: [step])], -1, -1)
    assert said == ["stage -1: Fetching", "  corpus: already unpacked"]


def training(root: Path, data: str, size: int, epochs: int) -> list[int]:
    """A step that continues its own output, as training does. Returns the epochs that it ran."""
    (root / "data").write_text(data)
    ran = []

    def run() -> None:
        state = root / "exp" / "epoch"
        state.parent.mkdir(exist_ok=True)
        for epoch in range(int(state.read_text()) if state.exists() else 0, epochs):
            ran.append(epoch)
            state.write_text(str(epoch + 1))

    step = Step(
        "train", run, [root / "data"], [root / "exp" / "epoch"], {"size": size, "epochs": epochs},
        continues={"size": size}, output_dir=root / "exp",
    )  # fmt: skip
    Engine(root / ".tympan", say=lambda line: None).run([Stage(4, "train", "Training", lambda: [step])], 4, 4)
    return ran


def test_training_continues_only_its_own(tmp_path: Path) -> None:
    assert training(tmp_path, "a", 1, 2) == [0, 1]
    assert training(tmp_path, "a", 1, 2) == []
    assert training(tmp_path, "a", 1, 4) == [2, 3], "more epochs continue"
    assert training(tmp_path, "a", 2, 1) == [0], "another model starts anew"
    assert training(tmp_path, "b", 2, 1) == [0], "other data too"
    assert (tmp_path / "exp.old1" / "epoch").read_text() == "4", "and nothing is thrown away"
    assert (tmp_path / "exp.old2" / "epoch").read_text() == "1"


def slow_training(root: Path, *, fails: bool = False) -> Step:
    def run() -> None:
        (root / "exp").mkdir(exist_ok=True)
        (root / "exp" / "1epoch.pth").write_bytes(b"x" * 3000)
        (root / "exp" / "latest.pth").unlink(missing_ok=True)
        (root / "exp" / "latest.pth").symlink_to("1epoch.pth")
        time.sleep(0.3)
        if fails:
            raise SystemExit(75)

    return Step("train", run, makes=[root / "exp" / "latest.pth"], continues={}, output_dir=root / "exp")


def status_of(root: Path, step: Step) -> Verdict:
    return Engine(root / ".tympan").judge(step)


def test_time_and_size_include_interrupted_runs(tmp_path: Path) -> None:
    said: list[str] = []
    failing, step = slow_training(tmp_path, fails=True), slow_training(tmp_path)
    with pytest.raises(SystemExit):
        Engine(tmp_path / ".tympan").run([Stage(4, "train", "Training", lambda: [failing])], 4, 4)
    found = status_of(tmp_path, step)
    assert (found.state, found.seconds) == ("interrupted", pytest.approx(0.3, abs=0.25))
    Engine(tmp_path / ".tympan", say=said.append).run([Stage(4, "train", "Training", lambda: [step])], 4, 4)
    assert re.fullmatch(r"  train: done in 0\.\d s \(0\.\d s with the earlier runs that it continued\)", said[-1])
    found = status_of(tmp_path, step)
    assert found.seconds is not None
    assert 0.6 <= found.seconds < 1.5
    assert found.bytes == 3000 + len("1epoch.pth"), "all files, and a link counts as a link"


def test_a_killed_run_counts_until_it_last_wrote(tmp_path: Path) -> None:
    step = slow_training(tmp_path)
    Engine(tmp_path / ".tympan").run([Stage(4, "train", "Training", lambda: [step])], 4, 4)
    record = tmp_path / ".tympan" / "steps" / "train.json"
    content = json.loads(record.read_text())
    kept = {name: content[name] for name in ("identity", "audio")}
    record.write_text(json.dumps({**kept, "state": "started", "began": 1000.0, "earlier_s": 5.0}))
    for path in (tmp_path / "exp").iterdir():
        os.utime(path, (1060, 1060), follow_symlinks=False)
    assert status_of(tmp_path, step).seconds == pytest.approx(65.0)


def test_a_copied_directory_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    first = Kitchen(tmp_path / "first")
    first.run()
    assert Engine(first.root / ".tympan").moved() is None
    shutil.copytree(first.root, tmp_path / "second")
    second = Kitchen(tmp_path / "second")
    expected = f"this directory was copied from {first.root}."
    assert expected in (Engine(second.root / ".tympan").moved() or "")
    assert expected in status_table(Engine(second.root / ".tympan"), second.stages())
    shutil.rmtree(first.root)
    assert "was moved from" in (Engine(second.root / ".tympan").moved() or "")
    said: list[str] = []
    Engine(second.root / ".tympan", say=said.append).run(second.stages(), 0, 9, force=True)
    assert "was moved from" in said[0]
    assert Engine(second.root / ".tympan").moved() is None


def features(root: Path) -> list[str]:
    """A step that continues its output and depends on recordings and labels. Returns its console output."""
    said: list[str] = []

    def run() -> None:
        out = root / "feats" / "all"
        out.parent.mkdir(exist_ok=True)
        out.write_bytes((out.read_bytes() if out.exists() else b"") + (root / "a.wav").read_bytes())

    step = Step(
        "features", run, [root / "wav.scp"], [root / "feats" / "all"], continues={}, output_dir=root / "feats",
        recordings=[root / "wav.scp"], labels=[root / "text"],
    )  # fmt: skip
    Engine(root / ".tympan", say=said.append).run([Stage(1, "f", "Features", lambda: [step])], 1, 1)
    return said


def test_recordings_count_by_content_and_labels_move_no_output(tmp_path: Path) -> None:
    (tmp_path / "wav.scp").write_text("a a.wav\nb echo beep |\n")
    (tmp_path / "a.wav").write_bytes(b"one")
    (tmp_path / "text").write_text("a hello\n")
    features(tmp_path)
    assert features(tmp_path)[1:] == ["  features: already done"]
    (tmp_path / "text").write_text("a goodbye\n")
    assert any("text has changed" in line for line in features(tmp_path))
    assert not (tmp_path / "feats.old1").exists()
    (tmp_path / "a.wav").write_bytes(b"two")
    assert any(f"outdated: audio of {tmp_path / 'wav.scp'} has changed" in line for line in features(tmp_path))
    assert (tmp_path / "feats" / "all").read_bytes() == b"two", "nothing of the old recording is in it"
    assert (tmp_path / "feats.old1" / "all").read_bytes() == b"oneone"


def test_outputs_in_another_directory_are_outdated_not_changed(tmp_path: Path) -> None:
    def step(place: str) -> Step:
        return Step("fetch", lambda: (tmp_path / place).write_text("x"), makes=[tmp_path / place])

    for place in ("here", "there"):
        Engine(tmp_path / ".tympan", say=lambda line: None).run(
            [Stage(0, "s", "Fetching", lambda place=place: [step(place)])], 0, 0
        )
    assert (tmp_path / "there").exists()
    assert not (tmp_path / ".tympan" / "changed").exists()


KILLED = """
    import sys, time
    from pathlib import Path
    from tympan.recipe.engine import Engine
    from tympan.recipe.stage import Stage, Step
    root = Path(sys.argv[1])

    def run():
        with (root / "out").open("w") as stream:
            for part in range(40):
                stream.write("x" * 1000)
                stream.flush()
                time.sleep(0.01)
        (root / "runs").open("a").write("whole ")

    step = Step("slow", run, [], [root / "out"])
    Engine(root / ".tympan").run([Stage(0, "s", "Slow", lambda: [step])], 0, 0)
"""


def test_kill_9_leaves_nothing_that_counts_as_done(tmp_path: Path) -> None:
    program = [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)]
    for delay_s in (0.0, 0.1, 0.25):
        process = subprocess.Popen(program, stdout=subprocess.DEVNULL)
        while not (tmp_path / "out").exists() and process.poll() is None:
            time.sleep(0.005)
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "runs").exists(), "killed before the end"
        (tmp_path / "out").unlink()
    again = subprocess.run(program, capture_output=True, text=True, check=True)
    assert "interrupted: an earlier run stopped here" in again.stdout
    assert len((tmp_path / "out").read_bytes()) == 40_000
    again = subprocess.run(program, capture_output=True, text=True, check=True)
    assert "already done" in again.stdout
    assert (tmp_path / "runs").read_text() == "whole "
