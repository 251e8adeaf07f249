"""Make `docs/signs.md` from the data files: every sign by kind, with the fields that its examples show."""

from __future__ import annotations

from pathlib import Path

import tuner.engines
from tuner.engines import load_engines
from tuner.engines.signs import COMMON, KINDS, SignEntry, read_entries

PAGE = Path(__file__).parents[2] / "docs" / "signs.md"

_HEAD = """\
# Signs

Lines whose meaning for a diagnosis is known, of all engines (`tuner/engines/signs.toml`) and of one
(`tuner/engines/NAME/signs.toml`). This page is generated: `UPDATE_DOCS=1 pytest tests/unit/engines/test_signs_page.py`.
[Extending gputuner](extending.md#a-sign) says how to add one.

A field is a number where it is printed as one. `text` fields of sizes keep their unit (`448.00 MiB`, `40.00 GB`,
`0 bytes`): `tuner.core.quantity` splits them. Any field may be missing: a line says what it says.
"""

_MEANING = {
    "failure": "Something did not work. Whether it is the root, the diagnosis decides.",
    "secondary": "A survivor tells of somebody else's failure.",
    "harmless": "Reads like a failure and is none. It silences failures in the same message.",
    "info": "A number, a version, a decision; or words that mean something only inside an exception.",
}


def page() -> str:
    """Return the whole page."""
    folder = Path(tuner.engines.__file__).parent
    files = {"all engines": COMMON} | {
        engine.title: folder / name / "signs.toml" for name, engine in load_engines().items()
    }
    entries = {title: [entry for _, entry, _ in read_entries(path)] for title, path in files.items()}
    parts = [_HEAD]
    for kind in KINDS:
        parts.append(
            f"\n## {kind}\n\n{_MEANING[kind]}\n\n| sign | of | fields | example |\n| --- | --- | --- | --- |\n"
        )
        for title, found in entries.items():
            parts += [_row(title, entry) for entry in found if entry.kind == kind]
    return "".join(parts)


def _row(title: str, entry: SignEntry) -> str:
    return f"| `{entry.id}` | {title} | {_fields(entry) or ' '} | {_example(entry)} |\n"


def _fields(entry: SignEntry) -> str:
    kinds: dict[str, str] = {}
    for example in entry.example:
        for name, value in example.fields.items():
            kinds.setdefault(name, _kind(value))
    return ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "yes/no"
    if isinstance(value, list):
        inner = ", ".join(f"`{name}` {_kind(each)}" for name, each in value[0].items())
        return f"list of ({inner})"
    return "number" if isinstance(value, int | float) else "text"


def _example(entry: SignEntry) -> str:
    text = entry.example[0].line.partition("\n")[0]
    text = text if len(text) <= 110 else text[:109] + "…"
    return "`" + text.replace("`", "'").replace("|", "\\|").strip() + "`"
