"""The simulated /proc, read by an independent reader of /proc."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil
import pytest

from tuner.simhost.tree import Process, Tree

NOW = 1_772_100_000.0


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path, now=NOW)
    made.build()
    return made


def _leader(**changes: object) -> Process:
    values: dict[str, object] = {
        "pid": 4_100_001, "ppid": 1, "cmdline": b"/v/bin/python\0-m\0sglang.launch_server\0", "started_at": NOW - 8_040,
        "env": {"VIRTUAL_ENV": "/v"}, "log": "/data/x.log", "port": 30_000,
    }  # fmt: skip
    return Process(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="psutil reads /proc on Linux only")
def test_psutil_reads_it(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.put(_leader())
    tree.put(
        _leader(
            pid=4_100_002, ppid=4_100_001, cmdline=b"sglang::scheduler_TP0\0", comm="sglang::scheduler_TP0", port=None
        )
    )
    tree.tick(NOW + 1)
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tree.proc))

    leader, rank = psutil.Process(4_100_001), psutil.Process(4_100_002)

    assert leader.cmdline() == ["/v/bin/python", "-m", "sglang.launch_server"]
    assert leader.environ()["VIRTUAL_ENV"] == "/v"
    assert rank.ppid() == 4_100_001
    assert rank.name().startswith("sglang::schedul")
    assert rank.uids().effective == 0
    assert set(psutil.pids()) == {1, 4_100_001, 4_100_002}
    assert psutil.virtual_memory().total == pytest.approx(1007 << 30, rel=0.01)


def test_a_process_tells_when_it_began(tree: Tree) -> None:
    tree.put(_leader())
    stat = (tree.proc / "4100001" / "stat").read_text()
    fields = stat.rpartition(")")[2].split()
    found = re.search(r"btime (\d+)", _ticked(tree))
    assert found is not None
    assert float(found[1]) + int(fields[19]) / 100 == pytest.approx(NOW - 8_040, abs=0.02)
    assert len(fields) == 50


def _ticked(tree: Tree) -> str:
    tree.tick(NOW + 1)
    return (tree.proc / "stat").read_text()


def test_the_listening_port_leads_to_its_process(tree: Tree) -> None:
    tree.put(_leader())
    row = (tree.proc / "net" / "tcp").read_text().splitlines()[1].split()
    assert row[1].endswith(f":{30_000:04X}")
    assert row[3] == "0A"
    links = [link.readlink().as_posix() for link in (tree.proc / "4100001" / "fd").iterdir()]
    assert f"socket:[{row[9]}]" in links
    assert links.count("/data/x.log") == 2


def test_changes_and_ends(tree: Tree) -> None:
    tree.put(_leader(port=None))
    tree.put(_leader(state="Z"))
    assert (tree.proc / "4100001" / "cmdline").read_bytes() == b""
    assert " Z " in (tree.proc / "4100001" / "stat").read_text()
    tree.remove(4_100_001)
    assert not (tree.proc / "4100001").exists()
    assert tree.pids() == (1,)


def test_processor_time_is_used(tree: Tree) -> None:
    tree.put(_leader(cpu_share=1.0))
    tree.tick(NOW + 10)
    fields = (tree.proc / "4100001" / "stat").read_text().rpartition(")")[2].split()
    assert int(fields[11]) == 1000


def test_gpus_lie_on_two_nodes(tree: Tree) -> None:
    nodes = [(folder / "numa_node").read_text().strip() for folder in sorted(tree.sys.glob("bus/pci/devices/*"))]
    assert nodes == ["0"] * 4 + ["1"] * 4
