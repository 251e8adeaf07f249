"""Rank to GPU, and who is foreign."""

import pytest

from tuner.core.engine import RankPlace
from tuner.core.placement import foreign_processes, gpu_of
from tuner.domain.gpu import GpuInfo, GpuProcess, ProcessInfo
from tuner.domain.server import Member, ServerIdentity
from tuner.domain.state import RankState, ServerState

GPUS = tuple(GpuInfo(index=i, uuid=f"GPU-{i}{i}{i}", name="H200") for i in range(4))


def identity(env: dict[str, str] | None = None) -> ServerIdentity:
    member = Member(pid=11, ppid=10, start_ticks=1, title="sglang::scheduler_TP0")
    return ServerIdentity(key="10:1", engine="sglang", pid=10, start_ticks=1, env=env, members=(member,))


def test_the_drivers_list_wins_over_the_formula() -> None:
    place = RankPlace(tag="TP0", pid=11, visible_index=0)
    assert gpu_of(place, identity(), GPUS, (GpuProcess(3, 11, 500),)) == 3


def test_a_peers_context_does_not_hide_the_ranks_own_gpu() -> None:
    held = (GpuProcess(0, 11, 500), GpuProcess(2, 11, 70_000))
    assert gpu_of(RankPlace(tag="TP0", pid=11), identity(), GPUS, held) == 2


@pytest.mark.parametrize(
    ("visible", "index", "gpu"),
    [
        (None, 1, 1),
        ("2,3", 1, 3),
        ("GPU-222,GPU-1", 1, 1),
        ("2", 1, None),
        ("9", 0, None),
        ("", 2, None),
        ("GPU-x", 0, None),
    ],
)
def test_visible_devices(visible: str | None, index: int, gpu: int | None) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu_of(RankPlace(tag="TP0", pid=11, visible_index=index), identity(env), GPUS, ()) == gpu


def test_an_environment_that_cannot_be_read_may_say_anything() -> None:
    assert gpu_of(RankPlace(tag="TP0", pid=11, visible_index=1), identity(None), GPUS, ()) is None


def test_without_anything_to_go_by_there_is_no_guess() -> None:
    assert gpu_of(RankPlace(tag="TP0", pid=11), identity(), GPUS, ()) is None
    assert gpu_of(RankPlace(tag="TP9", pid=11, visible_index=9), identity(), GPUS, ()) is None


def test_foreign_is_what_no_server_owns() -> None:
    held = (GpuProcess(0, 11, 5), GpuProcess(2, 9120, 7), GpuProcess(1, 77, None))
    infos = {9120: ProcessInfo(pid=9120, user="alice", command="python train.py")}
    found = foreign_processes(held, infos, [ServerState(identity=identity())])
    assert [(p.pid, p.gpu, p.user, p.memory_bytes) for p in found] == [(9120, 2, "alice", 7), (77, 1, None, None)]


def test_a_rank_that_has_just_died_is_not_foreign_and_a_later_process_with_its_pid_is() -> None:
    dead = RankState(tag="TP1", pid=12, title="sglang::scheduler_TP1", alive=False)
    gone = ServerState(identity=identity(), ranks=(dead,), gone=True)
    held = (GpuProcess(1, 12, 9),)
    assert foreign_processes(held, {}, [gone]) == ()
    assert foreign_processes(held, {12: ProcessInfo(pid=12, command="sglang::scheduler_TP1")}, [gone]) == ()
    (later,) = foreign_processes(held, {12: ProcessInfo(pid=12, command="python train.py")}, [gone])
    assert later.pid == 12
