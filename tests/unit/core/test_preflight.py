"""What is said before a server is stopped: each bad input of its own, in words that name the place and the way out."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import states
from tuner.core.engine import Engine
from tuner.core.preflight import ask, draft_of, judge, refused
from tuner.core.share import ON_CPU
from tuner.domain.forecast import Fit, Forecast, ForecastRow
from tuner.domain.preflight import Check, Verdict
from tuner.domain.recipe import Launch
from tuner.domain.runs import Lease, Operator
from tuner.domain.state import HostState, ServerState
from tuner.engines import load_engines
from tuner.units import from_gib

ENGINES = load_engines()
SGLANG: Engine = ENGINES["sglang"]
GIB = 1 << 30
LAUNCH = Launch(
    argv=(*states.ARGV, "--chunked-prefill-size", "4096"),
    env={"NCCL_ALGO": "Ring"},
    unset=("NCCL_PROTO",),
    cwd="/data",
    log_dir="/data/logs",
    port=30000,
    like=f"server:{states.KEY}",
    preset="nccl-2ch",
    title="NCCL with two channels",
)
ROWS = tuple(
    ForecastRow(rank=rank, what=what, size_bytes=from_gib(size))
    for rank in range(8)
    for what, size in (("weights", 72.3), ("kv_pool", 10.4), ("graphs", 2.6), ("free", 10.2))
)
FITS = Forecast(fit=Fit.FITS, sure=True, rows=ROWS, fraction=0.88, f_min=0.7692, f_max=0.913, kv_tokens=159_277)
FACTS: dict[str, Any] = {
    "start": {"refused": None},
    "interpreter": {"path": "/opt/venv/bin/python", "exists": True, "executable": True, "version": "3.12.3"},
    "version": {"package": "sglang", "version": "0.5.9"},
    "help": {"text": "  --port PORT"},
    "cwd": {"path": "/data", "exists": True},
    "llm": {"name": "/models/kimi", "kind": "path", "exists": True, "config": True, "bytes": 580 * GIB, "missing": []},
    "port": {
        "port": 30000,
        "owners": [{"pid": 48211, "user": "root", "title": "python -m sglang.launch_server", "ours": True}],
    },
    "log": {"path": "/data/logs", "exists": True, "at": "/data/logs", "writable": True, "free_bytes": 500 * GIB},
    "disks": {"folders": {"/": [900 * GIB, 300 * GIB]}},
    "shm": {"total_bytes": 503 * GIB, "free_bytes": 471 * GIB},
    "limits": {"nofile": [1024, 1048576], "nproc": [-1, -1], "memlock": [-1, -1]},
    "rights": {
        "user": "root",
        "server_user": "root",
        "may": True,
        "folder": "/root/.gputuner",
        "folder_writable": True,
    },
    "holders": {"processes": []},
    "env_files": {"settings": []},
    "manager": {"loops": [], "watchers": [], "starters": []},
}
ORDER = (
    "preset", "start", "interpreter", "version", "flags", "cwd", "llm", "port", "tenants", "memory", "disk", "shm",
    "limits", "rights", "manager", "lease", "env-files",
)  # fmt: skip


def judged(
    *,
    state: HostState | None = None,
    server: ServerState | None = None,
    launch: Launch | None = LAUNCH,
    facts: dict[str, Any] | None = FACTS,
    flag_problems: tuple[str, ...] | None = (),
    forecast: Forecast | None = FITS,
    **more: Any,
) -> tuple[Check, ...]:
    return judge(
        state or states.serving(),
        server or states.server(),
        launch,
        SGLANG,
        facts,
        flag_problems=flag_problems,
        forecast=forecast,
        **more,
    )


def fact(ident: str, **fields: Any) -> dict[str, Any]:
    """All facts, with some fields of one changed."""
    found = copy.deepcopy(FACTS)
    found[ident] = {**found[ident], **fields}
    return found


def only(checks: tuple[Check, ...], ident: str) -> Check:
    """The one check with an id."""
    (found,) = [each for each in checks if each.id == ident]
    return found


def test_a_switch_that_is_fine_has_one_line_a_check_in_a_fixed_order() -> None:
    checks = judged()
    assert tuple(check.id for check in checks) == ORDER
    assert {check.verdict for check in checks} == {Verdict.OK}, checks
    assert not refused(checks)


def test_every_check_is_described() -> None:
    page = (Path(__file__).parents[3] / "docs/preflight.md").read_text()
    # A hazard is told only where there is one.
    assert re.findall(r"^\| `([\w-]+)` \|", page, re.M) == [ORDER[0], "hazard", *ORDER[1:]]


def test_to_stop_a_server_only_what_concerns_its_stop_is_checked() -> None:
    assert [check.id for check in judged(launch=None)] == ["rights", "manager", "lease"]


@pytest.mark.parametrize("facts", [None, {}, {name: {"problem": "no answer within 10 s"} for name in FACTS}])
def test_what_is_not_known_is_unknown_and_never_fine(facts: dict[str, Any] | None) -> None:
    checks = judged(facts=facts, flag_problems=None, forecast=None)
    assert {check.id for check in checks if check.verdict is not Verdict.UNKNOWN} == {"preset", "lease"}
    assert all(check.detail for check in checks)


def test_a_full_home_is_told_once_and_also_where_a_server_is_only_stopped() -> None:
    full = fact("rights", folder_at="/root", folder_free_bytes=3_000_000)
    full["disks"] = {"folders": {"/root": [9 * GIB, 3_000_000]}}
    assert [check.detail for check in judged(facts=full) if "/root" in check.detail] == [
        "/root: 3 MB free, and every run is recorded in /root/.gputuner"
    ]
    stopped = only(judged(launch=None, facts=full), "rights")
    assert stopped.verdict is Verdict.FAIL
    assert "/root: 3 MB free" in stopped.detail


FAILS = {
    "missing interpreter": ("interpreter", fact("interpreter", exists=False), ["/opt/venv/bin/python", "not exist"]),
    "interpreter without the right": ("interpreter", fact("interpreter", executable=False), ["chmod"]),
    "broken environment": ("interpreter", fact("interpreter", broken="its link leads to /x, gone"), ["leads to /x"]),
    "missing model path": ("llm", fact("llm", exists=False), ["/models/kimi does not exist"]),
    "model path without config": ("llm", fact("llm", config=False), ["config.json"]),
    "torn download": ("llm", fact("llm", missing=["model-00003.safetensors", "x"]), ["model-00003", "1 more"]),
    "hub name that may not be fetched": (
        "llm",
        fact("llm", kind="hub", name="a/b", cached=False, offline="HF_HUB_OFFLINE", cache="/c"),
        ["a/b is not in /c", "HF_HUB_OFFLINE", "hf download a/b"],
    ),
    "port owned by another": (
        "port",
        fact("port", owners=[{"pid": 77, "user": "bob", "title": "nginx", "ours": False}]),
        ["pid 77 of bob", "nginx", "another port"],
    ),
    "not enough rights": (
        "rights",
        fact("rights", may=False, server_user="bob", why="pid 5 is bob's"),
        ["bob", "pid 5 is bob's", "connect as bob"],
    ),
    "another user's server": ("rights", fact("rights", server_user="bob"), ["bob's", "only be stopped"]),
    "home that may not be written": ("rights", fact("rights", folder_writable=False), ["/root/.gputuner"]),
    "secret that is not there": (
        "start",
        fact("start", refused="it does not have the secret value of HF_TOKEN", hint="leave it out"),
        ["HF_TOKEN", "leave it out"],
    ),
    "working folder": ("cwd", fact("cwd", exists=False), ["/data does not exist"]),
    "log folder of another": ("disk", fact("log", writable=False), ["/data/logs may not be written"]),
    "full disk": ("disk", fact("log", free_bytes=5_000_000), ["5 MB left"]),
    "full home": (
        "disk",
        {
            **fact("rights", folder_at="/root", folder_free_bytes=0),
            "disks": {"folders": {"/root": [9 * GIB, 0], "/": [900 * GIB, 300 * GIB]}},
        },
        ["/root: 0 bytes free", "/root/.gputuner", "free space on /root"],
    ),
    "no shared memory": ("shm", fact("shm", free_bytes=10 << 20), ["10 MiB", "--shm-size"]),
    "docker": (
        "manager",
        fact("manager", container={"kind": "docker", "name": "llm", "restart": "always", "main": True}),
        ["Docker container llm", "restart policy always", "docker stop llm"],
    ),
    "shell loop": (
        "manager",
        fact(
            "manager", loops=[{"pid": 7, "command": "bash run.sh", "file": "/r.sh", "line": 2, "text": "while :; do"}]
        ),
        ["bash run.sh", "pid 7", "/r.sh:2", "kill 7"],
    ),
    "Restart=always without rights": (
        "manager",
        fact("manager", systemd={"unit": "s.service", "main": True, "restart": "always", "may": False}),
        ["s.service", "Restart=always", "sudo systemctl stop s.service"],
    ),
}


@pytest.mark.parametrize("name", FAILS)
def test_bad_input_is_refused_with_what_where_and_the_way_out(name: str) -> None:
    ident, facts, words = FAILS[name]
    checks = judged(facts=facts)
    failed = [check for check in checks if check.verdict is Verdict.FAIL]
    assert [check.id for check in failed] == [ident]
    assert refused(checks)
    said = f"{failed[0].detail} {failed[0].way_out}"
    assert failed[0].way_out
    for word in words:
        assert word in said


WARNS = {
    "replaced package": ("version", fact("version", version="0.5.23"), ["0.5.23", "0.5.9", "way back"]),
    "package from sources": ("version", fact("version", version=None), ["no metadata of sglang"]),
    "hub name that is fetched": (
        "llm",
        fact("llm", kind="hub", name="a/b", cached=False, offline=None, cache="/c", free_bytes=9 * GIB),
        ["downloads it first", "9.0 GiB"],
    ),
    "small disk": ("disk", None, ["/ has 200 MB left"]),
    "small shared memory": ("shm", fact("shm", free_bytes=500 << 20), ["several ranks"]),
    "few descriptors": ("limits", fact("limits", nofile=[1024, 4096]), ["4,096 open files"]),
    "small control group": (
        "limits",
        fact("limits", cgroup_bytes=20 * GIB, cgroup_used_bytes=15 * GIB),
        ["20.0 GiB", "5.0 GiB are left"],
    ),
}


@pytest.mark.parametrize("name", WARNS)
def test_what_may_go_wrong_is_a_warning(name: str) -> None:
    ident, facts, words = WARNS[name]
    checks = judged(facts=facts or fact("disks", folders={"/": [900 * GIB, 200_000_000]}))
    warned = [check for check in checks if check.verdict is Verdict.WARN]
    assert [check.id for check in warned] == [ident]
    assert not refused(checks)
    for word in words:
        assert word in f"{warned[0].detail} {warned[0].way_out}"


def test_another_installation_is_no_replaced_one() -> None:
    facts = {**fact("interpreter", path="/opt/new/bin/python"), "version": {"package": "sglang", "version": "0.5.23"}}
    check = only(judged(facts=facts), "version")
    assert check.verdict is Verdict.WARN
    assert "0.5.9 of another place" in check.detail
    assert "way back" not in check.way_out


def test_a_draft_is_looked_for_like_the_llm() -> None:
    launch = msgspec.structs.replace(LAUNCH, argv=(*LAUNCH.argv, "--speculative-draft-model-path", "/models/draft"))
    assert ask(launch, states.server(), SGLANG).draft == "/models/draft"
    facts = {**FACTS, "draft": {"name": "/models/draft", "kind": "path", "exists": False}}
    checks = [check for check in judged(launch=launch, facts=facts) if check.id == "llm"]
    assert [check.verdict for check in checks] == [Verdict.OK, Verdict.FAIL]
    assert "/models/draft does not exist" in checks[1].detail
    assert [check.verdict for check in judged(launch=launch) if check.id == "llm"] == [Verdict.OK, Verdict.UNKNOWN]


@pytest.mark.parametrize(
    ("name", "settings", "draft"),
    [
        ("vllm", {"speculative_config": '{"model": "org/draft", "num_speculative_tokens": 3}'}, "org/draft"),
        ("vllm", {"speculative_config": {"model": "org/draft"}}, "org/draft"),
        ("vllm", {"speculative_config.model": "org/draft"}, "org/draft"),
        ("vllm", {"speculative_config": '{"method": "ngram"}'}, ""),
        ("vllm", {"speculative_config": "torn {"}, ""),
        ("vllm", {"speculative_model": "org/draft"}, "org/draft"),
        ("vllm", {"speculative_model": "[ngram]"}, ""),
        ("vllm", {"speculative_draft_model_path": "org/draft"}, ""),
        ("sglang", {"speculative_draft_model_path": "org/draft"}, "org/draft"),
        ("sglang", {}, ""),
    ],
)
def test_which_draft_server_args_name(name: str, settings: dict[str, Any], draft: str) -> None:
    assert draft_of(settings, ENGINES[name]) == draft


def test_unknown_and_ambiguous_flags_are_refused_one_by_one() -> None:
    checks = judged(flag_problems=("--cuda-graf is unknown: --cuda-graph-bs?", "--cuda-graph-max-bs is ambiguous"))
    assert [check.detail for check in checks if check.verdict is Verdict.FAIL] == [
        "--cuda-graf is unknown: --cuda-graph-bs?",
        "--cuda-graph-max-bs is ambiguous",
    ]


def test_flags_that_could_not_be_asked_for_say_why() -> None:
    check = only(
        judged(facts=fact("help", problem="`python --help` ended with 1: no torch"), flag_problems=None), "flags"
    )
    assert (check.verdict, check.detail) == (Verdict.UNKNOWN, "`python --help` ended with 1: no torch")


def test_problems_of_the_preset_and_what_it_lacks_are_refused() -> None:
    launch = msgspec.structs.replace(LAUNCH, problems=("x.toml:3: tp_size cannot be 'many'. Type a whole number",))
    needs = ("needs NVLink, the host has PIX",)
    checks = [check for check in judged(launch=launch, unmet=needs) if check.id == "preset"]
    assert [check.verdict for check in checks] == [Verdict.FAIL, Verdict.FAIL]
    assert (checks[0].detail, checks[0].way_out) == ("x.toml:3: tp_size cannot be 'many'", "Type a whole number")
    twice = msgspec.structs.replace(LAUNCH, problems=("x.toml:1: it is for vllm, not for sglang. Take another",))
    said = judged(launch=twice, unmet=("is for vllm, not for sglang",))
    assert [check.detail for check in said if check.verdict is Verdict.FAIL] == [
        "x.toml:1: it is for vllm, not for sglang"
    ]
    assert checks[1].detail == "nccl-2ch needs NVLink, the host has PIX"


def test_a_port_whose_owner_cannot_be_seen_is_refused_too() -> None:
    check = only(judged(facts=fact("port", owners=[{"pid": None, "user": "bob", "ours": False}])), "port")
    assert check.verdict is Verdict.FAIL
    assert "a process that cannot be seen of bob" in check.detail


def test_the_port_of_another_question_says_nothing() -> None:
    assert only(judged(facts=fact("port", port=31000)), "port").verdict is Verdict.UNKNOWN


def tenant(gib: float | None, gpu: int = 2) -> dict[str, Any]:
    size = None if gib is None else from_gib(gib)
    return fact("holders", processes=[{"gpu": gpu, "pid": 9120, "user": "alice", "title": "train.py", "bytes": size}])


def test_a_tenant_that_leaves_room_is_a_warning_with_its_name() -> None:
    check = only(judged(facts=tenant(2.4)), "tenants")
    assert check.verdict is Verdict.WARN
    assert "GPU 2: pid 9120 of alice holds 2.4 GiB (train.py)" in check.detail


def test_a_tenant_that_leaves_too_little_is_refused_with_the_numbers() -> None:
    check = only(judged(facts=tenant(20.0)), "tenants")
    assert check.verdict is Verdict.FAIL
    assert "75.6 GiB are left, 0.88 of which is 66.5 GiB, and the weights take 72.3 GiB" in check.detail
    assert "not touched" in check.way_out
    check = only(judged(facts=tenant(30.0), forecast=None), "tenants")
    assert "65.6 GiB are left, and the weights take 72.3 GiB" in check.detail
    tight = msgspec.structs.replace(FITS, fraction=0.98)
    check = only(judged(facts=tenant(2.4), forecast=tight), "tenants")
    assert "0.98 leaves 1.9 GiB for 2.6 GiB of graphs and activations" in check.detail


def test_a_fraction_of_the_whole_card_is_asked_for_at_the_start() -> None:
    argv = ("vllm", "serve", "/models/x", "--tensor-parallel-size", "8", "--gpu-memory-utilization", "0.9")
    launch = msgspec.structs.replace(LAUNCH, argv=argv)
    for size, verdict in ((5.0, Verdict.WARN), (12.0, Verdict.FAIL)):
        checks = judge(states.serving(), None, launch, ENGINES["vllm"], tenant(size), flag_problems=())
        check = only(checks, "tenants")
        assert check.verdict is verdict
    assert "83.6 GiB are left, and a fraction of 0.9 asks for 86.0 GiB" in check.detail


def test_a_tenant_whose_memory_is_not_told_is_a_warning() -> None:
    assert only(judged(facts=tenant(None)), "tenants").verdict is Verdict.WARN


def test_a_process_that_cannot_be_seen_may_be_the_server_itself() -> None:
    hidden = fact("holders", processes=[{"gpu": 2, "pid": 9120, "user": None, "title": None, "bytes": 86 << 30}])
    check = only(judged(facts=hidden), "tenants")
    assert check.verdict is Verdict.WARN
    assert "pid 9120 that cannot be seen from here holds 86.0 GiB" in check.detail


def test_tenants_of_gpus_are_nothing_to_a_server_on_a_cpu() -> None:
    on_cpu = Forecast(fit=Fit.UNKNOWN, unknown=(ON_CPU,))
    assert only(judged(facts=tenant(30.0), forecast=on_cpu), "tenants").verdict is Verdict.OK


def test_small_tenants_are_none() -> None:
    assert only(judged(facts=tenant(0.1)), "tenants").verdict is Verdict.OK


def test_a_tenant_of_a_gpu_that_the_server_does_not_use_is_none() -> None:
    server = states.server(ranks=2)
    launch = msgspec.structs.replace(LAUNCH, argv=("python", "-m", "sglang.launch_server", "--tp-size", "2"))
    assert only(judged(server=server, launch=launch, facts=tenant(90.0, gpu=7)), "tenants").verdict is Verdict.OK
    some = msgspec.structs.replace(LAUNCH, argv=("python", "-m", "sglang.launch_server", "--tp-size", "4"))
    assert only(judged(server=server, launch=some, facts=tenant(90.0, gpu=7)), "tenants").verdict is Verdict.WARN
    more = msgspec.structs.replace(LAUNCH, argv=("python", "-m", "sglang.launch_server", "--tp-size", "8"))
    assert only(judged(server=server, launch=more, facts=tenant(90.0, gpu=7)), "tenants").verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("forecast", "verdict", "words"),
    [
        (msgspec.structs.replace(FITS, sure=False), Verdict.WARN, "FITS, NOT SURELY"),
        (
            msgspec.structs.replace(FITS, sure=False, warnings=("what X takes is not known", "more")),
            Verdict.WARN,
            "; what X takes is not known lower what takes memory, or try it",
        ),
        (msgspec.structs.replace(FITS, fit=Fit.TOO_LOW, fraction=0.55), Verdict.FAIL, "above 0.7692 up to 0.913"),
        (msgspec.structs.replace(FITS, fit=Fit.TOO_HIGH, fraction=0.97), Verdict.FAIL, "up to 0.913"),
        (
            msgspec.structs.replace(FITS, fit=Fit.TOO_HIGH, fraction=0.97, f_whole=0.85),
            Verdict.FAIL,
            "a fraction from 0.850 up to 0.913 is safe",
        ),
        (msgspec.structs.replace(FITS, fit=Fit.NOWHERE, f_max=0.7), Verdict.FAIL, "no fraction works"),
        (Forecast(fit=Fit.UNKNOWN, unknown=("the weights",)), Verdict.UNKNOWN, "missing: the weights"),
        (None, Verdict.UNKNOWN, "not forecast"),
    ],
)
def test_the_forecast_decides_about_memory(forecast: Forecast | None, verdict: Verdict, words: str) -> None:
    check = only(judged(forecast=forecast), "memory")
    assert check.verdict is verdict
    assert words in f"{check.detail} {check.way_out}"


def test_the_lease_of_another_is_refused() -> None:
    other = Operator(session="s2", name="bob", machine="desk", since=states.WALL - 300)
    state = msgspec.structs.replace(states.serving(), lease=Lease(holder=other))
    check = only(judged(state=state), "lease")
    assert check.verdict is Verdict.FAIL
    assert "bob@desk" in check.detail
    assert "take it over" in check.way_out
    mine = msgspec.structs.replace(states.serving(), lease=Lease(holder=other, mine=True))
    assert only(judged(state=mine), "lease").verdict is Verdict.OK
    lost = msgspec.structs.replace(states.serving(), lease=Lease(lost_to=other))
    assert only(judged(state=lost), "lease").verdict is Verdict.FAIL


def setting(name: str, value: str, how: str) -> dict[str, Any]:
    path = "/usr/lib/python3.12/sitecustomize.py"
    return fact("env_files", settings=[{"path": path, "line": 4, "name": name, "value": value, "how": how}])


@pytest.mark.parametrize(
    ("name", "value", "how", "verdict", "words"),
    [
        ("NCCL_ALGO", "Tree", "assign", Verdict.WARN, "sitecustomize.py:4 sets NCCL_ALGO=Tree"),
        ("NCCL_ALGO", "", "unset", Verdict.WARN, "takes NCCL_ALGO away"),
        ("NCCL_ALGO", "Tree", "default", Verdict.NOTE, "the Ring of this start wins"),
        ("NCCL_ALGO", "Ring", "assign", Verdict.NOTE, "sets NCCL_ALGO=Ring"),
        ("NCCL_PROTO", "LL", "assign", Verdict.WARN, "which this start takes away"),
        ("NCCL_DEBUG", "INFO", "assign", Verdict.NOTE, "sets NCCL_DEBUG=INFO behind the scenes"),
    ],
)
def test_a_file_that_sets_a_variable_is_named_with_its_line(
    name: str, value: str, how: str, verdict: Verdict, words: str
) -> None:
    check = only(judged(facts=setting(name, value, how)), "env-files")
    assert check.verdict is verdict
    assert words in check.detail


def test_what_a_unit_sets_is_told_where_this_start_changes_it() -> None:
    lines = [
        {"path": "/etc/systemd/system/s.service", "line": 9, "name": name, "value": "x", "how": "unit"}
        for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG")
    ]
    checks = judged(facts=fact("manager", systemd={"unit": "s.service", "main": True, "may": True, "settings": lines}))
    told = [check for check in checks if check.id == "env-files"]
    assert [check.verdict for check in told] == [Verdict.NOTE, Verdict.NOTE]
    assert "s.service:9 sets NCCL_ALGO=x; the Ring of this start wins" in told[0].detail
    assert "this start takes it away" in told[1].detail


def test_a_unit_is_told_with_the_commands_that_are_used() -> None:
    unit = {"unit": "s.service", "main": True, "restart": "always", "may": True, "others": []}
    check = only(judged(facts=fact("manager", systemd=unit)), "manager")
    assert check.verdict is Verdict.NOTE
    assert "`systemctl stop s.service`" in check.detail
    assert "`systemctl start s.service`" in check.detail


def test_a_text_of_the_host_is_one_harmless_line() -> None:
    check = only(judged(facts=fact("port", owners=[{"pid": 7, "title": "a\x1b[2J\nb", "ours": False}])), "port")
    assert "\x1b" not in check.detail
    assert "\n" not in check.detail


def test_the_question_to_the_probe_has_all_that_the_checks_need() -> None:
    asked = ask(LAUNCH, states.server(), SGLANG, command=("python", "-m", "sglang.launch_server"), llm="/models/kimi")
    assert asked.help_argv == ("python", "-m", "sglang.launch_server", "--help")
    assert (asked.key, asked.package, asked.port, asked.llm) == (states.KEY, "sglang", 30000, "/models/kimi")
    assert (asked.argv, asked.like, asked.log_dir, asked.cwd) == (LAUNCH.argv, LAUNCH.like, "/data/logs", "/data")
    assert ask(LAUNCH, None, SGLANG, command=("p",), flags_known=True).help_argv == ()
    assert ask(None, states.server(), None).key == states.KEY


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def odd_facts(draw: st.DrawFn) -> dict[str, Any]:
    """The facts, with any field of any fact replaced by any JSON, or taken away."""
    found = copy.deepcopy(FACTS)
    for _ in range(draw(st.integers(1, 4))):
        ident = draw(st.sampled_from(sorted(found)))
        fields = found[ident]
        if not isinstance(fields, dict) or draw(st.booleans()):
            found[ident] = draw(JSON)
        else:
            name = draw(st.sampled_from([*sorted(fields), "systemd", "container", "slurm", "supervisord", "loops"]))
            fields[name] = draw(JSON)
    return found


@given(odd_facts())
def test_no_answer_of_a_probe_stops_the_judgement(facts: dict[str, Any]) -> None:
    checks = judged(facts=facts)
    assert {check.id for check in checks} == set(ORDER)
    assert [ORDER.index(check.id) for check in checks] == sorted(ORDER.index(check.id) for check in checks)
    for check in checks:
        assert check.verdict is not Verdict.FAIL or check.detail
