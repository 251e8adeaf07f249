"""Documents that are in step with the code, as far as a program can tell."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tuner.cli import EXIT_CODES, command_line
from tuner.domain.events import AnyEvent
from tuner.domain.link import LinkPhase
from tuner.domain.server import Phase

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "presets").glob("*.md")])


def commands() -> dict[str, click.Command]:
    group = command_line()
    return dict(group.commands)


@pytest.mark.parametrize("name", sorted(commands()))
def test_a_command_is_documented_and_shows_an_example(name: str) -> None:
    text = commands()[name].get_help(click.Context(commands()[name], info_name=f"gputuner {name}"))
    assert re.search(rf"gputuner {name}\b", text.partition("Example")[2]), f"the help of {name} has no example"
    assert f"gputuner {name}" in (ROOT / "README.md").read_text()


def test_exit_codes_are_in_the_readme() -> None:
    for code in re.findall(r"(\d) (\w+)", EXIT_CODES):
        assert re.search(rf"{code[0]}\W+.*{code[1]}", (ROOT / "README.md").read_text())


def test_the_glossary_knows_every_phase() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    for word in (*Phase, *LinkPhase):
        name = "up" if word is LinkPhase.UP else str(word)
        assert re.search(rf"\b{re.escape(name)}\b", glossary), name


def test_the_protocol_describes_every_event() -> None:
    protocol = (ROOT / "docs/protocol.md").read_text()
    for event in AnyEvent.__args__:  # type: ignore[attr-defined]
        tag = event.__struct_config__.tag
        assert f"`{tag}`" in protocol, f"{event.__name__} ({tag}) is not in docs/protocol.md"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_architecture_names_every_part() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    parts = [part for part in (ROOT / "tuner").iterdir() if part.suffix == ".py" or any(part.glob("*.py"))]
    for part in parts:
        assert part.name.startswith("__") or re.search(rf"\b{part.stem}\b", text), part.name
