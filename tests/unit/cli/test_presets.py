"""`presets` as it is called: text and JSON, exit codes, one clear line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tuner.cli import run
from tuner.paths import presets_dir

GOOD = 'title = "Mine"\nwhy = "to test"\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an empty project's presets; the user has none."""
    monkeypatch.setenv("GPUTUNER_HOME", str(tmp_path / "home"))
    folder = tmp_path / "project/presets"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    return folder


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], project: Path) -> Any:
    """Run a command; its exit code, output and error output."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = run(["presets", *(str(each) for each in arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


class TestList:
    def test_json_is_an_array_of_what_people_choose_by(self, told: Any) -> None:
        code, out, err = told("list", "--json")
        rows = json.loads(out)
        assert (code, err) == (0, "")
        assert len(rows) == len(list(presets_dir().glob("*.toml")))
        assert all(list(row) == ["id", "title", "engine", "why", "requires"] for row in rows)
        row = next(row for row in rows if row["id"] == "sglang-pcie-ipc")
        assert row["engine"] == "sglang"
        assert row["requires"]["interconnect"] == "pcie"
        assert row["requires"]["versions"] == {"sglang": "0.5.21 -"}

    def test_the_needs_are_those_of_what_it_extends_too(self, told: Any, project: Path) -> None:
        (project / "mine.toml").write_text(GOOD + 'extends = ["sglang-pcie-ipc"]\n')
        row = next(row for row in json.loads(told("list", "--json")[1]) if row["id"] == "mine")
        assert (row["engine"], row["requires"]["interconnect"]) == ("sglang", "pcie")

    def test_whose_a_preset_is_is_marked_unless_it_is_bundled(self, told: Any, project: Path, tmp_path: Path) -> None:
        assert told("list")[1].split("\n")[0].split() == ["key", "id", "engine", "host", "title"]
        yours = tmp_path / "home/config/presets"
        yours.mkdir(parents=True)
        (yours / "own.toml").write_text(GOOD)
        (project / "shared.toml").write_text(GOOD + 'extends = ["sglang-pcie-ipc"]\n')
        lines = [line.split() for line in told("list")[1].splitlines()]
        assert lines[0] == ["key", "id", "from", "engine", "host", "title"]
        named = {line[1]: line[2] for line in lines if line}
        assert (named["own"], named["shared"], named["sglang-pcie-ipc"]) == ("yours", "project", "-")
        assert set(json.loads(told("list", "--json")[1])[0]) == {"id", "title", "engine", "why", "requires"}

    def test_the_keys_are_those_of_the_tune_screen(self, told: Any, project: Path) -> None:
        (project / "aaa.toml").write_text(GOOD)
        lines = told("list")[1].splitlines()
        bundled = sorted(path.stem for path in presets_dir().glob("*.toml"))
        numbered = [(str(key), name) for key, name in enumerate(bundled[:9], start=1)]
        assert [tuple(line.split()[:2]) for line in lines[1:10]] == numbered
        others = [line.split()[1] for line in lines[10:] if line.startswith("  - ")]
        assert others == [*bundled[9:], "aaa"], "one that is added moves none of the others"

    def test_a_server_is_one_of_a_host(self, told: Any) -> None:
        code, _, err = told("list", "--server", "7")
        assert (code, "--server needs a HOST" in err) == (2, True)

    def test_a_broken_file_is_named_and_leaves_the_others(self, told: Any, project: Path) -> None:
        (project / "bad.toml").write_text(GOOD + "[args]\ntp_size = 'eight'\n")
        (project / "mine.toml").write_text(GOOD)
        code, out, err = told("list")
        assert code == 0
        assert "mine" in out
        assert (
            err
            == f"gputuner: {project / 'bad.toml'}:4: tp_size cannot be eight. A whole number is meant, not 'eight'\n"
        )


class TestShow:
    @pytest.mark.parametrize(
        ("arguments", "argv"),
        [
            (("--engine", "sglang", "--engine-version", "0.5.9"), ["--cuda-graph-max-bs", "16"]),
            (("--engine", "sglang", "--engine-version", "0.5.20"), ["--cuda-graph-max-bs-decode", "16"]),
            (("--engine", "vllm", "--engine-version", "0.32.0"), ["--max-cudagraph-capture-size", "16"]),
            ((), ["--cuda-graph-max-bs-decode", "16"]),
        ],
    )
    def test_json_is_the_overlay_alone(self, told: Any, arguments: tuple[str, ...], argv: list[str]) -> None:
        code, out, err = told("show", "graphs-16", *arguments, "--json")
        answer = json.loads(out)
        assert (code, err) == (0, "")
        assert list(answer) == ["argv", "env", "notes"]
        assert (answer["argv"], answer["env"]) == (argv, {})

    def test_all_values_are_texts(self, told: Any, project: Path) -> None:
        (project / "mine.toml").write_text(
            GOOD + "[args]\nmax_running_requests = 8\n[env]\nNCCL_MAX_NCHANNELS = 2\nNCCL_P2P_DISABLE = true\n"
        )
        answer = json.loads(told("show", "mine", "--json")[1])
        assert answer["argv"] == ["--max-running-requests", "8"]
        assert answer["env"] == {"NCCL_MAX_NCHANNELS": "2", "NCCL_P2P_DISABLE": "1"}

    def test_a_switch_that_goes_is_noted(self, told: Any) -> None:
        answer = json.loads(told("show", "custom-all-reduce-on", "--json")[1])
        assert answer["argv"] == []
        assert any("--disable-custom-all-reduce" in note and "taken away" in note for note in answer["notes"])

    def test_text_says_why_what_it_needs_and_where_figures_are_from(self, told: Any) -> None:
        code, out, _ = told("show", "sglang-prefill-4096", "--engine-version", "0.5.9")
        assert "default   chunked_prefill_size: by the memory of the smallest GPU: 2048, 4096 from 35 GiB" in out
        code, out, _ = told("show", "sglang-pcie-ipc")
        text = " ".join(out.split())
        assert code == 0
        for words in (
            "why The upstream answer for hosts without NVLink",
            "needs GPUs without NVLink between all of them",
            "needs sglang 0.5.21 or later",
            "for SGLang 0.5.23",
            "env SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1",
            "35.0 to 48.05 tok/s, on the same 8 cards (SGLang pull request 34528; upstream's figure",
        ):
            assert words in text

    def test_a_version_that_lacks_a_knob_refuses_it(self, told: Any) -> None:
        code, out, err = told("show", "sglang-pcie-ipc", "--engine-version", "0.5.9", "--json")
        assert (code, out) == (1, "")
        assert "it needs SGLang 0.5.21 or later, not 0.5.9" in err
        assert len(err.splitlines()) == 1

    def test_a_value_that_does_harm_is_refused_with_the_reason(self, told: Any, project: Path) -> None:
        (project / "mine.toml").write_text(GOOD + '[env]\nNCCL_BUFFSIZE = "5000000"\n')
        code, out, err = told("show", "mine")
        assert (code, out) == (1, "")
        assert err.startswith(f"gputuner: {project / 'mine.toml'}:4: NCCL_BUFFSIZE=5000000 can hang: ")
        assert "Take a power of two" in err

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("graphs-61",), "There is no preset graphs-61. Did you mean graphs-16"),
            (("graphs-16", "--engine-version", "new"), "new is no version"),
            (("graphs-16", "--engine", "llama"), "There is no engine llama. It is one of sglang, vllm"),
        ],
    )
    def test_what_there_is_not(self, told: Any, arguments: tuple[str, ...], words: str) -> None:
        code, out, err = told("show", *arguments)
        assert (code, out) == (2, "")
        assert words in err

    def test_another_engine_than_its_own_is_refused(self, told: Any) -> None:
        code, _, err = told("show", "vllm-pcie-ipc", "--engine", "sglang")
        assert code == 1
        assert "it is for vLLM, not for SGLang" in err

    def test_a_broken_one_is_refused_with_its_line(self, told: Any, project: Path) -> None:
        (project / "mine.toml").write_text('title = "T"\nwhy = \n')
        code, _, err = told("show", "mine")
        assert code == 2
        assert f"{project / 'mine.toml'}:2" in err


class TestCheck:
    def test_all_that_are_found(self, told: Any) -> None:
        code, out, err = told("check")
        assert (code, err) == (0, "")
        assert out.strip() == f"{len(list(presets_dir().glob('*.toml')))} presets are in order"

    def test_a_file_of_any_place(self, told: Any, tmp_path: Path) -> None:
        (tmp_path / "mine.toml").write_text(GOOD + 'extends = ["graphs-16"]\n')
        assert told("check", tmp_path / "mine.toml")[:2] == (0, "1 preset is in order\n")

    def test_files_may_extend_each_other(self, told: Any, tmp_path: Path) -> None:
        (tmp_path / "low.toml").write_text(GOOD)
        (tmp_path / "high.toml").write_text(GOOD + 'extends = ["low"]\n')
        assert told("check", tmp_path / "low.toml", tmp_path / "high.toml")[0] == 0
        code, out, _ = told("check", tmp_path / "high.toml")
        assert code == 1
        assert out.startswith(f"{tmp_path / 'high.toml'}:3: high extends low, which does not exist")

    def test_each_problem_is_one_line_with_its_place_and_way_out(self, told: Any, tmp_path: Path) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(
            GOOD + 'engine = "sglang"\n[args]\ntp_sise = 8\nmem_fraction_static = 2\n[env]\nNCCL_PROTO = "LL128"\n'
        )
        code, out, err = told("check", path)
        lines = out.splitlines()
        assert (code, err, len(lines)) == (1, "", 3)
        assert lines[0].startswith(f"{path}:5: there is no knob tp_sise. Did you mean ")
        assert lines[1] == f"{path}:6: mem_fraction_static cannot be 2. 2 is more than 1"
        assert lines[2].startswith(f"{path}:8: NCCL_PROTO=LL128 can corrupt: ")

    def test_a_file_that_is_no_toml_is_a_problem_and_one_that_is_not_there_is_wrong_usage(
        self, told: Any, tmp_path: Path
    ) -> None:
        path = tmp_path / "mine.toml"
        path.write_text(GOOD + "[args\n")
        code, out, _ = told("check", path)
        assert code == 1
        assert out.startswith(f"{path}:3: is not TOML")
        code, out, err = told("check", tmp_path / "none.toml")
        assert (code, out) == (2, "")
        assert "No such file" in err


class TestDiff:
    def test_two_presets(self, told: Any) -> None:
        code, out, _ = told("diff", "custom-all-reduce-on", "custom-all-reduce-off")
        assert code == 0
        assert out.split() == [
            *("name", "custom-all-reduce-on", "custom-all-reduce-off"),
            *("disable_custom_all_reduce", "false", "true"),
        ]

    def test_json(self, told: Any) -> None:
        code, out, _ = told("diff", "graphs-16", "sglang-pcie-large-model", "--json")
        answer = json.loads(out)
        assert code == 0
        assert (answer["a"], answer["b"]) == ("graphs-16", "sglang-pcie-large-model")
        assert {"name": "mem_fraction_static", "a": None, "b": "0.92"} in answer["changes"]
        assert not any(each["name"] == "cuda_graph_max_bs" for each in answer["changes"])

    def test_the_same_twice(self, told: Any) -> None:
        assert told("diff", "graphs-16", "graphs-16")[:2] == (0, "They set the same.\n")

    def test_flags_and_variables_that_no_catalogue_holds_count(self, told: Any, project: Path) -> None:
        (project / "mine.toml").write_text(GOOD + 'unset = ["MY_GONE"]\n[flags]\n"--new" = true\n[env]\nMY_OWN = "1"\n')
        (project / "other.toml").write_text(GOOD)
        answer = json.loads(told("diff", "mine", "other", "--json")[1])
        assert {each["name"]: each["a"] for each in answer["changes"]} == {
            "MY_OWN": "1",
            "--new": "true",
            "MY_GONE": "default",
        }

    def test_a_misspelled_preset_is_no_host(self, told: Any) -> None:
        code, out, err = told("diff", "graphs-16", "graphs-12")
        assert (code, out) == (2, "")
        assert "There is no preset graphs-12: no host either. Did you mean graphs-512?" in err

    def test_a_version_that_refuses_one_of_them(self, told: Any) -> None:
        code, _, err = told("diff", "graphs-16", "sglang-pcie-ipc", "--engine-version", "0.5.9")
        assert code == 1
        assert "it needs SGLang 0.5.21 or later" in err
