"""Presets composed, spelled for a version, and held against a host."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support import states
from tuner.core.hazards import dangers
from tuner.core.presets import overlay, resolve, unmet
from tuner.domain.gates import Hardware
from tuner.domain.presets import Expectation, Overlay, Preset, Requires
from tuner.domain.state import HostState
from tuner.engines import load_engines
from tuner.errors import CatalogError, UsageProblem

ENGINES = load_engines()
SGLANG, VLLM = ENGINES["sglang"].knobs(), ENGINES["vllm"].knobs()


def preset(id: str = "mine", **fields: Any) -> Preset:  # noqa: A002 - the field's name
    lines = {key: at for at, key in enumerate(_keys(fields), 1)}
    return Preset(id=id, title=id.title(), why="to test", path=f"{id}.toml", lines=fields.pop("lines", lines), **fields)


def _keys(fields: dict[str, Any]) -> list[str]:
    keys = []
    for name, value in fields.items():
        keys.append(name)
        keys += [f"{name}.{each}" for each in value] if isinstance(value, dict | tuple) else []
    return keys


def known(*presets: Preset) -> dict[str, Preset]:
    return {each.id: each for each in presets}


def sglang(one: Preset, version: str | None = "0.5.23", **more: Any) -> Overlay:
    return overlay(one, SGLANG, "sglang", version, **more)


def vllm(one: Preset, version: str | None = "0.32.0", **more: Any) -> Overlay:
    return overlay(one, VLLM, "vllm", version, **more)


class TestResolve:
    def test_bases_come_first_in_their_order_and_own_values_win(self) -> None:
        low = preset("low", args={"tp_size": 2, "mem_fraction_static": 0.8}, env={"NCCL_PROTO": "LL"})
        high = preset("high", args={"mem_fraction_static": 0.85, "max_running_requests": 8})
        own = preset("own", extends=("low", "high"), args={"max_running_requests": 16})
        whole = resolve(known(low, high, own), "own")
        assert whole.args == {"tp_size": 2, "mem_fraction_static": 0.85, "max_running_requests": 16}
        assert list(whole.args)[-1] == "max_running_requests", "what was set last comes last"
        assert whole.env == {"NCCL_PROTO": "LL"}
        assert (whole.id, whole.title, whole.path) == ("own", "Own", "own.toml")

    def test_a_base_shared_by_two_is_taken_once_and_below_both(self) -> None:
        root = preset("root", args={"tp_size": 1, "page_size": 16}, expect=(Expectation(what="a", source="b"),))
        left = preset("left", extends=("root",), args={"tp_size": 2})
        right = preset("right", extends=("root",), args={"page_size": 64})
        own = preset("own", extends=("left", "right"))
        whole = resolve(known(root, left, right, own), "own")
        assert whole.args == {"tp_size": 1, "page_size": 64}, "the later base wins with all that it has"
        assert whole.expect == (Expectation(what="a", source="b"),)

    def test_unset_takes_an_inherited_value_away_and_a_value_takes_an_inherited_unset_away(self) -> None:
        low = preset("low", args={"tp_size": 2}, unset=("page_size",))
        own = preset("own", extends=("low",), args={"page_size": 64}, unset=("tp_size",))
        whole = resolve(known(low, own), "own")
        assert (whole.args, whole.unset) == ({"page_size": 64}, ("tp_size",))

    def test_needs_add_up(self) -> None:
        low = preset("low", requires=Requires(gpus=2, compute=("9.0", "12.0"), words="one"))
        own = preset("own", extends=("low",), requires=Requires(gpus=8, compute=("12.0",), words="two"))
        needs = resolve(known(low, own), "own").requires
        assert (needs.gpus, needs.compute, needs.words) == (8, ("12.0",), "one; two")

    @pytest.mark.parametrize(
        ("presets", "words", "path"),
        [
            ((preset("a", extends=("b",)),), "a extends b, which does not exist", "a.toml"),
            ((preset("a", extends=("a",)),), "a extends itself (a -> a)", "a.toml"),
            (
                (preset("a", extends=("b",)), preset("b", extends=("c",)), preset("c", extends=("b",))),
                "c extends itself (b -> c -> b)",
                "c.toml",
            ),
            (
                (preset("a", extends=("b",), engine="vllm"), preset("b", engine="sglang")),
                "a joins presets for sglang and vllm",
                "a.toml",
            ),
            (
                (
                    preset("a", extends=("b",), requires=Requires(interconnect="pcie")),
                    preset("b", requires=Requires(interconnect="nvlink")),
                ),
                "with and without NVLink",
                "a.toml",
            ),
        ],
    )
    def test_what_cannot_be_composed_is_refused_with_its_line(
        self, presets: tuple[Preset, ...], words: str, path: str
    ) -> None:
        with pytest.raises(CatalogError) as caught:
            resolve(known(*presets), "a")
        assert words in caught.value.title
        assert (caught.value.path.name, caught.value.line) == (path, 1)

    def test_an_unknown_one_names_those_that_are_like_it(self) -> None:
        with pytest.raises(UsageProblem, match="graphs-16"):
            resolve(known(preset("graphs-16")), "graphs-61")


class TestSpelling:
    @pytest.mark.parametrize(
        ("version", "flag"),
        [
            ("0.5.9", "--cuda-graph-max-bs"),
            ("0.5.13", "--cuda-graph-max-bs"),
            ("0.5.14", "--cuda-graph-max-bs-decode"),
            ("0.5.20", "--cuda-graph-max-bs-decode"),
            (None, "--cuda-graph-max-bs-decode"),
        ],
    )
    def test_a_renamed_argument(self, version: str | None, flag: str) -> None:
        laid = sglang(preset(args={"cuda_graph_max_bs": 16}), version)
        assert laid.argv == (flag, "16")
        assert {"--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"} <= set(laid.unset_flags)
        assert laid.values == {"cuda_graph_max_bs": 16}

    def test_every_other_spelling_leaves_the_base(self) -> None:
        laid = sglang(preset(args={"tp_size": 8}, env={"NCCL_MAX_NCHANNELS": "2"}))
        assert {"--tp", "--tp-size", "--tensor-parallel-size"} <= set(laid.unset_flags)
        assert laid.env == {"NCCL_MAX_NCHANNELS": "2"}
        assert laid.unset_env == ("NCCL_MAX_CTAS",)

    @pytest.mark.parametrize(
        ("args", "argv", "value"),
        [
            ({"custom_all_reduce": True}, (), False),
            ({"custom_all_reduce": False}, ("--disable-custom-all-reduce",), True),
            ({"disable_custom_all_reduce": True}, ("--disable-custom-all-reduce",), True),
            ({"custom_all_reduce": "off"}, ("--disable-custom-all-reduce",), True),
        ],
    )
    def test_a_switch_is_set_from_both_sides(self, args: dict[str, Any], argv: tuple[str, ...], value: bool) -> None:
        for laid in (sglang(preset(args=args)), vllm(preset(args=args))):
            assert laid.argv == argv
            assert "--disable-custom-all-reduce" in laid.unset_flags
            assert laid.values == {"disable_custom_all_reduce": value}
            assert laid.problems == ()
            assert any("taken away from the base" in note for note in laid.notes) is (argv == ())

    def test_a_switch_that_is_on_by_itself_is_switched_off_by_its_own_flag(self) -> None:
        laid = vllm(preset(args={"enable_prefix_caching": False}))
        assert laid.argv == ("--no-enable-prefix-caching",)
        assert set(laid.unset_flags) == {"--enable-prefix-caching", "--no-enable-prefix-caching"}

    def test_values_are_written_as_the_engine_reads_them(self) -> None:
        laid = sglang(
            preset(
                args={
                    "cuda_graph_bs": [1, 2, 4],
                    "mem_fraction_static": 0.85,
                    "uvicorn_access_log_exclude_prefixes": "/a",
                },
                env={"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "on", "MY_OWN": "x y"},
                flags={"--new-switch": True, "--new-value": "3"},
            )
        )
        assert laid.argv == (
            *("--cuda-graph-bs-decode", "1", "2", "4", "--mem-fraction-static", "0.85"),
            *("--uvicorn-access-log-exclude-prefixes", "/a", "--new-switch", "--new-value", "3"),
        )
        assert laid.env == {"MY_OWN": "x y", "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}
        assert any("MY_OWN is not in the catalogue" in note for note in laid.notes)

    def test_a_variable_that_once_meant_the_contrary(self) -> None:
        one = preset(env={"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"})
        assert sglang(one, "0.5.9").env == {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
        assert sglang(one, "0.5.6").env == {"SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK": "1"}

    def test_a_table_becomes_json(self) -> None:
        laid = vllm(preset(args={"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}))
        assert laid.argv == ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
        assert {"-sc", "--spec-method", "--spec-tokens"} <= set(laid.unset_flags)

    def test_what_is_unset_leaves_the_base(self) -> None:
        laid = sglang(preset(unset=("speculative_algorithm", "NCCL_PROTO", "--strange", "MY_OWN")))
        assert (laid.argv, laid.env) == ((), {})
        assert laid.unset_flags == ("--speculative-algorithm", "--strange")
        assert laid.unset_env == ("MY_OWN", "NCCL_PROTO")
        assert laid.values == {"speculative_algorithm": None, "NCCL_PROTO": None}

    def test_overrides_win_and_none_leaves_it_to_the_engine(self) -> None:
        one = preset(args={"mem_fraction_static": 0.8, "tp_size": 4})
        laid = sglang(one, changes={"mem_fraction_static": 0.9, "tp_size": None, "custom_all_reduce": False})
        assert laid.argv == ("--mem-fraction-static", "0.9", "--disable-custom-all-reduce")
        assert laid.values == {"mem_fraction_static": 0.9, "tp_size": None, "disable_custom_all_reduce": True}

    def test_a_newer_version_than_all_known_is_said_to_be_assumed(self) -> None:
        laid = sglang(preset(args={"tp_size": 4}), "0.6.1")
        assert laid.argv == ("--tp-size", "4")
        assert any("newer than all that were read" in note for note in laid.notes)

    def test_own_values_win_over_what_a_base_takes_away_under_another_name(self) -> None:
        low = preset("low", unset=("custom_all_reduce",))
        own = preset("own", extends=("low",), args={"disable_custom_all_reduce": True})
        assert sglang(resolve(known(low, own), "own")).argv == ("--disable-custom-all-reduce",)


class TestRefusals:
    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"args": {"tp_sise": 8}}, "mine.toml:2: there is no knob tp_sise. Did you mean tp_size"),
            ({"args": {"tp_size": "eight"}}, "mine.toml:2: tp_size cannot be eight. A whole number is meant"),
            ({"args": {"tp_size": 8.5}}, "mine.toml:2: tp_size cannot be 8.5. A whole number is meant"),
            ({"args": {"tp_size": True}}, "tp_size cannot be true. A whole number is meant"),
            ({"args": {"disable_cuda_graph": 3}}, "disable_cuda_graph cannot be 3. On or off is meant"),
            ({"args": {"mem_fraction_static": 2}}, "mem_fraction_static cannot be 2. 2 is more than 1"),
            ({"args": {"tp_size": [1, 2]}}, "a list"),
            ({"args": {"kv_cache_dtype": "fp7"}}, "kv_cache_dtype cannot be fp7 in sglang 0.5.23. It is one of auto,"),
            (
                {"args": {"gpu_memory_utilization": 0.9}},
                "sglang has no gpu_memory_utilization; its mem_fraction_static",
            ),
            ({"args": {"NCCL_PROTO": "LL"}}, "NCCL_PROTO is a variable. Move it to [env]"),
            ({"env": {"tp_size": "8"}}, "tp_size is an argument, no variable. Move it to [args]"),
            ({"env": {"NCCL_MAX_NCHANELS": "2"}}, "there is no variable NCCL_MAX_NCHANELS. Did you mean NCCL_MAX_NCHA"),
            ({"flags": {"--api-key": "x"}}, "--api-key holds a secret, and presets are shown and shared"),
            ({"env": {"HF_TOKEN": "x"}}, "mine.toml:2: HF_TOKEN holds a secret"),
            (
                {"args": {"load_format": "auto", "dist_init_addr": "hf_abcdefGHIJKLMNOP"}},
                "dist_init_addr holds a secret",
            ),
            ({"env": {"MY OWN": "x"}}, "MY OWN is no name of a variable"),
            ({"flags": {"new": "x"}}, "new is no flag"),
            ({"env": {"MY_OWN": "a\0b"}}, "MY_OWN has a NUL character"),
            ({"flags": {"--tp": "8"}}, "--tp is the knob tp_size. Move it to [args]"),
            ({"unset": ("tp_sise",)}, "there is no knob tp_sise"),
            ({"args": {"tp_size": 8}, "unset": ("tp_size",)}, "tp_size is set and unset. Keep one"),
            (
                {"args": {"custom_all_reduce": True, "disable_custom_all_reduce": True}},
                "disable_custom_all_reduce and custom_all_reduce set the same knob. Keep one",
            ),
            (
                {"args": {"cuda_graph_max_bs": 8, "disable_cuda_graph": True}},
                "it sizes CUDA graphs, which are switched",
            ),
            ({"args": {"cuda_graph_max_bs": 8, "cuda_graph": False}}, "it sizes CUDA graphs, which are switched off"),
            (
                {"env": {"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "2"}},
                "mine.toml:2: NCCL_MIN_NCHANNELS=8: NCCL applies the minimum after the maximum",
            ),
            ({"env": {"NCCL_P2P_LEVEL": "PHB", "NCCL_P2P_DISABLE": "1"}}, "forbids any direct traffic"),
            (
                {"env": {"NCCL_BUFFSIZE": "5000000"}},
                "can hang: NCCL hangs or corrupts data with buffers whose size is no",
            ),
            ({"env": {"NCCL_PROTO": "LL128"}}, "can corrupt: where the topology"),
            ({"env": {"NCCL_PROTO": "LL,LL128"}}, "can corrupt: where the topology"),
            ({"env": {"NCCL_P2P_LEVEL": "SYS"}}, 'requires.iommu = "off"'),
            (
                {
                    "args": {"custom_all_reduce": True},
                    "env": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"},
                },
                "can crash: custom all-reduce cannot share memory of expandable segments",
            ),
            ({"engine": "vllm"}, "it is for vllm, not for sglang"),
            ({"requires": Requires(versions={"sglang": "- 0.5.9"})}, "it needs sglang up to 0.5.9, not 0.5.23"),
        ],
    )
    def test_one_clear_line(self, fields: dict[str, Any], words: str) -> None:
        laid = sglang(preset(**fields))
        assert len(laid.problems) == 1, laid.problems
        assert words in laid.problems[0]
        assert "\n" not in laid.problems[0]

    @pytest.mark.parametrize(
        ("fields", "version", "words"),
        [
            (
                {"env": {"SGLANG_CUSTOM_ALLREDUCE_ALGO": "1stage"}},
                "0.5.9",
                "SGLANG_CUSTOM_ALLREDUCE_ALGO came with 0.5.10",
            ),
            ({"env": {"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}}, "0.5.20", "came with 0.5.21"),
            ({"args": {"enable_piecewise_cuda_graph": True}}, "0.5.16", "went after 0.5.9"),
        ],
    )
    def test_a_knob_that_a_version_lacks(self, fields: dict[str, Any], version: str, words: str) -> None:
        (problem,) = sglang(preset(**fields), version).problems
        assert problem.startswith(f"mine.toml:2: sglang {version} has no ")
        assert words in problem

    def test_a_value_out_of_the_range_of_versions_is_told_once(self) -> None:
        one = preset(requires=Requires(versions={"sglang": "0.5.21 -"}), env={"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"})
        assert sglang(one, "0.5.9").problems == ("mine.toml:1: it needs sglang 0.5.21 or later, not 0.5.9",)

    def test_the_file_of_an_inherited_value_is_named(self) -> None:
        low = preset("low", env={"NCCL_PROTO": "LL128"})
        own = preset("own", extends=("low",))
        (problem,) = sglang(resolve(known(low, own), "own")).problems
        assert problem.startswith("low.toml:2: ")

    def test_an_override_has_no_place(self) -> None:
        laid = sglang(preset(), changes={"tp_sise": 8})
        assert laid.problems[0].startswith("there is no knob tp_sise. Did you mean")


class TestHazards:
    def test_what_a_preset_requires_rules_a_hazard_out(self) -> None:
        assert sglang(preset(env={"NCCL_PROTO": "LL128"}, requires=Requires(interconnect="nvlink"))).problems == ()
        assert sglang(preset(env={"NCCL_P2P_LEVEL": "SYS"}, requires=Requires(iommu="off"))).problems == ()

    def test_the_host_decides_where_it_is_known(self) -> None:
        one = preset(env={"NCCL_P2P_LEVEL": "SYS"}, requires=Requires(iommu="off"))
        assert sglang(one, hardware=Hardware(iommu=True)).problems
        assert sglang(preset(env={"NCCL_PROTO": "LL128"}), hardware=Hardware(full_nvlink=True)).problems == ()

    def test_what_is_not_known_of_the_host_is_as_the_preset_requires_it(self) -> None:
        one = preset(env={"NCCL_P2P_LEVEL": "SYS"}, requires=Requires(iommu="off"))
        laid = sglang(one, hardware=Hardware(full_nvlink=False, capability="12.0"))
        assert laid.problems == ()
        assert any("the operator's word" in note for note in laid.notes)

    def test_a_backend_for_another_card_ends_the_start(self) -> None:
        one = preset(args={"attention_backend": "fa3"})
        assert sglang(one).problems == ()
        assert any("can crash" in note for note in sglang(one).notes)
        assert sglang(one, hardware=Hardware(capability="9.0")).notes == ()
        (problem,) = sglang(one, hardware=Hardware(capability="12.0")).problems
        assert "FlashAttention 3 runs on compute capability 8 and 9 only" in problem

    def test_the_base_decides_where_it_is_known(self) -> None:
        one = preset(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
        assert sglang(one).problems == ()
        assert sglang(one, base={}).problems, "custom all-reduce is on by itself"
        assert sglang(one, base={"disable_custom_all_reduce": True}).problems == ()

    def test_a_value_that_the_base_contradicts(self) -> None:
        one = preset(env={"NCCL_MIN_NCHANNELS": "8"})
        assert sglang(one, base={}).problems == ()
        assert sglang(one, base={"NCCL_MAX_NCHANNELS": 2}).problems
        assert sglang(preset(env={"NCCL_MIN_NCHANNELS": "8"}, unset=("NCCL_MAX_NCHANNELS",))).problems == ()

    def test_a_variable_that_no_release_reads(self) -> None:
        laid = sglang(preset(env={"SGLANG_FORCE_CUSTOM_AR_PCIE": "1"}))
        assert laid.problems == ()
        assert any("no release of SGLang reads it" in note for note in laid.notes)

    def test_an_algorithm_that_the_second_implementation_does_not_read(self) -> None:
        one = preset(env={"SGLANG_CUSTOM_ALLREDUCE_ALGO": "2stage"})
        assert any("does not read it" in note for note in sglang(one, base={}).notes)
        off = preset(env={"SGLANG_CUSTOM_ALLREDUCE_ALGO": "2stage", "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "0"})
        assert not any("has no effect" in note for note in sglang(off, base={}).notes)

    def test_the_default_named_is_no_danger(self) -> None:
        assert vllm(preset(env={"VLLM_SKIP_P2P_CHECK": "1"}), hardware=Hardware(full_nvlink=False)).problems == ()

    def test_steps_smaller_than_the_requests(self) -> None:
        one = preset(args={"max_num_batched_tokens": 128, "max_running_requests": 256})
        assert "must hold one token of each sequence" in vllm(one).problems[0]

    def test_values_of_a_whole_launch_can_be_judged(self) -> None:
        found = list(dangers({"NCCL_PROTO": "LL128", "tp_size": 2}, SGLANG, None))
        assert [(each.knob, each.refuses) for each in found] == [("NCCL_PROTO", True)]


class TestUnmet:
    def host(self) -> HostState:
        state = states.serving()
        assert state.gpu_table is not None
        return state

    def test_nothing_is_known_to_be_missing_on_an_unknown_host(self) -> None:
        one = preset(requires=Requires(gpus=64, interconnect="nvlink", compute=("9.0",), memory_gib=900))
        assert unmet(one, None, "sglang", None) == ()

    def test_what_a_host_lacks_is_told_with_what_it_has(self) -> None:
        state = self.host()
        assert state.gpu_table is not None
        count = len(state.gpu_table.gpus)
        card = msgspec.structs.replace(state.gpu_table.gpus[0], compute_capability="12.0", nvlink_count=0)
        gpus = tuple(msgspec.structs.replace(card, index=at) for at in range(count))
        table = msgspec.structs.replace(state.gpu_table, gpus=gpus, topology=None)
        state = msgspec.structs.replace(state, gpu_table=table)
        one = preset(
            requires=Requires(
                gpus=count + 1, interconnect="nvlink", compute=("9.0",), memory_gib=4096, versions={"sglang": "0.6 -"}
            )
        )
        told = unmet(one, state, "sglang", "0.5.23")
        assert [each.partition(",")[0] for each in told] == [
            "needs sglang 0.6 or later",
            f"needs {count + 1} GPUs",
            "needs NVLink between every pair of GPUs",
            "needs compute capability 9.0",
            "needs 4096 GiB on each card",
        ]
        assert unmet(preset(requires=Requires(interconnect="pcie", gpus=count)), state, "sglang", "0.5.23") == ()

    def test_another_engine(self) -> None:
        assert unmet(preset(engine="vllm"), None, "sglang", "0.5.9") == ("is for vllm, not for sglang",)
