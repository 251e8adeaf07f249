"""What a launch changes on a running server, and what of that server is not as it was asked for."""

from __future__ import annotations

from typing import Any

import msgspec.structs
import pytest

from tests.unit.core.test_recipes import host, real, server
from tuner.core.drift import changes, drift
from tuner.core.gates import hardware_of
from tuner.core.presets import overlay
from tuner.core.recipes import lay_over, read_recipe
from tuner.domain.presets import Overlay, Preset
from tuner.domain.recipe import Launch
from tuner.domain.server import Member
from tuner.domain.starts import Sign, Start
from tuner.domain.state import RankState, ServerState
from tuner.domain.tuning import Change
from tuner.engines import load_engines

ENGINES = load_engines()
REPLACE = msgspec.structs.replace
Row = tuple[str, Any, Any, str]


def launch_of(one: ServerState, version: str = "0.5.9", env: dict[str, str] | None = None, **values: Any) -> Launch:
    """The server's own start with some knobs changed."""
    engine = ENGINES[one.identity.engine]
    preset = Preset(id="p", title="t", why="w", args=values, env=env or {})
    over = overlay(preset, engine.knobs(), engine.name, version)
    assert over.problems == ()
    return lay_over(read_recipe(host(one), one, engine), over, preset, engine, server=one)


def rows(found: tuple[Change, ...]) -> list[Row]:
    return [(each.text or each.name, each.now, each.then, each.source) for each in found]


def sglang(argv: str = "", **more: Any) -> ServerState:
    settings = more.pop("settings", {})
    version = more.pop("version", "0.5.9")
    start = more.pop("start", None)
    one = server(f"/v/bin/python -m sglang.launch_server --model-path m {argv}", version=version, **more)
    return REPLACE(one, settings=settings, start=start)


