"""Recipes that are read off servers, and presets laid over them."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest

from tests.support import states
from tuner.core.helptext import parse_help
from tuner.core.presets import overlay
from tuner.core.recipes import lay_over, of_session, read_recipe, without_rest
from tuner.core.reduce import initial, reduce
from tuner.domain.history import UsualTimes
from tuner.domain.presets import Overlay, Preset
from tuner.domain.recipe import Launch, Recipe
from tuner.domain.server import LogSource, Manager, Phase, ServerIdentity
from tuner.domain.state import HostState, LogState, ServerState
from tuner.engines import load_engines
from tuner.errors import TunerError
from tuner.store.journal import read_events

ENGINES = load_engines()
GOLDEN = Path(__file__).parents[2] / "golden"
REPLACE = msgspec.structs.replace


@cache
def real(name: str) -> HostState:
    """The last state of a real host in which its server was ready."""
    state = initial("root@h200")
    ready = state
    for _, event in read_events(GOLDEN / f"journals/sglang-0.5.16-{name}.ndjson"):
        state, _ = reduce(state, event, ENGINES)
        if state.servers and state.servers[0].phase is Phase.READY:
            ready = state
    assert ready.servers
    return ready


def server(argv: str, engine: str = "sglang", **more: Any) -> ServerState:
    own = {name: more.pop(name) for name in ("log", "usual", "version", "started_in_s") if name in more}
    fields = {"port": 30000, "cwd": "/srv", "env": {}} | more
    identity = ServerIdentity(
        key="48211:77", engine=engine, pid=48211, start_ticks=77, argv=tuple(argv.split()), **fields
    )
    return ServerState(identity=identity, **own)


def host(*servers: ServerState) -> HostState:
    return HostState(name="root@gpu-box-1", servers=servers, now=states.WALL)


def recipe(args: str, engine: str = "sglang", command: str = "") -> Recipe:
    commands = {"sglang": "/v/bin/python -m sglang.launch_server", "vllm": "/v/bin/vllm serve"}
    return Recipe(
        name="r",
        host="h",
        engine=engine,
        command=tuple((command or commands[engine]).split()),
        args=tuple(args.split()),
        port=30000,
    )


def laid(args: str, over: Overlay, engine: str = "sglang", **more: Any) -> list[str]:
    base = recipe(args, engine)
    launch = lay_over(base, over, None, ENGINES[engine], **more)
    assert launch.argv[: len(base.command)] == base.command
    return list(launch.argv[len(base.command) :])


class TestRead:
    def test_a_real_server(self) -> None:
        state = real("2xH200-start-load-stop")
        got = read_recipe(state, state.servers[0], ENGINES["sglang"])
        assert got.command == ("/opt/sglang/venv/bin/python3", "-m", "sglang.launch_server")
        assert got.args[:4] == ("--model-path", "/opt/models/llama-68b", "--tp", "2")
        assert (got.name, got.host, got.engine, got.version) == ("h200-30000", "root@h200", "sglang", "0.5.16")
        assert (got.model, got.port, got.cwd, got.log_dir) == ("/opt/models/llama-68b", 30000, "/root", "/tmp/logs")
        assert got.env["NCCL_NVLS_ENABLE"] == "0"
        assert got.manager == Manager(kind="shell", name="bash")
        assert got.like == "server:678:5201"
        assert got.origin.startswith("pid 678, read 2026-")
        assert got.ready_s is not None
        assert 10 < got.ready_s < 600

    def test_what_it_reads_starts_the_same_command_line(self) -> None:
        for name in ("2xH200-start-load-stop", "4xH200-start-load-stop-kv-oom", "2xH200-tenant-rank-killed"):
            state = real(name)
            identity = state.servers[0].identity
            got = read_recipe(state, state.servers[0], ENGINES["sglang"])
            launch = lay_over(got, Overlay(), None, ENGINES["sglang"], server=state.servers[0])
            assert launch.argv == (identity.interpreter, *identity.argv[1:])
            assert launch.env == {name: value for name, value in (identity.env or {}).items() if not of_session(name)}
            assert (launch.unset, launch.notes, launch.problems) == ((), (), ())
            assert (launch.cwd, launch.port, launch.like) == (identity.cwd, 30000, f"server:{identity.key}")

    def test_vllm_with_its_llm_in_any_place(self) -> None:
        for argv in ("/v/bin/python3 /v/bin/vllm serve org/llm --port 8000", "vllm serve --port 8000 org/llm"):
            one = server(argv, "vllm", interpreter="/v/bin/python3", port=8000)
            got = read_recipe(host(one), one, ENGINES["vllm"])
            assert got.model == "org/llm"
            assert got.command[-1] == "serve"
            assert (*got.command, *got.args) == one.identity.argv
            assert got.name == "gpu-box-1-8000"

    def test_a_login_and_a_service_manager_leave_no_trace(self) -> None:
        session = {
            "SSH_CLIENT": "1.2.3.4", "SSH_AUTH_SOCK": "/tmp/a", "XDG_SESSION_ID": "3", "TERM": "xterm", "PWD": "/root",
            "OLDPWD": "/", "SHLVL": "2", "_": "/bin/python3", "DBUS_SESSION_BUS_ADDRESS": "x", "LS_COLORS": "a",
            "TMUX": "/tmp/t", "TMUX_PANE": "%1", "STY": "1.pts", "INVOCATION_ID": "ab", "JOURNAL_STREAM": "9:1",
            "SYSTEMD_EXEC_PID": "1", "NOTIFY_SOCKET": "@x", "LESSOPEN": "|x", "SUDO_USER": "me", "GPUTUNER_RUN": "r",
            "SUPERVISOR_ENABLED": "1", "SHELL": "/bin/zsh", "BASH_FUNC_x%%": "()", "TERM_PROGRAM": "i",
        }  # fmt: skip
        kept = {
            "PATH": "/v/bin:/bin", "HOME": "/root", "LD_LIBRARY_PATH": "/l", "NCCL_BUFFSIZE": "4", "HF_TOKEN": "***",
            "VIRTUAL_ENV": "/v", "CUDA_VISIBLE_DEVICES": "0,1", "LANG": "C", "PYTHONPATH": "/x", "USER": "root",
            "TERMINAL_LLM": "kept", "XDGLIKE": "kept",
        }  # fmt: skip
        one = server("python -m sglang.launch_server --model m", env=session | kept | {"LONG": "x" * 4096})
        assert read_recipe(host(one), one, ENGINES["sglang"]).env == kept

    def test_a_recipe_has_no_folder_that_is_not_there(self) -> None:
        for cwd, log, folder in (
            ("/srv (deleted)", LogSource(kind="file", path="/logs/a.log"), "/logs"),
            (None, LogSource(kind="docker-json", path="/var/lib/docker/x-json.log"), None),
            (None, LogSource(kind="none"), None),
            (None, LogSource(kind="file", path="/logs/a.log (deleted)"), None),
            (None, LogSource(kind="file", path="/dev/null"), None),
            (None, None, None),
        ):
            one = server("python -m sglang.launch_server --model m", cwd=cwd, log=LogState(source=log))
            got = read_recipe(host(one), one, ENGINES["sglang"])
            assert (got.cwd, got.log_dir) == (None, folder)

    def test_the_time_to_ready_is_its_own_or_the_longest_of_earlier_starts(self) -> None:
        argv = "python -m sglang.launch_server --model m"
        for one, seconds in (
            (server(argv, usual=UsualTimes(starts=3, total_s=(80.0, 100.0)), started_in_s=90.0), 90.0),
            (server(argv, usual=UsualTimes(starts=3, total_s=(80.0, 100.0))), 100.0),
            (server(argv, started_in_s=200.0), 200.0),
            (server(argv), None),
        ):
            assert read_recipe(host(one), one, ENGINES["sglang"]).ready_s == seconds

    def test_an_interpreter_that_was_not_found_by_name_is_not_guessed(self) -> None:
        for argv, interpreter, first in (
            ("python3 -m sglang.launch_server --model m", "/v/bin/python3", "/v/bin/python3"),
            ("python3 -m sglang.launch_server --model m", "/usr/bin/python3.12", "python3"),
            ("./v/bin/python3 -m sglang.launch_server --model m", "/srv/v/bin/python3", "./v/bin/python3"),
            ("python3 -m sglang.launch_server --model m", None, "python3"),
        ):
            one = server(argv, interpreter=interpreter)
            assert read_recipe(host(one), one, ENGINES["sglang"]).command[0] == first

    @pytest.mark.parametrize("change", [{"argv": ()}, {"orphaned": True}])
    def test_what_cannot_be_read_is_refused(self, change: dict[str, Any]) -> None:
        one = server("sglang serve --model m")
        one = REPLACE(one, identity=REPLACE(one.identity, **change))
        with pytest.raises(TunerError, match="48211"):
            read_recipe(host(one), one, ENGINES["sglang"])


class TestLayOver:
    @pytest.mark.parametrize(
        ("base", "gone"),
        [
            ("--a 1 --mem-fraction-static 0.8 --b", "--mem-fraction-static 0.8"),
            ("--a 1 --mem-fraction-static=0.8 --b", "--mem-fraction-static=0.8"),
            ("--mem-fraction-static 0.8 --b --mem-fraction-static 0.7", "0.8 0.7 --mem-fraction-static"),
            ("--mem-frac 0.8 --b", "--mem-frac 0.8"),
            ("--mem-frac=.8 --b", "--mem-frac=.8"),
        ],
    )
    def test_a_flag_that_is_set_anew_goes_in_any_spelling(self, base: str, gone: str) -> None:
        over = Overlay(argv=("--mem-fraction-static", "0.9"), unset_flags=("--mem-fraction-static",))
        left = [word for word in base.split() if word not in gone.split()]
        assert laid(base, over) == [*left, "--mem-fraction-static", "0.9"]

    @pytest.mark.parametrize("tp", ["--tp 8", "--tp-size 8", "--tensor-parallel-size=8"])
    def test_all_names_of_a_flag_are_one(self, tp: str) -> None:
        over = Overlay(argv=("--tp-size", "4"), unset_flags=("--tp-size",))
        assert laid(f"--model-path m {tp} --dp 2", over) == ["--model-path", "m", "--dp", "2", "--tp-size", "4"]

    def test_a_flag_is_no_abbreviation_if_it_is_a_flag_itself(self) -> None:
        over = Overlay(unset_flags=("--log-requests-level", "--enable-metrics-for-all-schedulers"))
        known = parse_help(gzip.decompress((GOLDEN / "help/sglang-0.5.9.txt.gz").read_bytes()).decode())
        base = "--log-requests --enable-metrics --log-requests-l 2"
        assert laid(base, over, known=known) == ["--log-requests", "--enable-metrics"]

    def test_an_abbreviation_of_two_flags_stays(self) -> None:
        over = Overlay(unset_flags=("--cuda-graph-max-bs-decode",))
        known = parse_help(gzip.decompress((GOLDEN / "help/sglang-0.5.23.txt.gz").read_bytes()).decode())
        assert laid("--cuda-graph-max 8", over, known=known) == ["--cuda-graph-max", "8"]

    def test_an_abbreviation_that_is_only_assumed_is_told(self) -> None:
        over = Overlay(unset_flags=("--mem-fraction-static",))
        launch = lay_over(recipe("--mem-frac 0.8"), over, None, ENGINES["sglang"])
        assert launch.notes == ("--mem-frac was taken for --mem-fraction-static, and goes with it",)

    @pytest.mark.parametrize(
        ("base", "unset", "left"),
        [
            ("--cuda-graph-bs 1 2 4 8 --tp 2", "--cuda-graph-bs", "--tp 2"),
            ("--tp 2 --lora-paths a=b c=d", "--lora-paths", "--tp 2"),
            ("--chunked-prefill-size -1 --tp 2", "--chunked-prefill-size", "--tp 2"),
            ("--disable-cuda-graph --tp 2", "--disable-cuda-graph", "--tp 2"),
            ("--enable-tf32-matmul --no-enable-tf32-matmul --tp 2", "--enable-tf32-matmul", "--tp 2"),
            ("--nothing-known 1 2 x --tp 2", "--nothing-known", "--tp 2"),
        ],
    )
    def test_a_flag_goes_with_all_its_values(self, base: str, unset: str, left: str) -> None:
        assert laid(base, Overlay(unset_flags=(unset,))) == left.split()

    @pytest.mark.parametrize(
        ("base", "unset", "left"),
        [
            ("llm -tp 2 --max-num-seqs 8", "--tensor-parallel-size", "llm --max-num-seqs 8"),
            ("llm --max_model_len 8192", "--max-model-len", "llm"),
            ("--max-model-len 8192 llm", "--max-model-len", "llm"),
            ("llm --no-enable-prefix-caching", "--enable-prefix-caching", "llm"),
            ("--enable-prefix-caching llm", "--enable-prefix-caching", "llm"),
            ("llm --cudagraph-capture-sizes 1 2 4", "--cudagraph-capture-sizes", "llm"),
            ("llm --compilation-config.cudagraph_mode FULL -cc.mode=3", "--compilation-config", "llm"),
            (
                "llm --served-model-name a b --tensor-parallel-size 2",
                "--tensor-parallel-size",
                "llm --served-model-name a b",
            ),
            ("llm --data-parallel-size 2", "--data-parallel-size-local", "llm --data-parallel-size 2"),
        ],
    )
    def test_vllm(self, base: str, unset: str, left: str) -> None:
        assert laid(base, Overlay(unset_flags=(unset,)), "vllm") == left.split()

    def test_variables(self) -> None:
        base = REPLACE(recipe("--tp 2"), env={"A": "1", "B": "2", "C": "3"})
        over = Overlay(env={"B": "9", "D": "4"}, unset_env=("A", "B", "X"))
        launch = lay_over(base, over, None, ENGINES["sglang"])
        assert launch.env == {"B": "9", "C": "3", "D": "4"}
        assert launch.unset == ("A", "X")

    def test_a_variable_that_was_taken_out_of_a_recipe_is_not_inherited(self) -> None:
        one = server("sglang serve --model m", env={"NCCL_PROTO": "LL", "HOME": "/root", "SSH_TTY": "x"})
        base = REPLACE(read_recipe(host(one), one, ENGINES["sglang"]), env={"HOME": "/root"})
        assert lay_over(base, Overlay(), None, ENGINES["sglang"], server=one).unset == ("NCCL_PROTO",)
        other = REPLACE(one, identity=REPLACE(one.identity, key="1:1"))
        assert lay_over(base, Overlay(), None, ENGINES["sglang"], server=other).unset == ()

    @pytest.mark.parametrize(
        ("base", "over", "port"),
        [
            ("--port 30001", Overlay(), 30001),
            ("--tp 2", Overlay(), 30000),
            ("--port 30001", Overlay(argv=("--port=31000",), unset_flags=("--port",)), 31000),
            ("--port 30001", Overlay(unset_flags=("--port",)), 30000),
        ],
    )
    def test_the_port_is_the_one_that_the_arguments_say(self, base: str, over: Overlay, port: int) -> None:
        assert lay_over(recipe(base), over, None, ENGINES["sglang"]).port == port

    def test_the_title_names_the_preset_and_what_was_changed_on_top(self) -> None:
        preset = Preset(id="p", title="Two channels", why="w", args={"mem_fraction_static": 0.8})
        table = ENGINES["sglang"].knobs()
        for changes, title in (
            ({}, "p"),
            (
                {"mem_fraction_static": 0.85, "tp_size": None},
                "p with mem_fraction_static 0.85, tp_size by default",
            ),
        ):
            over = overlay(preset, table, "sglang", "0.5.9", changes)
            launch = lay_over(recipe("--tp 2"), over, preset, ENGINES["sglang"])
            assert (launch.preset, launch.title) == ("p", title)
        assert lay_over(recipe("--tp 2"), Overlay(), None, ENGINES["sglang"]).title == "r"

    @pytest.mark.parametrize(
        ("before", "values", "title"),
        [
            ("p with tp_size 4", {"tp_size": 8}, "p with tp_size 8"),
            ("p with tp_size 4, x 1", {"tp_size": 8}, "p with x 1, tp_size 8"),
            ("p with tp_size 4", {}, "p with tp_size 4"),
            ("p", {"tp_size": None}, "p with tp_size by default"),
        ],
    )
    def test_a_value_that_is_changed_once_more_stands_in_the_title_once(
        self, before: str, values: dict[str, Any], title: str
    ) -> None:
        named = msgspec.structs.replace(recipe("--tp 2"), name=before)
        assert lay_over(named, Overlay(values=values), None, ENGINES["sglang"]).title == title

    @pytest.mark.parametrize(
        "preset",
        (
            Preset(id="p", title="t", why="w", args={"custom_all_reduce": False}),
            Preset(id="p", title="t", why="w", args={"cuda_graph_max_bs_decode": 16}),
            Preset(id="p", title="t", why="w", unset=("custom_all_reduce",), env={"NCCL_MAX_NCHANNELS": "2"}),
            Preset(id="p", title="t", why="w", flags={"--new-flag": True}),
        ),
        ids=("an opposite", "an alias", "what is taken away", "a flag that no catalogue holds"),
    )
    def test_a_preset_changes_nothing_by_hand_however_it_names_its_knobs(self, preset: Preset) -> None:
        over = overlay(preset, ENGINES["sglang"].knobs(), "sglang", "0.5.9")
        assert not over.problems
        assert lay_over(recipe("--tp 2"), over, preset, ENGINES["sglang"]).title == "p"

    def test_notes_and_problems_are_passed_on(self) -> None:
        launch = lay_over(recipe(""), Overlay(notes=("n",), problems=("p",), values={"x": 1}), None, ENGINES["sglang"])
        assert (launch.notes, launch.problems, launch.values) == (("n",), ("p",), {"x": 1})

    def test_a_file_of_arguments_is_told_where_something_is_taken_away(self) -> None:
        base = recipe("--config /srv/a.yaml --tp 2")
        assert lay_over(base, Overlay(), None, ENGINES["sglang"]).notes == ()
        (note,) = lay_over(base, Overlay(unset_flags=("--tp",)), None, ENGINES["sglang"]).notes
        assert note.startswith("/srv/a.yaml sets arguments, too")

    def test_secrets_stay_masked_and_in_their_place(self) -> None:
        over = Overlay(argv=("--tp-size", "4"), unset_flags=("--tp-size",))
        assert laid("--api-key *** --tp 2 --model m", over) == ["--api-key", "***", "--model", "m", "--tp-size", "4"]

    def test_a_preset_spelled_for_another_version_replaces_the_base(self) -> None:
        """Up to 0.5.13 it is --cuda-graph-max-bs, later --cuda-graph-max-bs-decode."""
        preset = Preset(id="p", title="t", why="w", args={"cuda_graph_max_bs": 64})
        for version, flag in (("0.5.9", "--cuda-graph-max-bs"), ("0.5.23", "--cuda-graph-max-bs-decode")):
            over = overlay(preset, ENGINES["sglang"].knobs(), "sglang", version)
            for base in ("--cuda-graph-max-bs 32 --tp 2", "--tp 2 --cuda-graph-max-bs-decode 32"):
                assert laid(base, over) == ["--tp", "2", flag, "64"]


def test_a_launch_has_the_recipes_place() -> None:
    base = REPLACE(recipe("--tp 2"), cwd="/srv", log_dir="/logs", like="run:x")
    launch = lay_over(base, Overlay(), None, ENGINES["sglang"])
    assert launch == Launch(
        argv=(*base.command, "--tp", "2"), cwd="/srv", log_dir="/logs", port=30000, like="run:x", title="r"
    )


def test_a_recipe_from_a_file_that_becomes_like_a_server_takes_only_its_secrets() -> None:
    one = server("sglang serve --model m", env={"NCCL_PROTO": "LL", "HF_TOKEN": "***", "SSH_TTY": "x"})
    base = REPLACE(recipe("--model m"), env={"HF_TOKEN": "***"})
    launch = lay_over(base, Overlay(unset_env=("A",)), None, ENGINES["sglang"], server=one)
    assert launch.unset == ("A",)
    like = REPLACE(launch, like=f"server:{one.identity.key}")
    assert without_rest(like, one).unset == ("A", "NCCL_PROTO")
    assert without_rest(without_rest(like, one), one) == without_rest(like, one)


def test_what_an_image_bakes_in_is_no_part_of_a_recipe() -> None:
    baked = ("NV_LIBNCCL_VERSION", "NVIDIA_REQUIRE_CUDA", "PIP_CERT", "UV_LINK_MODE")
    assert [name for name in (*baked, "NVIDIA_VISIBLE_DEVICES", "NCCL_DEBUG") if not of_session(name)] == [
        "NVIDIA_VISIBLE_DEVICES",
        "NCCL_DEBUG",
    ]


def test_the_argument_that_names_the_llm_is_no_short_form_of_a_knob() -> None:
    base = Recipe(name="r", host="h", engine="vllm", command=("/v/vllm", "serve"), args=("--model", "/m"))
    launch = lay_over(base, Overlay(unset_flags=("--model-loader-extra-config",)), None, ENGINES["vllm"])
    assert launch.argv == ("/v/vllm", "serve", "--model", "/m")
    assert launch.notes == ()
