"""The errors gputuner raises itself. Each can be shown as it is: what happened, why we think so, what to do."""

from __future__ import annotations

from pathlib import Path


class TunerError(Exception):
    """Base of all errors that gputuner raises. `str()` is one line for the operator.

    Args:
        title: What happened, a short sentence without full stop.
        detail: Evidence: the other side's words, a path, a number.
        hint: What to do next.
    """

    exit_code = 1

    def __init__(self, title: str, detail: str = "", hint: str = "") -> None:
        super().__init__(title)
        self.title = title
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        return sentences(self.title + (f": {self.detail}" if self.detail else ""), self.hint)


def sentences(*parts: str) -> str:
    """Join the parts that are not empty into one line of sentences.

    Between two stands a full stop unless there is a `?` or `!`; each but the first begins with a capital.
    """
    line = ""
    for part in parts:
        if part:
            begun = part[:1].upper() + part[1:] if line and not part.startswith(_NAMES) else part
            line += (" " if line.endswith(("?", "!")) else ". " if line else "") + begun.rstrip(".")
    return line


_NAMES = ("gputuner ",)
"""Words that are written small at the beginning of a sentence, too."""


class UsageProblem(TunerError):
    """The command was used wrongly or its input cannot be read."""

    exit_code = 2


class ConnectionFailed(TunerError):
    """The host cannot be reached or refuses the connection. `final`: trying again without a change is useless."""

    exit_code = 3

    def __init__(self, title: str, detail: str = "", hint: str = "", *, final: bool = False) -> None:
        super().__init__(title, detail, hint)
        self.final = final


class ProbeFailed(TunerError):
    """The probe could not be started, or what it sent cannot be read."""

    exit_code = 3

    def __init__(self, title: str, detail: str = "", hint: str = "", *, final: bool = False) -> None:
        super().__init__(title, detail, hint)
        self.final = final


class ProtocolMismatch(ProbeFailed):
    """The probe speaks another version of the protocol."""


class CatalogError(TunerError):
    """A data file is invalid; the error names its path and, if known, its line."""

    exit_code = 2

    def __init__(self, path: Path, line: int | None, title: str, hint: str = "") -> None:
        where = f"{path}:{line}" if line else str(path)
        super().__init__(title, where, hint)
        self.path = path
        self.line = line


class JournalError(TunerError):
    """A journal cannot be read or written."""

    exit_code = 2