class TestArguments:
    def test_a_real_server_as_it_is(self) -> None:
        for name in ("2xH200-start-load-stop", "4xH200-start-load-stop-kv-oom", "2xH200-tenant-rank-killed"):
            state = real(name)
            one = state.servers[0]
            again = lay_over(read_recipe(state, one, ENGINES["sglang"]), Overlay(), None, ENGINES["sglang"], server=one)
            assert changes(again, one, ENGINES["sglang"], (), hardware_of(state, one)) == ()
            assert drift(one, ENGINES["sglang"], (), hardware_of(state, one)) == ()

    def test_a_preset_on_a_real_server(self) -> None:
        state = real("2xH200-start-load-stop")
        one = state.servers[0]
        launch = launch_of(
            one, "0.5.16", {"NCCL_MAX_NCHANNELS": "2"}, mem_fraction_static=0.7, chunked_prefill_size=4096, tp_size=2
        )
        assert rows(changes(launch, one, ENGINES["sglang"], (), hardware_of(state, one))) == [
            ("--mem-fraction-static", 0.85, 0.7, "argv"),
            ("--chunked-prefill-size", 8192, 4096, "settings"),
            ("NCCL_MAX_NCHANNELS", None, "2", "default"),
        ]

    def test_the_present_value_is_the_one_that_the_engine_resolved(self) -> None:
        one = sglang(
            "--page-size 1 --chunked-prefill-size 8192", settings={"page_size": 64, "chunked_prefill_size": 8192}
        )
        (change,) = changes(launch_of(one, page_size=16), one, ENGINES["sglang"])
        assert (change.now, change.then, change.source) == (64, 16, "settings")
        assert change.drift == "1 was asked for, and the engine made it 64"

    def test_what_stays_is_listed_only_for_its_drift(self) -> None:
        one = sglang("--page-size 1 --tp 2", settings={"page_size": 64, "tp_size": 2})
        (change,) = drift(one, ENGINES["sglang"])
        assert (change.name, change.now, change.then, change.changed) == ("page_size", 64, 64, False)

    def test_a_value_that_the_engine_chose_by_itself_is_no_change(self) -> None:
        one = sglang(settings={"mem_fraction_static": 0.88})
        (change,) = changes(launch_of(one, mem_fraction_static=0.88), one, ENGINES["sglang"])
        assert not change.changed
        assert change.drift == "it has that value already, which the engine chose by itself"

    def test_a_fixed_default_is_known_without_settings(self) -> None:
        one = sglang()
        (change,) = changes(launch_of(one, max_prefill_tokens=4096), one, ENGINES["sglang"])
        assert (change.now, change.then, change.source) == (16384, 4096, "default")

    @pytest.mark.parametrize(
        ("argv", "resolved"),
        [
            ("--mem-fraction-static 0.880", {"mem_fraction_static": 0.88}),
            ("--max-total-tokens 8k", {"max_total_tokens": 8192}),
            ("--cuda-graph-bs 1 2 4", {"cuda_graph_bs": [1, 2, 4]}),
            ("--disable-cuda-graph", {"disable_cuda_graph": True}),
            ("--kv-cache-dtype AUTO", {"kv_cache_dtype": "auto"}),
        ],
    )
    def test_spellings_of_one_value_are_no_drift(self, argv: str, resolved: dict[str, Any]) -> None:
        assert drift(sglang(argv, settings=resolved), ENGINES["sglang"]) == ()

    def test_thousands_of_vllm_are_thousands(self) -> None:
        one = server("vllm serve m --max-model-len 32k --port 8000", "vllm", version="0.32.0")
        assert drift(REPLACE(one, settings={"max_model_len": 32000}), ENGINES["vllm"]) == ()
        assert drift(REPLACE(one, settings={"max_model_len": 32768}), ENGINES["vllm"]) == ()
        assert len(drift(REPLACE(one, settings={"max_model_len": 16000}), ENGINES["vllm"])) == 1

    def test_what_goes_is_left_to_the_engine(self) -> None:
        one = sglang("--page-size 16")
        preset = Preset(id="p", title="t", why="w", unset=("page_size",))
        over = overlay(preset, ENGINES["sglang"].knobs(), "sglang", "0.5.9")
        launch = lay_over(read_recipe(host(one), one, ENGINES["sglang"]), over, preset, ENGINES["sglang"])
        assert rows(changes(launch, one, ENGINES["sglang"])) == [("--page-size", 16, None, "argv")]

    def test_a_default_that_goes_by_the_memory_of_the_gpus_is_told(self) -> None:
        state = real("2xH200-start-load-stop")
        cards = hardware_of(state, state.servers[0])
        own = state.servers[0].settings["chunked_prefill_size"]
        one = sglang("--chunked-prefill-size 2048", version="0.5.16")
        launch = Launch(argv=one.identity.argv[:-2], like=f"server:{one.identity.key}")
        (change,) = changes(launch, one, ENGINES["sglang"], (), cards)
        assert (change.then, change.default) == (None, 8192) == (None, own), "as the real server chose it"
        (change,) = changes(launch, one, ENGINES["sglang"])
        assert (change.then, change.default) == (None, None)

    def test_flags_that_are_no_knobs_count_too(self) -> None:
        one = sglang("--something new")
        launch = Launch(argv=(*one.identity.argv[:-1], "old", "--other"), like=f"server:{one.identity.key}")
        assert rows(changes(launch, one, ENGINES["sglang"])) == [
            ("--something", "new", "old", "argv"),
            ("--other", None, True, "default"),
        ]

    def test_another_interpreter_is_a_change(self) -> None:
        one = sglang()
        launch = Launch(argv=("/w/bin/python", *one.identity.argv[1:]), like=f"server:{one.identity.key}")
        (change,) = changes(launch, one, ENGINES["sglang"])
        assert (change.name, change.then) == ("command", "/w/bin/python -m sglang.launch_server")

    def test_without_a_server_all_is_new(self) -> None:
        launch = Launch(
            argv=("sglang", "serve", "--model-path", "m", "--tp", "2"), env={"NCCL_PROTO": "LL", "HOME": "/root"}
        )
        assert rows(changes(launch, None, ENGINES["sglang"])) == [
            ("--model-path", None, "m", ""),
            ("--tp-size", None, 2, ""),
            ("NCCL_PROTO", None, "LL", ""),
        ]


