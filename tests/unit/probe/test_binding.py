"""Which NVML bindings the probe runs, as whoever connects: who is often root, beside programs of others."""

from __future__ import annotations

import os
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.probe.agent.gpu_binding import load_module, trusted_source

SOURCE = b"whose = 'ours'\n"
NOBODY = 65534
only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


@pytest.fixture
def binding(tmp_path: Path) -> Path:
    """A binding in two folders; those above are /tmp and pytest's."""
    path = tmp_path / "a/b/pynvml.py"
    path.parent.mkdir(parents=True)
    path.write_bytes(SOURCE)
    path.chmod(0o644)
    assert trusted_source(str(path)) == SOURCE
    return path


@pytest.fixture(autouse=True)
def _loaded() -> Iterator[None]:
    before = sys.modules.get("pynvml")
    yield
    sys.modules.pop("pynvml", None)
    if before is not None:
        sys.modules["pynvml"] = before


@only_root
@pytest.mark.parametrize("part", ["a", "a/b", "a/b/pynvml.py"])
def test_a_file_in_the_hands_of_others_is_not_read(binding: Path, tmp_path: Path, part: str) -> None:
    os.chown(tmp_path / part, NOBODY, NOBODY)
    assert trusted_source(str(binding)) is None


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_can_write_is_not_read(binding: Path, mode: int) -> None:
    binding.chmod(mode)
    assert trusted_source(str(binding)) is None


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_file_that_others_can_swap_is_not_read(binding: Path, mode: int) -> None:
    for folder in (binding.parent, binding.parent.parent):
        folder.chmod(mode)
        assert trusted_source(str(binding)) is None
        folder.chmod(mode | 0o1000)
        assert trusted_source(str(binding)) == SOURCE, "in a folder like /tmp it stays ours"
        folder.chmod(0o755)


@pytest.mark.parametrize("mode", [0o1666, 0o1664])
def test_sticky_files_are_no_folders(binding: Path, mode: int) -> None:
    binding.chmod(mode)
    assert trusted_source(str(binding)) is None


def test_a_link_is_followed_to_what_is_checked(binding: Path, tmp_path: Path) -> None:
    link = tmp_path / "site/pynvml.py"
    link.parent.mkdir()
    link.symlink_to(binding)
    assert trusted_source(str(link)) == SOURCE
    binding.parent.chmod(0o757)
    assert trusted_source(str(link)) is None


def test_a_link_makes_no_binding_of_another_text(binding: Path, tmp_path: Path) -> None:
    other = binding.rename(binding.with_name("wipe_disks.py"))
    link = tmp_path / "pynvml.py"
    link.symlink_to(other)
    assert trusted_source(str(link)) is None


def test_a_file_swapped_while_it_is_looked_at_is_not_what_is_read(
    binding: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.fstat

    def swap(fd: int) -> os.stat_result:
        if os.path.samestat(look(fd), binding.stat()):
            new = binding.with_name("new")
            new.write_bytes(b"whose = 'theirs'\n")
            new.rename(binding)
        return look(fd)

    monkeypatch.setattr(os, "fstat", swap)
    assert trusted_source(str(binding)) == SOURCE
    assert b"theirs" in binding.read_bytes()


def test_what_is_no_file_holds_nobody_up(binding: Path) -> None:
    binding.unlink()
    assert trusted_source(str(binding)) is None
    os.mkfifo(binding, 0o600)
    assert trusted_source(str(binding)) is None


def test_bytecode_beside_the_source_is_not_run(binding: Path) -> None:
    theirs = binding.with_name("theirs.py")
    theirs.write_text("whose = 'theirs'\n")
    cache = binding.parent / f"__pycache__/pynvml.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(str(theirs), str(cache), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source = trusted_source(str(binding))
    assert source is not None
    module = load_module(source, str(binding))
    assert module.whose == "ours"
    assert (module.__file__, sys.modules["pynvml"]) == (str(binding), module)
