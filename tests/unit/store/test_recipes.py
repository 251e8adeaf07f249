"""Recipe files: written with comments kept and without secrets, read with errors that name their line."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import msgspec.structs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.core.redact import mask_argv, mask_env
from tuner.domain.recipe import Recipe
from tuner.domain.server import Manager
from tuner.errors import CatalogError, UsageProblem
from tuner.store.recipes import load_recipe, load_recipes, save_recipe

REPLACE = msgspec.structs.replace
FULL = Recipe(
    name="llama",
    host="root@gpu-box-1",
    engine="sglang",
    version="0.5.9",
    command=("/v/bin/python", "-m", "sglang.launch_server"),
    args=("--model-path", '/m/"a" \\ b', "--json-model-override-args", '{"a": 1}', "--port", "30000", "--trust"),
    env={"NCCL_BUFFSIZE": "4194304", "A.B": "", "HF_TOKEN": "***"},
    cwd="/srv",
    log_dir="/logs",
    model='/m/"a" \\ b',
    port=30000,
    manager=Manager(kind="systemd", name="sglang.service"),
    ready_s=91.5,
    origin="pid 1, read 2026-11-30 10:12 UTC",
)
SMALL = 'host = "h"\nengine = "sglang"\ncommand = "sglang serve"\n'
SECRETS = ("hf_abcdefghij0123456789", "sk-proj-abcdefghij0123", "hunter2-is-my-password")


def written(folder: Path, text: str, name: str = "r") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


class TestWrite:
    def test_what_is_written_is_read_again(self, tmp_path: Path) -> None:
        path = save_recipe(FULL, tmp_path / "new" / "recipes")
        assert load_recipe(path) == FULL
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [each.name for each in path.parent.iterdir()] == ["llama.toml"]

    def test_a_flag_has_a_row_of_its_own(self, tmp_path: Path) -> None:
        assert '    "--port", "30000",\n    "--trust",\n]' in save_recipe(FULL, tmp_path).read_text()

    def test_the_server_it_is_like_is_not_kept(self, tmp_path: Path) -> None:
        assert load_recipe(save_recipe(REPLACE(FULL, like="server:1:2"), tmp_path)).like == ""

    def test_no_secret_is_written(self, tmp_path: Path) -> None:
        told = REPLACE(
            FULL,
            args=("--api-key", SECRETS[0], f"--admin-api-key={SECRETS[1]}", "--model", "m"),
            env={"OPENAI_API_KEY": SECRETS[2], "NOTE": f"Bearer {SECRETS[0]}"},
            command=("env", f"HF_TOKEN={SECRETS[0]}", "sglang", "serve"),
            model=f"https://me:{SECRETS[2]}@host/m",
        )
        text = save_recipe(told, tmp_path).read_text()
        assert not [secret for secret in SECRETS if secret in text]
        assert '"--api-key", "***"' in text

    def test_a_file_that_is_there_is_not_replaced_unasked(self, tmp_path: Path) -> None:
        path = save_recipe(FULL, tmp_path)
        before = path.read_bytes()
        with pytest.raises(UsageProblem, match="--replace"):
            save_recipe(REPLACE(FULL, port=1), tmp_path)
        assert path.read_bytes() == before

    def test_comments_stay_where_it_is_replaced(self, tmp_path: Path) -> None:
        text = "# mine\n" + save_recipe(FULL, tmp_path).read_text().replace("cwd =", "# where the LLMs are\ncwd =")
        text = text.replace("[env]", "[env]  # of the server").replace("port = 30000", "port = 30000  # ours")
        path = written(tmp_path, text, "llama")
        changed = REPLACE(
            FULL, args=("--tp", "2"), env={"NCCL_BUFFSIZE": "65536", "X": "1"}, manager=None, version="0.6.0"
        )
        save_recipe(changed, tmp_path, replace=True)
        assert load_recipe(path) == changed
        for comment in ("# mine", "# where the LLMs are", "# of the server", "# ours"):
            assert comment in path.read_text()

    @pytest.mark.parametrize("name", ["", "../x", ".x", "a b", "a/b", "ä"])
    def test_a_name_that_is_no_file_name_is_refused(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(UsageProblem, match="called by letters"):
            save_recipe(REPLACE(FULL, name=name), tmp_path)

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(UsageProblem, match="cannot be written"):
            save_recipe(FULL, tmp_path / "file" / "recipes")

    def test_a_broken_file_is_not_replaced(self, tmp_path: Path) -> None:
        written(tmp_path, "port = = 1", "llama")
        with pytest.raises(UsageProblem, match="no TOML"):
            save_recipe(FULL, tmp_path, replace=True)

    @settings(deadline=None, max_examples=60)
    @given(
        st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=12), max_size=6),
        st.dictionaries(
            st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8), st.text(max_size=12)
        ),
    )
    def test_any_words_and_variables(self, args: list[str], env: dict[str, str]) -> None:
        import tempfile

        recipe = REPLACE(FULL, args=mask_argv(args), env=mask_env(env))
        with tempfile.TemporaryDirectory() as folder:
            assert load_recipe(save_recipe(recipe, Path(folder))) == recipe


class TestRead:
    def test_a_few_lines_by_hand_are_enough(self, tmp_path: Path) -> None:
        path = written(tmp_path, SMALL + "args = \"--model-path '/m/my llm' --tp 8\"\n[env]\nNCCL_BUFFSIZE = 4194304\n")
        got = load_recipe(path)
        assert (got.name, got.host, got.engine, got.command) == ("r", "h", "sglang", ("sglang", "serve"))
        assert got.args == ("--model-path", "/m/my llm", "--tp", "8")
        assert got.env == {"NCCL_BUFFSIZE": "4194304"}

    @pytest.mark.parametrize(
        ("more", "port"),
        [
            ("args = ['--port', '30001']", 30001),
            ("args = '--port=30001 --x'", 30001),
            ("args = ['--port', 30001]\nport = 8000", 8000),
            ("args = ['--port']", None),
            ("", None),
        ],
    )
    def test_the_port_may_stand_in_the_arguments_alone(self, more: str, port: int | None, tmp_path: Path) -> None:
        assert load_recipe(written(tmp_path, SMALL + more)).port == port

    def test_numbers_may_stand_among_arguments(self, tmp_path: Path) -> None:
        got = load_recipe(written(tmp_path, SMALL + 'args = ["--tp", 8, "--mem-fraction-static", 0.9]\n'))
        assert got.args == ("--tp", "8", "--mem-fraction-static", "0.9")

    @pytest.mark.parametrize(
        ("text", "line", "words"),
        [
            ('host = "h"\nengine = "e"\n', 1, 'Write command = ["/venv/bin/python"'),
            ('engine = "e"\ncommand = "x"\nhost = ""\n', 3, "it has no host"),
            (SMALL + "\nports = 3\n", 5, "there is no field ports"),
            (SMALL + 'port = "high"\n', 4, "port: expected int | null, got str"),
            (SMALL + "\nport = = 3\n", 5, "is not TOML"),
            ("\ufeff" + SMALL, 1, "begins with a byte order mark"),
            (SMALL + 'args = [\n  "--tp",\n  true,\n]\n', 4, "args[1]: expected int | float | str, got bool"),
            (SMALL + "[env]\nA = 1\nB = []\n", 6, "env.B is no text"),
            (SMALL + "[env]\nA = true\n", 5, "env.A is no text"),
            (SMALL + '[env]\nA = "1"\nHF_TOKEN = "hf_abcdefghij0123456789"\n', 6, "HF_TOKEN holds a secret"),
            (SMALL + 'args = [\n "--tp", "2",\n "--api-key", "sk-abcdef0123456789",\n]\n', 6, "args hold a secret"),
            (SMALL + 'args = "--x \'y"\n', 4, "args cannot be taken apart (No closing quotation)"),
            (SMALL + "[manager]\nname = 'x'\n", 4, "manager: object missing required field kind"),
        ],
    )
    def test_what_is_wrong_is_said_with_its_line(self, text: str, line: int, words: str, tmp_path: Path) -> None:
        path = written(tmp_path, text)
        with pytest.raises(CatalogError) as caught:
            load_recipe(path)
        told = str(caught.value)
        assert f"{path}:{line}" in told
        assert words in told
        assert "\n" not in told
        assert "abcdef" not in told

    def test_a_broken_one_leaves_the_others(self, tmp_path: Path) -> None:
        written(tmp_path, SMALL, "good")
        written(tmp_path, "x", "bad")
        (tmp_path / "bytes.toml").write_bytes(b"\xff")
        (tmp_path / "folder.toml").mkdir()
        (tmp_path / "note.txt").write_text("no recipe")
        got = load_recipes(tmp_path)
        assert list(got.found) == ["good"]
        assert [each.path.stem for each in got.problems] == ["bad", "bytes", "folder"]

    def test_no_folder_is_no_recipes(self, tmp_path: Path) -> None:
        assert load_recipes(tmp_path / "none") == load_recipes(tmp_path)

    def test_the_users_own_folder(self, tmp_path: Path, monkeypatch: Any) -> None:
        monkeypatch.setenv("GPUTUNER_HOME", str(tmp_path))
        assert save_recipe(FULL) == tmp_path / "config/recipes/llama.toml"
        assert list(load_recipes().found) == ["llama"]
