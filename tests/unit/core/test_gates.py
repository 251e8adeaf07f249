"""Which all-reduce a start runs, settings that did nothing, values that do harm: real logs, versions, near misses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.support import states
from tests.support.golden_starts import GOLDEN, last_start
from tuner.core.diagnosis import diagnose
from tuner.core.gates import all_reduce, hardware_of
from tuner.core.reading import starts_of
from tuner.core.reduce import initial, reduce
from tuner.core.reduction_words import headline, rows
from tuner.core.scene import with_host
from tuner.core.talk import notes_of
from tuner.domain.findings import Confidence, Finding, Severity
from tuner.domain.gates import GateState, Hardware, Path, PathState
from tuner.domain.server import Phase
from tuner.domain.starts import Start
from tuner.domain.state import ServerState
from tuner.engines import load_engines
from tuner.store.journal import read_events

ENGINES = load_engines()
JOURNALS = GOLDEN / "journals"
H200 = "real/sglang-0.5.16-2xH200"
NCCL = "gpu01:48211:48733 [3] NCCL INFO "


def sglang(*lines: str, version: str | None = "0.5.9", ready: bool = False, env: dict[str, str] | None = None,
           **settings: Any) -> Start:  # fmt: skip
    """A start of eight ranks that printed some lines."""
    args = {"tp_size": 8, "nnodes": 1, "disable_custom_all_reduce": False, **settings}
    told = ", ".join(f"{name}={value!r}" for name, value in args.items())
    texts = [
        f"[2026-02-26 19:52:30] server_args=ServerArgs(model_path='m', {told})",
        "[2026-02-26 19:52:39 TP0] Init torch distributed begin.",
        *lines,
        *(["[2026-02-26 20:02:31] The server is fired up and ready to roll!"] if ready else []),
    ]
    return _start(texts, version, env)


def vllm(*lines: str, version: str = "0.32.0", given: str = "", env: dict[str, str] | None = None) -> Start:
    """A start of four ranks that printed some lines."""
    texts = [
        f"(APIServer pid=27) INFO 11-02 09:14:20 [utils.py:233] non-default args: {{'model': 'm'{given}}}",
        "(EngineCore pid=41) INFO 11-02 09:14:33 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config:"
        " model='m', tensor_parallel_size=4, disable_custom_all_reduce=False, device_config=cuda, enforce_eager=False",
        *lines,
    ]
    return _start(texts, version, env)


def _start(texts: Sequence[str], version: str | None, env: dict[str, str] | None) -> Start:
    start = starts_of(list(enumerate(texts, 1)), ENGINES)[-1]
    return msgspec.structs.replace(start, version=version, version_inferred=False, env=env or {})


def paths(start: Start, hardware: Hardware | None = None) -> dict[str, Path]:
    """Its ways by id."""
    told = all_reduce(start, ENGINES[start.engine], hardware)
    return {path.id: path for path in told.paths} if told is not None else {}


def findings(start: Start) -> dict[str, Finding]:
    """What a diagnosis says of it."""
    return {finding.cause: finding for finding in diagnose(start, ENGINES[start.engine])}


# --- Real logs ------------------------------------------------------------------------------------------------------


def test_v2_is_proven_by_its_own_line() -> None:
    start = last_start(f"{H200}/base/server.log")
    path = paths(start)["custom-v2"]
    assert (path.state, path.at) == (PathState.PROVEN, 23)
    assert all(gate.state is GateState.PASSED for gate in path.gates)
    assert paths(start)["custom-v1"].state is PathState.CLOSED
    assert diagnose(start, ENGINES["sglang"]) == ()


def test_a_flag_closes_both_and_nccl_proves_its_two_channels() -> None:
    start = last_start(f"{H200}/nccl2ch/server.log")
    told = all_reduce(start, ENGINES["sglang"])
    assert told is not None
    assert headline(told) == "NCCL for every tensor"
    for name in ("custom-v1", "custom-v2"):
        closed = paths(start)[name].closed
        assert closed is not None
        assert (closed.told, closed.at) == ("disable_custom_all_reduce=True", 9)
    notes = {note.what: note for note in told.notes}
    assert notes["NCCL channels"].value == "2 for collectives: NCCL_MAX_NCHANNELS=2 took effect"
    assert "2 coll channels" in next(s.text for s in start.signs if s.at == notes["NCCL channels"].at)
    assert notes["ranks talk by"].value == "P2P/IPC (8 connections)"
    assert "NCCL_BUFFSIZE=131072" in notes["NCCL was told"].value
    found = findings(start)
    assert list(found) == ["custom-ar-disabled"]
    assert found["custom-ar-disabled"].severity is Severity.INFO


def test_graph_addresses_prove_the_first_implementation() -> None:
    start = last_start("corpus/ok-2-scary-warnings.log")
    assert (paths(start)["custom-v1"].state, paths(start)["custom-v1"].at) == (PathState.PROVEN, 44)


def test_prefill_graphs_were_switched_off_by_the_fraction() -> None:
    found = findings(last_start(f"{H200}/f97/server.log"))["prefill-graphs-off"]
    assert (found.severity, found.phase, found.ranks) == (Severity.PERFORMANCE, "graph-capture", (0, 1))
    told = {each.what: (each.value, each.at) for each in found.evidence}
    assert told["free"] == (3.63, 34)
    assert told["required"] == (4.0, 34)
    (remedy,) = found.remedies
    assert (remedy.knob, str(remedy.move)) == ("mem_fraction_static", "lower")
    assert (remedy.min, remedy.serves, remedy.value, remedy.max) == (
        0.466,
        0.502,
        0.958,
        0.958,
    )  # 0.37 GiB lacking, 1 to spare
    # 138.8 GiB before the weights: the lower fraction leaves the 0.37 GiB that lack, and a little.
    assert 3.63 + (0.968 - 0.963) * 138.8 >= 4.0


def test_a_patch_that_forces_custom_all_reduce_is_told_and_not_believed() -> None:
    start = last_start("corpus/seed-3-custom-ar-055.log")
    path = paths(start)["custom-v1"]
    assert path.state is PathState.UNKNOWN
    assert path.unsure is not None
    assert path.unsure.at == 11
    found = diagnose(start, ENGINES["sglang"])
    assert [finding.cause for finding in found] == ["mem-fraction-too-low", "setting-ignored"]
    told = found[1]
    assert (told.severity, told.at) == (Severity.INFO, 11)
    assert "local patch" in told.title + told.explanation
    assert [(each.what, each.value, each.at) for each in told.evidence] == [("SGLANG_FORCE_CUSTOM_AR_PCIE", "1", 11)]


@pytest.mark.parametrize(
    "name",
    ["sglang-0.5.23-cpu/serve-tp2.log", "sglang-0.5.9-cpu/serve-tp2.log", "vllm-0.32.0-cpu/kv-too-small.log",
     "vllm-0.32.0-cpu/dp2.log"],
)  # fmt: skip
def test_servers_without_gpus_have_no_all_reduce(name: str) -> None:
    start = last_start(f"real/{name}")
    assert all_reduce(start, ENGINES[start.engine]) is None


# --- Gates by line --------------------------------------------------------------------------------------------------

PCIE = "is disabled because it's not supported on more than two PCIe-only GPUs. To silence this warning, x"
P2P = "is disabled because your platform lacks GPU P2P capability or P2P test failed. To silence this warning, x"
NODES = "is disabled because this process group spans across nodes."
WORLD = "is disabled due to an unsupported world size: 8. Supported world sizes: [2]. To silence this warning, x"


@pytest.mark.parametrize(
    ("version", "name"),
    [("0.4.6", "Custom allreduce"), ("0.5.9", "Custom allreduce"), ("0.5.10", "CustomAllreduce")],
)
@pytest.mark.parametrize(
    ("words", "gate"),
    [
        (PCIE, "NVLink between every two of more than two GPUs"),
        (P2P, "GPUs reach each other's memory"),
        (NODES, "one node"),
        (WORLD, "2, 4, 6 or 8 ranks"),
    ],
)
def test_a_line_closes_its_gate(version: str, name: str, words: str, gate: str) -> None:
    start = sglang(f"[2026-02-26 19:52:41 TP0] {name} {words}", version=version)
    path = paths(start)["custom-v1"]
    assert path.state is PathState.CLOSED
    assert path.closed is not None
    assert (path.closed.what, path.closed.at) == (gate, 3)
    cause = "custom-ar-disabled-pcie" if words == PCIE else "custom-ar-disabled"
    assert list(findings(start)) == [cause]
    assert findings(start)[cause].severity is Severity.INFO


def test_v2_refuses_and_v1_runs() -> None:
    start = sglang(
        f"[2026-06-11 19:52:41 TP0] CustomAllReduceV2 {WORLD}",
        "[2026-06-11 19:52:51 TP0] Registering 122 cuda graph addresses",
        version="0.5.16",
    )
    assert paths(start)["custom-v2"].state is PathState.CLOSED
    assert paths(start)["custom-v1"].state is PathState.PROVEN
    assert findings(start) == {}, "one of them runs: nothing to say"


def test_addresses_of_v2_do_not_prove_v1() -> None:
    start = sglang(
        "[2026-05-17 19:52:41 TP0] Custom allreduce v2 initialized successfully",
        "[2026-05-17 19:52:51 TP0] Registering 122 cuda graph addresses",
        version="0.5.12",
    )
    assert paths(start)["custom-v2"].state is PathState.PROVEN
    assert paths(start)["custom-v1"].state is PathState.CLOSED


def test_two_pcie_gpus_lose_it_in_0_5_12_alone() -> None:
    pcie = Hardware(full_nvlink=False, told="PHB between the GPUs")
    for version, used in (("0.5.11", True), ("0.5.12", False), ("0.5.13", True)):
        ways = paths(sglang(version=version, tp_size=2), pcie)
        assert (ways["custom-v1"].state is PathState.OPEN) is used, version
        assert ways["custom-v2"].state is PathState.CLOSED


def test_the_list_of_vllm_decides() -> None:
    start = vllm(
        "(Worker_TP0 pid=43) INFO 11-02 09:14:50 [cuda_communicator.py:372] Using ['SYMM_MEM', 'PYNCCL'] all-reduce"
        " backends (in dispatch order) for group 'tp:0' out of potential backends: ['CUSTOM', 'SYMM_MEM', 'PYNCCL']."
    )
    ways = paths(start)
    assert ways["torch-symm"].state is PathState.PROVEN
    assert ways["custom"].state is PathState.CLOSED
    assert ways["custom"].closed is not None
    assert ways["custom"].closed.at == 3


@pytest.mark.parametrize(
    ("line", "path", "gate"),
    [
        ("[custom_all_reduce.py:271] Custom allreduce " + PCIE, "custom", "NVLink between"),
        ("[custom_all_reduce.py:286] Custom allreduce " + P2P, "custom", "GPUs reach"),
        ("[symm_mem.py:67] SymmMemCommunicator: Device capability 12.0 not supported, communicator is not available.",
         "torch-symm", "compute capability"),
        ("[symm_mem.py:110] SymmMemCommunicator: symmetric memory multicast operations are not supported.",
         "torch-symm", "multicast"),
        ("[flashinfer_all_reduce.py:108] Failed to initialize FlashInfer All Reduce workspace: multicast. This is",
         "flashinfer", "a workspace"),
    ],
)  # fmt: skip
def test_lines_of_vllm_close_their_gates(line: str, path: str, gate: str) -> None:
    way = paths(vllm(f"(Worker_TP0 pid=43) WARNING 11-02 09:14:50 {line}"))[path]
    assert way.state is PathState.CLOSED
    assert way.closed is not None
    assert way.closed.what.startswith(gate)


def test_the_name_of_a_card_tells_its_capability() -> None:
    line = "GPU 0,1,2,3,4,5,6,7: NVIDIA {}"
    for card, state in (("H200", PathState.OPEN), ("RTX PRO 6000 Blackwell Server Edition", PathState.CLOSED)):
        ways = paths(sglang(line.format(card), enable_torch_symm_mem=True))
        assert ways["torch-symm"].state is state, card
    assert paths(sglang(enable_torch_symm_mem=True))["torch-symm"].state is PathState.UNKNOWN


def test_everything_asked_for_is_shown_and_the_rest_named() -> None:
    told = all_reduce(sglang(), ENGINES["sglang"])
    assert told is not None
    few = [row.name for row in rows(told)]
    assert "torch symmetric memory" not in few
    assert any(row.name == "not asked for" and "torch symmetric memory" in row.words for row in rows(told))
    assert "torch symmetric memory" in [row.name for row in rows(told, unasked=True)]
    assert len(list(rows(told, gates=True))) > len(few)
    assert "perhaps custom all-reduce v1 first" in headline(told)


# --- What is watched ------------------------------------------------------------------------------------------------


def start_of(server: ServerState) -> Start:
    return with_host(server.start or Start(engine="sglang"), server)


def test_the_table_of_a_host_opens_and_closes_gates() -> None:
    state = states.serving()
    server = state.servers[0]
    hardware = hardware_of(state, server)
    assert (hardware.full_nvlink, hardware.capability, hardware.platform) == (False, "12.0", "cuda")
    closed = paths(start_of(server), hardware)["custom-v1"].closed
    assert closed is not None
    assert "between the GPUs" in closed.told
    table = state.gpu_table
    assert table is not None
    size = len(table.gpus)
    switch = tuple(tuple("X" if one == other else "NV18" for other in range(size)) for one in range(size))
    linked = states.REPLACE(state, gpu_table=states.REPLACE(table, topology=switch))
    assert hardware_of(linked, server).full_nvlink is True
    assert paths(start_of(server), hardware_of(linked, server))["custom-v1"].state is PathState.OPEN
    torn = tuple(tuple("?" if word == "NV18" else word for word in row) for row in switch)
    unread = states.REPLACE(state, gpu_table=states.REPLACE(table, topology=torn))
    assert hardware_of(unread, server).full_nvlink is None
    assert hardware_of(states.REPLACE(state, gpu_table=None), server) == Hardware()


def test_real_hosts_with_an_nvswitch() -> None:
    for name, ranks, flag in (("2xH200-start-load-stop", 2, False), ("2xH200-tenant-rank-killed", 2, True)):
        state = initial("h200")
        served = state
        for _, event in read_events(JOURNALS / f"sglang-0.5.16-{name}.ndjson"):
            state, _ = reduce(state, event, ENGINES)
            if state.servers and state.servers[0].phase is Phase.READY and state.servers[0].ranks[0].gpu is not None:
                served = state
        server = served.servers[0]
        hardware = hardware_of(served, server)
        assert (hardware.full_nvlink, hardware.capability) == (True, "9.0")
        told = all_reduce(start_of(server), ENGINES["sglang"], hardware)
        assert told is not None
        assert told.world == ranks
        way = next(path for path in told.paths if path.id == "custom-v2")
        assert way.state is (PathState.CLOSED if flag else PathState.PROVEN)


def test_one_variable_in_a_log_says_nothing_of_the_others() -> None:
    texts = [
        "[2026-02-26 19:52:30] server_args=ServerArgs(model_path='m', tp_size=8, disable_custom_all_reduce=False)",
        "[2026-02-26 19:52:39 TP0] Init torch distributed begin.",
        f"{NCCL}NCCL_BUFFSIZE set by environment to 4194304.",
    ]
    start = msgspec.structs.replace(starts_of(list(enumerate(texts, 1)), ENGINES)[-1], version="0.5.16")
    assert start.env == {"NCCL_BUFFSIZE": "4194304"}
    for read, words in ((False, "is not in the log"), (True, "is not set")):
        known = msgspec.structs.replace(start, env_read=read)
        told = [gate for gate in paths(known)["custom-v2"].gates if "CUSTOM_ALL_REDUCE_V2" in gate.told]
        assert [(words in gate.told, gate.assumed) for gate in told] == [(True, not read)]
    server = states.serving().servers[0]
    assert start_of(server).env_read is (server.identity.env is not None)


# --- Settings without effect ----------------------------------------------------------------------------------------


def test_a_number_that_is_none() -> None:
    start = sglang(
        f"{NCCL}NCCL_BUFFSIZE set by environment to 4M.",
        f"{NCCL}Invalid value 4M for NCCL_BUFFSIZE, using default -2.",
    )
    found = findings(start)["setting-ignored"]
    assert (found.severity, found.at, found.confidence) == (Severity.INFO, 4, Confidence.HIGH)
    assert "whole numbers" in found.explanation
    assert "-2" not in found.explanation, "NCCL's -2 means that nothing is set"


def test_more_channels_than_were_allowed() -> None:
    lines = (
        f"{NCCL}NCCL_MAX_NCHANNELS set by environment to 2.",
        f"{NCCL}16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer",
    )
    found = findings(sglang(*lines))["setting-ignored"]
    assert "NCCL set up 16 channels" in found.explanation
    assert [(each.what, each.value, each.at) for each in found.evidence] == [
        ("NCCL_MAX_NCHANNELS", "2", 3), ("NCCL_MAX_NCHANNELS in effect", "16", None),
    ]  # fmt: skip
    assert "setting-ignored" not in findings(sglang(lines[0], lines[1].replace("16 coll", "2 coll")))


def test_the_least_wins_over_the_most() -> None:
    start = sglang(env={"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "2"})
    found = findings(start)["setting-ignored"]
    assert "NCCL_MIN_NCHANNELS=8 is applied after it and wins" in found.explanation
    assert "setting-ignored" not in findings(sglang(env={"NCCL_MIN_NCHANNELS": "2", "NCCL_MAX_NCHANNELS": "8"}))


def test_of_an_old_and_a_new_name_the_smaller_holds() -> None:
    found = findings(sglang(env={"NCCL_MAX_NCHANNELS": "16", "NCCL_MAX_CTAS": "4"}))["setting-ignored"]
    assert "NCCL_MAX_NCHANNELS=16: NCCL_MAX_CTAS=4 is smaller" in found.explanation


def test_sglang_overwrites_and_nccl_shows_it() -> None:
    line = f"{NCCL}NCCL_CUMEM_ENABLE set by environment to 0."
    env = {"NCCL_CUMEM_ENABLE": "1"}
    found = findings(sglang(line, version="0.5.4", env=env))["setting-ignored"]
    assert (found.at, found.confidence) == (3, Confidence.HIGH)
    assert "setting-ignored" not in findings(sglang(version="0.5.9", env=env))
    assert "setting-ignored" not in findings(sglang(version="0.5.4", env=env, enable_symm_mem=True))


@pytest.mark.parametrize(
    ("version", "settings", "line", "words"),
    [
        ("0.5.9", {"enable_mscclpp": True, "tp_size": 4}, None, "MSCCL++ is off all the same: 4 ranks"),
        ("0.5.9", {"enable_torch_symm_mem": True},
         "TorchSymmMemCommunicator: torch symmetric memory multicast operations are not supported.", "multicast"),
    ],
)  # fmt: skip
def test_what_is_asked_for_and_stays_off(version: str, settings: dict[str, Any], line: str | None, words: str) -> None:
    lines = [] if line is None else [f"[2026-02-26 19:52:41 TP0] {line}"]
    found = findings(sglang(*lines, version=version, **settings))["setting-ignored"]
    assert words in found.explanation
    assert found.severity is Severity.INFO
    assert "setting-ignored" not in findings(sglang(version=version, enable_mscclpp=True))


def test_a_way_of_vllm_that_is_asked_for_on_too_few_ranks() -> None:
    assert "VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC" not in str(findings(vllm()))
    line = (
        "(Worker_TP0 pid=43) WARNING 11-02 09:14:50 [flashinfer_pcie_ipc_all_reduce.py:73] FlashInfer PCIe IPC"
        " all-reduce does not support world_size=6; supported sizes are (2, 4, 8)."
    )
    found = findings(vllm(line, env={"VLLM_ALLREDUCE_USE_FLASHINFER_PCIE_IPC": "1"}))["setting-ignored"]
    assert found.at == 3


def test_a_host_without_nvlink_is_shown_the_way_made_for_it() -> None:
    line = f"[2026-10-31 19:52:41 TP0] CustomAllreduce {PCIE}"
    for version, offered in (("0.5.20", False), ("0.5.23", True)):
        found = findings(sglang(line, version=version))["custom-ar-disabled-pcie"]
        assert ("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE" in [remedy.env for remedy in found.remedies]) is offered


def test_a_variable_that_never_came_to_the_ranks() -> None:
    lines = (
        f"{NCCL}NCCL_CUMEM_ENABLE set by environment to 0.",
        f"{NCCL}16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer",
    )
    found = findings(sglang(*lines, env={"NCCL_BUFFSIZE": "131072"}))["setting-ignored"]
    assert found.confidence is Confidence.MEDIUM
    assert "setting-ignored" not in findings(sglang(lines[1], env={"NCCL_BUFFSIZE": "131072"}))


@pytest.mark.parametrize(
    ("version", "setting", "value", "line", "ignored"),
    [
        ("0.5.4", "enable_piecewise_cuda_graph", True,
         "Disable piecewise CUDA graph because some layers do not apply Standard GQA", True),
        ("0.5.9", "enable_piecewise_cuda_graph", True,
         "Disable piecewise CUDA graph because piecewise_cuda_graph has conflict with torch compile", True),
        ("0.5.9", "enable_piecewise_cuda_graph", False,
         "Disable piecewise CUDA graph because piecewise_cuda_graph has conflict with torch compile", False),
        ("0.5.12", "enforce_piecewise_cuda_graph", True,
         "Disable piecewise CUDA graph because the model is not a language model", True),
        ("0.5.14", "cuda_graph_backend_prefill", "tc_piecewise",
         "Disable prefill CUDA graph for EAGLE target on tc_piecewise to avoid FP4/MoE decode-replay corruption", True),
        ("0.5.16", "cuda_graph_backend_prefill", None,
         "Disable prefill CUDA graph because some layers do not apply Standard GQA", False),
        ("0.5.23", "cuda_graph_backend_prefill", "breakable",
         "Breakable CUDA graph is incompatible with multimodal model; disabling prefill CUDA graph.", True),
        ("0.5.23", "cuda_graph_backend_prefill", "disabled",
         "Disable prefill CUDA graph because cuda_graph_config resolved prefill.backend='disabled' (e.g. via x).",
         False),
    ],
)  # fmt: skip
def test_prefill_graphs_that_were_asked_for(
    version: str, setting: str, value: Any, line: str, *, ignored: bool
) -> None:
    start = sglang(f"[2026-02-26 20:01:18 TP0] {line}", version=version, **{setting: value})
    found = findings(start)
    assert ("setting-ignored" in found) is ignored
    if ignored:
        assert found["setting-ignored"].at == 3
    assert any(note.what == "CUDA graphs" and note.at == 3 for note in notes_of(start))


@pytest.mark.parametrize(
    ("given", "ignored"),
    [(", 'compilation_config': {'cudagraph_mode': 'FULL'}", True), ("", False),
     (", 'compilation_config': {'cudagraph_mode': 'FULL_AND_PIECEWISE'}", False)],
)  # fmt: skip
def test_a_graph_mode_of_vllm_that_was_asked_for(given: str, *, ignored: bool) -> None:
    start = vllm(
        "(EngineCore pid=41) WARNING 11-02 09:14:33 [compilation.py:1393] CUDAGraphMode.FULL is not supported with"
        " FlashInferMetadataBuilder backend (support: AttentionCGSupport.UNIFORM_BATCH);"
        " setting cudagraph_mode=FULL_AND_PIECEWISE",
        given=given,
    )
    assert ("setting-ignored" in findings(start)) is ignored
    assert [note.at for note in notes_of(start) if note.what == "CUDA graphs"] == [3]


# --- Values that do harm --------------------------------------------------------------------------------------------


def test_a_forced_protocol_may_corrupt() -> None:
    line = f"{NCCL}NCCL_PROTO set by environment to LL128"
    found = findings(sglang(line, ready=True))["risky-setting"]
    assert (found.severity, found.confidence, found.at) == (Severity.INFO, Confidence.LOW, 3)
    assert "risky-setting" not in findings(sglang(f"{NCCL}NCCL_PROTO set by environment to LL", ready=True))
    switch = f"{NCCL}16 coll channels, 16 collnet channels, 8 nvls channels, 16 p2p channels, 2 p2p channels per peer"
    assert "risky-setting" not in findings(sglang(line, switch)), "an NVSwitch keeps its stores whole"


def test_what_hangs_has_not_hung_where_requests_are_served() -> None:
    env = {"NCCL_P2P_LEVEL": "SYS"}
    assert "risky-setting" in findings(sglang(env=env))
    assert "risky-setting" not in findings(sglang(env=env, ready=True))


def test_expandable_segments_harm_custom_all_reduce_only() -> None:
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert "risky-setting" in findings(sglang(env=env))
    among = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128,expandable_segments:True"}
    assert "risky-setting" in findings(sglang(env=among))
    assert "risky-setting" not in findings(sglang(env=env, disable_custom_all_reduce=True))
    assert "risky-setting" not in findings(sglang(env=env, ready=True))


def test_copies_through_the_host() -> None:
    lines = [f"{NCCL}Channel 0{n}/0 : 0[0] -> 1[1] via SHM/direct/direct" for n in range(4)]
    found = findings(sglang(*lines))["nccl-through-host"]
    assert (found.severity, found.at) == (Severity.INFO, 3)
    assert ("connections through the host", 4) in [(each.what, each.value) for each in found.evidence]
    assert "nccl-through-host" not in findings(sglang(*lines, env={"NCCL_P2P_DISABLE": "1"}))
    direct = [line.replace("SHM/direct/direct", "P2P/CUMEM") for line in lines]
    assert "nccl-through-host" not in findings(sglang(*direct))


# --- Healthy logs ---------------------------------------------------------------------------------------------------

HEALTHY = [
    "corpus/ok-1-llama8b.log", "corpus/ok-2-scary-warnings.log", "corpus/seed-1-baseline.log",
    "real/sglang-0.5.16-2xH200/base/server.log", "real/sglang-0.5.16-2xH200/auto512/server.log",
    "real/sglang-0.5.23-cpu/serve-default.log", "real/sglang-0.5.9-cpu/serve-tp2.log",
    "real/vllm-0.32.0-cpu/tp1-start-stop.log", "real/vllm-0.32.0-cpu/dp2.log",
]  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_logs_say_nothing(name: str) -> None:
    start = last_start(name)
    assert diagnose(start, ENGINES[start.engine]) == ()
