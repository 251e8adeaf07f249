"""The presets that are found: folders, files that are wrong, and every bundled one on every version that is known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.presets_page import PAGE, bundled, page
from tuner.catalog import check_preset, load_presets, preset_folders, read_preset
from tuner.core.overlays import engine_differs
from tuner.core.presets import overlay
from tuner.domain.presets import ANY_ENGINE
from tuner.engines import load_engines
from tuner.errors import CatalogError
from tuner.paths import presets_dir

ENGINES = load_engines()
BUNDLED = bundled()
GOOD = 'title = "T"\nwhy = "to test"\n'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with an empty user's folder."""
    monkeypatch.setenv("GPUTUNER_HOME", str(tmp_path / "home"))
    root = tmp_path / "project"
    root.mkdir()
    monkeypatch.chdir(root)
    return root


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text, "utf-8")
    return path


class TestFolders:
    def test_later_folders_win(self, project: Path) -> None:
        places = [project.parent / "home/config/presets", project / "presets", project / ".gputuner/presets"]
        for number, folder in enumerate(places):
            write(folder, "graphs-16", GOOD + f"[args]\ncuda_graph_max_bs = {number + 1}\n")
            found = load_presets().found["graphs-16"]
            assert (found.args, Path(found.path).parent) == ({"cuda_graph_max_bs": number + 1}, folder)
        assert load_presets().problems == ()

    def test_in_a_clone_the_bundled_ones_are_taken_once(self, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(presets_dir().parent)
        assert preset_folders() == [presets_dir()]

    def test_those_of_the_working_folder_are_known_as_such(self, project: Path) -> None:
        home = write(project.parent / "home/config/presets", "mine", GOOD)
        here = write(project / "presets", "ours", GOOD)
        hidden = write(project / ".gputuner/presets", "hidden", GOOD)
        found = load_presets().found
        assert (found["ours"].local, found["hidden"].local) == ((str(here),), (str(hidden),))
        assert (found["mine"].path, found["mine"].local, found["graphs-16"].local) == (str(home), (), ())

    def test_a_preset_extends_one_of_another_folder(self, project: Path) -> None:
        write(project / ".gputuner/presets", "mine", GOOD + 'extends = "graphs-16"\n[args]\ntp_size = 2\n')
        presets = load_presets()
        assert presets.problems == ()
        assert presets.found["mine"].extends == ("graphs-16",)

    def test_a_broken_file_leaves_the_others_and_hides_what_it_would_replace(self, project: Path) -> None:
        path = write(project / "presets", "graphs-16", GOOD + "[args]\ncuda_graph_max_bs = 16 16\n")
        presets = load_presets()
        assert "graphs-16" not in presets.found
        assert "graphs-128" in presets.found
        broken = [each for each in presets.problems if each.path == path]
        assert [(each.line, each.title.partition(" (")[0]) for each in broken] == [(4, "is not TOML")]
        extending = [each for each in presets.problems if each.path != path]
        assert [each.title for each in extending] == ["it extends graphs-16, which is broken"]

    def test_presets_of_other_programs_are_no_broken_ones(self, project: Path) -> None:
        write(project / "presets", "theirs", 'colour = "red"\n')
        write(project / ".gputuner/presets", "ours", 'colour = "red"\n')
        assert [each.path.stem for each in load_presets().problems] == ["ours"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("\ufeff" + GOOD, 1, "begins with a byte order mark"),
        ('title = "T"\nwhy = "w\n', 2, "is not TOML"),
        ('title = "T"\nwhy = """\nnever closed\n', 3, "is not TOML"),
        ('title = "T"\ntitle = "T"\n', 2, "is not TOML"),
        ('why = "w"\n', 1, "it has no title"),
        ('title = "T"\nwhy = " "\n', 2, "it has no why"),
        (GOOD + "colour = 1\n", 3, "there is no field colour"),
        (GOOD + "[args]\ntp_size = 2\n[arg]\ntp_size = 2\n", 5, "there is no field arg"),
        (GOOD + '[requires]\ngpus = "two"\n', 4, "requires.gpus: expected"),
        (GOOD + "[requires]\ncards = 2\n", 4, "requires: object contains unknown field cards"),
        (GOOD + 'requires = { interconnect = "infiniband" }\n', 3, "interconnect cannot be infiniband"),
        (GOOD + '[requires]\niommu = "on"\n', 4, "iommu cannot be on"),
        (GOOD + '[requires.versions]\nsglang = "new"\n', 4, "new is no range of versions"),
        (GOOD + '[requires.versions]\nllama = "1 -"\n', 4, "there is no engine llama"),
        (GOOD + "args = 3\n", 3, "args: expected object"),
        (GOOD + "[env]\nNCCL_ALGO = [1]\n", 4, "env.NCCL_ALGO is no text"),
        (GOOD + '[[expect]]\nwhat = "w"\n', 3, "expect[0]: object missing required field source"),
        (GOOD + 'engine = "llama"\n', 3, "there is no engine llama"),
        (GOOD + 'extends = ["none-such"]\n', 3, "mine extends none-such, which does not exist"),
        (GOOD + 'extends = ["mine"]\n', 3, "mine extends itself (mine -> mine)"),
        (GOOD + '[args]\n"tp_size" = "eight"\n', 4, "tp_size cannot be eight"),
        (GOOD + '[args]\nmax_running_requests = "4GiB"\n', 4, "max_running_requests cannot be 4GiB"),
        (GOOD + "args.tp_size = 8\nargs.tp_sise = 8\n", 4, "there is no knob tp_sise"),
        (GOOD + "args = { tp_size = 8, mem = 1 }\n", 3, "there is no knob mem"),
        (GOOD + 'unset = [\n  "tp_size",\n  "tp_sise",\n]\n', 5, "there is no knob tp_sise"),
        (GOOD + "[args]\nenable_symm_mem = true\n", 4, "vllm: there is no knob enable_symm_mem"),
        (GOOD + 'engine = "sglang"\n[args]\ncuda_graph_max_bs = 8\ncuda_graph = false\n', 5, "it sizes CUDA graphs"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(project: Path, text: str, line: int, words: str) -> None:
    path = write(project / "presets", "mine", text)
    write(project / "presets", "good", GOOD)
    presets = load_presets()
    told = [each for each in presets.problems if each.path == path]
    assert len(told) == 1
    assert (told[0].line, words in told[0].title) == (line, True), told[0].title
    assert "mine" not in presets.found
    assert "good" in presets.found


def test_a_number_that_python_does_not_read_breaks_its_file_only(project: Path) -> None:
    path = write(project / "presets", "mine", GOOD + f"[args]\ncuda_graph_max_bs = {'9' * 5000}\n")
    write(project / "presets", "good", GOOD)
    presets = load_presets()
    assert [(each.path, each.title) for each in presets.problems] == [
        (path, "cannot be read (a number in it has too many digits)")
    ]
    assert "good" in presets.found


def test_what_was_probably_meant_is_told_where_only_one_engine_has_it(project: Path) -> None:
    write(project / "presets", "mine", GOOD + "args.mem_fraction_statik = 0.8\n")
    told = [str(each) for each in load_presets().problems]
    assert len(told) == 1
    assert "Did you mean mem_fraction_static?" in told[0]


def test_a_circle_of_presets_is_told_at_each_of_them(project: Path) -> None:
    for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
        write(project / "presets", name, GOOD + f'extends = ["{base}"]\n')
    told = [(each.path.stem, each.line) for each in load_presets().problems]
    assert sorted({line for _, line in told}, key=str) == [3]
    assert len(told) == 3


def test_a_value_that_does_harm_stays_listed_and_is_told_by_the_check(project: Path) -> None:
    write(project / "presets", "mine", GOOD + '[env]\nNCCL_PROTO = "LL128"\n')
    presets = load_presets()
    assert presets.problems == ()
    (wrong,) = check_preset(presets.found, "mine", ENGINES)
    assert (wrong.harms, wrong.error.line) == (True, 4)


@pytest.mark.parametrize("name", ["no id", "ümlaut", ".hidden"])
def test_a_file_whose_name_is_no_id(tmp_path: Path, name: str) -> None:
    with pytest.raises(CatalogError, match="its name is no id"):
        read_preset(write(tmp_path, name, GOOD))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "latin.toml").write_bytes(b'title = "\xfc"')
    (tmp_path / "deep.toml").write_text("x = " + "[" * 5_000 + "]" * 5_000)
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("folder", "latin", "missing", "deep", "pipe"):
        with pytest.raises(CatalogError, match="cannot be read"):
            read_preset(tmp_path / f"{name}.toml")


# --- The bundled ones -------------------------------------------------------------------------------------------------


def test_presets_readme_is_generated_from_the_presets() -> None:
    text = page()
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(text, "utf-8")
    assert PAGE.read_text("utf-8") == text, "run: UPDATE_DOCS=1 pytest tests/unit/test_catalog.py"


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_a_bundled_preset_is_spelled_or_refused_in_words_by_every_version(name: str) -> None:
    preset = BUNDLED[name]
    for engine in ENGINES.values():
        if engine_differs(preset, engine.name):
            continue
        table = engine.knobs()
        works = []
        for version in table.versions:
            laid = overlay(preset, table, engine.name, version)
            if laid.problems:
                assert all(preset.path in each and engine.name in each for each in laid.problems), laid.problems
                continue
            works.append(version)
            _is_whole(laid.argv, laid.unset_flags)
            assert laid.argv or laid.env or laid.unset_flags or laid.unset_env
        assert works, f"{name} works with no version of {engine.name}"
        assert table.versions[-1] in works, f"{name} does not work with the newest {engine.name}"


def _is_whole(argv: tuple[str, ...], unset: tuple[str, ...]) -> None:
    flags = [word for word in argv if word.startswith("--")]
    assert len(set(flags)) == len(flags)
    assert set(flags) <= set(unset)
    assert all(isinstance(word, str) and word for word in argv)


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_a_bundled_preset_says_why_and_where_its_figures_are_from(name: str) -> None:
    preset = BUNDLED[name]
    assert len(preset.why) > 60
    assert preset.why.endswith(".")
    assert not preset.title.endswith(".")
    assert all(each.what and len(each.source) > 10 for each in preset.expect)
    assert preset.engine == ANY_ENGINE or name.startswith(f"{preset.engine}-")
    assert preset.requires.interconnect != "nvlink" or preset.requires.gpus


def test_the_bundled_presets_cover_what_operators_tune() -> None:
    """The list that the product promises: each knob is set by one of them, on every engine that has it."""
    set_by = {name for preset in BUNDLED.values() for name in (*preset.args, *preset.env, *preset.unset)}
    assert {
        "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_PROTO", "NCCL_ALGO", "NCCL_P2P_LEVEL",
        "custom_all_reduce", "SGLANG_CUSTOM_ALLREDUCE_ALGO", "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "enable_symm_mem",
        "enable_flashinfer_allreduce_fusion", "cuda_graph_max_bs", "mem_fraction_static", "gpu_memory_utilization",
        "chunked_prefill_size", "max_running_requests", "kv_cache_dtype", "attention_backend",
        "speculative_algorithm", "speculative_config",
    } <= set_by  # fmt: skip
    assert {preset.requires.interconnect for preset in BUNDLED.values()} == {"", "pcie", "nvlink"}
