"""Presets and the order of their keys, written to files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tuner.catalog import read_preset
from tuner.domain.presets import Expectation, Preset, Requires
from tuner.errors import UsageProblem
from tuner.store.presets import save_preset
from tuner.store.settings import keep_preset_order, preset_order

FULL = Preset(
    id="mine",
    title='A "quoted" title',
    engine="sglang",
    why="A long reason, long enough that it does not fit on one line of a file that people still want to read. " * 2,
    requires=Requires(gpus=8, interconnect="pcie", compute=("12.0",), versions={"sglang": "0.5.21 -"}),
    expect=(Expectation(what="more", source="the log of a run"),),
    extends=("graphs-16",),
    args={"mem_fraction_static": 0.88, "cuda_graph_bs": [1, 2], "custom_all_reduce": False},
    env={"NCCL_PROTO": "LL"},
    flags={"--new-switch": True},
    unset=("max_running_requests",),
)


def plain(preset: Preset) -> Preset:
    return Preset(
        id=preset.id,
        title=preset.title,
        engine=preset.engine,
        why=" ".join(preset.why.split()),
        requires=preset.requires,
        expect=preset.expect,
        extends=preset.extends,
        args=preset.args,
        env=preset.env,
        flags=preset.flags,
        unset=preset.unset,
    )


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = save_preset(FULL, tmp_path / "presets")
    assert path == tmp_path / "presets/mine.toml"
    assert plain(read_preset(path)) == plain(FULL)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["mine.toml"], "nothing is left beside it"


def test_a_small_one_has_no_empty_fields(tmp_path: Path) -> None:
    path = save_preset(Preset(id="small", title="T", why="w", args={"tp_size": 2}), tmp_path)
    assert path.read_text() == 'title = "T"\nengine = "any"\nwhy = "w"\n\n[args]\ntp_size = 2\n'


def test_comments_stay_when_it_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        '# mine\ntitle = "old"\nwhy = "w" # because\n'
        '[args]\n# eight cards\ntp_size = 8 # all\npage_size = 1\n[env]\nA = "1"\n'
    )
    save_preset(Preset(id="mine", title="new", why="w", args={"tp_size": 4}), tmp_path)
    text = (tmp_path / "mine.toml").read_text()
    assert "# mine" in text
    assert 'why = "w" # because' in text
    assert "# eight cards" in text
    again = read_preset(tmp_path / "mine.toml")
    assert (again.title, again.args, again.env) == ("new", {"tp_size": 4}, {})


@pytest.mark.parametrize("name", ["../up", "", "a b", ".hidden", "a/b"])
def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageProblem, match="A preset is called by"):
        save_preset(Preset(id=name, title="T", why="w"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_toml_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("title = \n")
    with pytest.raises(UsageProblem, match="is no TOML"):
        save_preset(FULL, tmp_path)
    assert (tmp_path / "mine.toml").read_text() == "title = \n"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageProblem, match="cannot be written"):
        save_preset(FULL, tmp_path / "file" / "presets")


class TestOrder:
    def test_each_host_has_its_own(self, tmp_path: Path) -> None:
        path = tmp_path / "deep" / "keys.toml"
        assert preset_order("root@a.b:22", path) == []
        keep_preset_order("root@a.b:22", ["x", "y"], path)
        keep_preset_order("local", ["z"], path)
        assert (preset_order("root@a.b:22", path), preset_order("local", path)) == (["x", "y"], ["z"])
        keep_preset_order("local", [], path)
        assert (preset_order("root@a.b:22", path), preset_order("local", path)) == (["x", "y"], [])

    def test_it_is_the_users_by_itself(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GPUTUNER_HOME", str(tmp_path))
        keep_preset_order("local", ["z"])
        assert preset_order("local") == ["z"]
        assert (tmp_path / "config/preset-keys.toml").exists()

    def test_comments_of_the_operator_stay(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.toml"
        path.write_text('# mine\nlocal = ["a"]\n')
        keep_preset_order("other", ["b"], path)
        assert path.read_text().startswith("# mine\n")

    @pytest.mark.parametrize("content", ["local = ", "local = 5", "local = [1, 2]", "[local]\na = 1"])
    def test_a_file_that_is_wrong_counts_as_empty(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "keys.toml"
        path.write_text(content)
        assert preset_order("local", path) == []

    def test_a_broken_file_is_not_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.toml"
        path.write_text("local = ")
        with pytest.raises(UsageProblem, match="no TOML"):
            keep_preset_order("local", ["a"], path)
        assert path.read_text() == "local = "
