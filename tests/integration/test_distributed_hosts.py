"""Two hosts with their own addresses, as network namespaces: a two-node run whose link is cut in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_distributed import STEADY, largest_difference, wait_for_batch
from train_corpus import command, environment, make_corpus

NAMES = (f"tympan-a-{os.getpid()}", f"tympan-b-{os.getpid()}")
ADDRESSES = ("10.231.77.1", "10.231.77.2")

pytestmark = pytest.mark.slow


def ip(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


@pytest.fixture
def two_hosts() -> Iterator[tuple[str, str]]:
    try:
        made = ip("netns", "add", NAMES[0])
    except FileNotFoundError:
        pytest.skip("network namespaces need the program `ip` (iproute2)")
    if made.returncode != 0:
        pytest.skip(f"network namespaces can't be made here: {made.stderr.strip()}")
    try:
        link = (f"veth{os.getpid() % 10000}a", f"veth{os.getpid() % 10000}b")
        steps = [
            ("netns", "add", NAMES[1]),
            ("link", "add", link[0], "netns", NAMES[0], "type", "veth", "peer", "name", link[1], "netns", NAMES[1]),
        ]
        for name, end, address in zip(NAMES, link, ADDRESSES, strict=True):
            steps += [
                ("-n", name, "addr", "add", f"{address}/24", "dev", end),
                ("-n", name, "link", "set", end, "up"),
                ("-n", name, "link", "set", "lo", "up"),
            ]
        for step in steps:
            done = ip(*step)
            if done.returncode != 0:
                pytest.skip(f"two hosts can't be made here: ip {' '.join(step)}: {done.stderr.strip()}")
        yield link
    finally:
        for name in NAMES:
            ip("netns", "del", name)


def set_link(link: tuple[str, str], state: str) -> None:
    assert ip("-n", NAMES[0], "link", "set", link[0], state).returncode == 0


def torchrun(host: int, train: list[str]) -> list[str]:
    return [
        "ip", "netns", "exec", NAMES[host], sys.executable, "-m", "torch.distributed.run",
        "--nnodes", "2", "--node_rank", str(host), "--nproc_per_node", "1", "--max_restarts", "3",
        "--rdzv_backend", "c10d", "--rdzv_endpoint", f"{ADDRESSES[0]}:29577", "--rdzv_id", "beeps",
        "--rdzv_conf", f"is_host={int(host == 0)}", "--local_addr", ADDRESSES[host], *train[1:],
    ]  # fmt: skip


def start_both(config: Path, output: Path, link: tuple[str, str], *options: str) -> list[subprocess.Popen[bytes]]:
    train = command(config, output, *STEADY, *options)
    # Both have this machine's host name, so gloo must be given the interface between them
    variables = {**environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return [
        subprocess.Popen(
            torchrun(host, train), env={**variables, "GLOO_SOCKET_IFNAME": link[host]}, stderr=subprocess.DEVNULL
        )
        for host in range(2)
    ]


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough batches to cut the link in the middle of the run."""
    return make_corpus(tmp_path_factory.mktemp("longer"), utterances=60)


@pytest.mark.parametrize("cut_s", [2.0, 14.0], ids=["a hiccup", "longer than the time limit"])
def test_a_cut_link_delays_and_does_not_change_the_result(
    longer: Path, two_hosts: tuple[str, str], tmp_path: Path, cut_s: float
) -> None:
    alone = tmp_path / "alone"
    done = subprocess.run(command(longer, alone, *STEADY), env=environment(), capture_output=True, timeout=200)
    assert done.returncode == 0
    output = tmp_path / "two"
    agents = start_both(longer, output, two_hosts, "--dist_timeout", "6")
    try:
        wait_for_batch(output, r"1epoch:train:4-4batch", agents[0])  # type: ignore[arg-type]
        set_link(two_hosts, "down")
        time.sleep(cut_s)
        set_link(two_hosts, "up")
        assert [agent.wait(timeout=200) for agent in agents] == [0, 0]
    finally:
        for agent in agents:
            agent.terminate()
    log = (output / "train.log").read_text(encoding="utf-8")
    assert ("resumed at epoch" in log) == (cut_s > 6.0)
    assert largest_difference(alone / "2epoch.pth", output / "2epoch.pth") < 1e-6