class TestVariables:
    def test_they_are_compared_with_the_process(self) -> None:
        one = sglang(env={"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "HOME": "/root", "SSH_TTY": "/dev/pts/1"})
        launch = Launch(
            argv=one.identity.argv,
            env={"NCCL_PROTO": "Simple", "NCCL_BUFFSIZE": "65536"},
            unset=("NCCL_ALGO",),
            like=f"server:{one.identity.key}",
        )
        assert rows(changes(launch, one, ENGINES["sglang"])) == [
            ("NCCL_ALGO", "Ring", None, "environment"),
            ("NCCL_BUFFSIZE", "4194304", "65536", "default"),
            ("NCCL_PROTO", "LL", "Simple", "environment"),
        ]

    def test_a_recipe_that_shares_nothing_with_the_server_leaves_its_variables_behind(self) -> None:
        one = sglang(env={"NCCL_PROTO": "LL", "HOME": "/root", "PATH": "/bin", "TERM": "x"})
        launch = Launch(argv=one.identity.argv)
        assert rows(changes(launch, one, ENGINES["sglang"])) == [("NCCL_PROTO", "LL", None, "environment")]

    def test_a_secret_that_stays_is_no_change(self) -> None:
        one = sglang("--api-key ***", env={"HF_TOKEN": "***"})
        assert changes(launch_of(one), one, ENGINES["sglang"]) == ()

    def test_an_environment_that_cannot_be_read_is_told(self) -> None:
        one = sglang(env=None)
        (change,) = changes(launch_of(one, env={"NCCL_MAX_NCHANNELS": "2"}), one, ENGINES["sglang"])
        assert (change.now, change.then) == (None, "2")
        assert change.drift == "the environment of the running server cannot be read"
        assert drift(one, ENGINES["sglang"]) == ()

    def test_a_value_that_its_processes_have_not_is_told(self) -> None:
        member = Member(pid=2, ppid=1, start_ticks=1, title="python -c x", env={"NCCL_MAX_NCHANNELS": "16"})
        one = sglang(env={"NCCL_MAX_NCHANNELS": "2"})
        one = REPLACE(one, identity=REPLACE(one.identity, members=(member,)))
        (change,) = drift(one, ENGINES["sglang"])
        assert (change.now, change.then, change.source) == ("16", "16", "environment")
        assert change.drift.startswith("it began with 2, and its processes have 16: the engine, or a file")
        files = [
            {"name": "NCCL_MAX_NCHANNELS", "value": "16", "path": "/v/sitecustomize.py", "line": 3, "how": "assign"}
        ]
        (change,) = drift(one, ENGINES["sglang"], files)
        assert change.drift.endswith("have 16: /v/sitecustomize.py:3 sets it to 16")

    def test_what_a_rank_has_of_its_own_is_none(self) -> None:
        member = Member(pid=2, ppid=1, start_ticks=1, title="sglang::scheduler", env={"CUDA_VISIBLE_DEVICES": "1"})
        one = sglang(env={"CUDA_VISIBLE_DEVICES": "0,1"})
        identity = REPLACE(one.identity, members=(member,))
        one = REPLACE(one, identity=identity, ranks=(RankState(tag="TP0", pid=2),))
        assert drift(one, ENGINES["sglang"]) == ()

    def test_what_the_log_says_was_read_counts_where_the_process_has_it_not(self) -> None:
        """Somebody set it inside the process: it is in no environment that can be seen."""
        sign = Sign(id="nccl-env", at=1, fields={"name": "NCCL_MAX_NCHANNELS", "value": "2"})
        own = Sign(id="nccl-env", at=1, fields={"name": "NCCL_CUMEM_ENABLE", "value": "0"})
        start = Start(engine="sglang", version="0.5.9", signs=(sign, own), env_read=True)
        (change,) = drift(sglang(start=start), ENGINES["sglang"])
        assert (change.name, change.now, change.source) == ("NCCL_MAX_NCHANNELS", "2", "log")


class TestFiles:
    @pytest.mark.parametrize(
        ("how", "own", "now", "words"),
        [
            ("assign", {"NCCL_PROTO": "LL"}, "Simple", "/v/sitecustomize.py:7 sets it to Simple"),
            ("assign", {}, "Simple", "/v/sitecustomize.py:7 sets it to Simple"),
            ("default", {}, "Simple", "/v/sitecustomize.py:7 sets it to Simple"),
            ("unset", {"NCCL_PROTO": "LL"}, None, "/v/sitecustomize.py:7 takes it away"),
        ],
    )
    def test_a_file_behind_the_scenes_is_told(self, how: str, own: dict[str, str], now: str | None, words: str) -> None:
        files = [{"name": "NCCL_PROTO", "value": "Simple", "path": "/v/sitecustomize.py", "line": 7, "how": how}]
        (change,) = drift(sglang(env=own), ENGINES["sglang"], files)
        assert (change.now, change.source, change.drift) == (now, "file", words)
        assert not change.changed

    @pytest.mark.parametrize(
        ("how", "own"),
        [
            ("default", {"NCCL_PROTO": "LL"}),
            ("unset", {}),
            ("login", {}),
            ("unit", {}),
            ("assign", {"NCCL_PROTO": "X"}),
        ],
    )
    def test_a_file_that_changes_nothing_is_not(self, how: str, own: dict[str, str]) -> None:
        files = [{"name": "NCCL_PROTO", "value": "X", "path": "/etc/nccl.conf", "line": 1, "how": how}]
        assert drift(sglang(env=own), ENGINES["sglang"], files) == ()

    def test_a_preset_is_told_that_a_file_wins(self) -> None:
        files = [
            {"name": "NCCL_MAX_NCHANNELS", "value": "16", "path": "/v/sitecustomize.py", "line": 2, "how": "assign"}
        ]
        one = sglang()
        (change,) = changes(launch_of(one, env={"NCCL_MAX_NCHANNELS": "2"}), one, ENGINES["sglang"], files)
        assert (change.now, change.then, change.source) == ("16", "2", "file")
        assert change.drift == "/v/sitecustomize.py:2 sets it to 16 all the same"


class TestIgnored:
    @pytest.mark.parametrize(
        ("version", "drift"),
        [
            ("0.5.2", "1 will do nothing: SGLang 0.5.2 sets it itself, to 0"),
            ("0.5.4", "1 will do nothing: SGLang 0.5.4 sets it itself, to 0"),
            ("0.5.9", ""),
        ],
    )
    def test_a_variable_that_the_engine_overwrites(self, version: str, drift: str) -> None:
        one = sglang(version=version)
        (change,) = changes(launch_of(one, version, {"NCCL_CUMEM_ENABLE": "1"}), one, ENGINES["sglang"])
        assert (change.name, change.then, change.drift) == ("NCCL_CUMEM_ENABLE", "1", drift)

    def test_it_is_told_of_the_running_server_as_well(self) -> None:
        one = sglang(version="0.5.4", env={"NCCL_CUMEM_ENABLE": "1"})
        (change,) = drift(one, ENGINES["sglang"])
        assert not change.changed
        assert change.drift == "1 was set and does nothing: SGLang 0.5.4 sets it itself, to 0"

    def test_limits_that_contradict_each_other(self) -> None:
        one = sglang(env={"NCCL_MIN_NCHANNELS": "8"})
        (change,) = changes(launch_of(one, env={"NCCL_MAX_NCHANNELS": "2"}), one, ENGINES["sglang"])
        assert change.drift == "2 will do nothing: NCCL_MIN_NCHANNELS=8 is applied after it and wins, to 8"


def test_what_gputuner_sets_itself_is_no_change() -> None:
    own = {"GPUTUNER_RUN": "20261130-101523-a1b2c3d4", "HOST_ROOT": "/tmp/a"}
    one = sglang(env={**own, "NCCL_ALGO": "Ring"})
    launch = REPLACE(launch_of(sglang(env={"NCCL_ALGO": "Tree"})), like="")
    names = [each.name for each in changes(launch, one, ENGINES["sglang"])]
    assert not own.keys() & set(names)
