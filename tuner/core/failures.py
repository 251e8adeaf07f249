"""Puts the tracebacks of a log together again, with the chain that led to each exception.

Ranks share one stream without a lock. SGLang prints a traceback as one record, vLLM with a prefix on each line. It may
be interrupted by another rank, lose its beginning to a log that was cut, or its end to a killed process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from tuner.core.records import Record
from tuner.domain.starts import Failure

TRACEBACK = "Traceback (most recent call last):"
KEPT_MESSAGE = 4_000
"""Most characters of an exception's message that are kept."""
_FRAME = re.compile(r'\s+File "(?P<path>[^"]+)", line \d+(?:, in (?P<function>\S+))?')
_EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*(?=\w*[a-z])[A-Z_]\w*)(?::\s?(?P<message>.*))?\Z", re.DOTALL)
"""Type and message of an exception; a name in capitals alone is a level of logging."""
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_NOT_OF_IT = (
    r"\[(?:rank\d+\]:\[)?[WIEF]\d{3,4} |\S+\.py:\d+: \w*Warning: |\S+:\d+:\d+ \[\d+\] NCCL |Process \S+:\s*\Z"
    r"|usage: |(?:\S+\.py|%s)[\w -]{0,40}: error: "
)
"""Lines without prefix that end an exception's message: of C++ libraries, Python's warnings, NCCL, ending Python
processes and argparse."""
_UNDERLINE = re.compile(r"[\s~^]*[\^~][\s~^]*\Z")
_ANNOUNCED = re.compile(
    r"Process \S+:\Z|(?:ERROR:\s+)?Exception in ASGI application|Task exception was never retrieved"
    r"|Exception ignored in\b|--- Logging error ---|Error in |Failed to "
)
"""Lines that announce the next traceback, if it has no header of its own."""
_HEADER_END = re.compile(r"[\s:]+\Z")


class _Link:
    """One exception of a chain."""

    def __init__(self) -> None:
        self.frames: list[str] = []
        self.lines: list[str] = []
        self.at = 0

    @property
    def raised(self) -> bool:
        return bool(self.lines)


class _Block:
    """A traceback that is being read."""

    def __init__(
        self, record: Record, header: str, foreign: re.Pattern[str], begins: Record | None = None, *,
        headless: bool = False,
    ) -> None:  # fmt: skip
        self.first = record
        self.foreign = foreign
        """Matches lines of other programs, which end the message."""
        self.headless = headless
        """Its beginning was cut off."""
        self.at = (begins or record).at
        self.last = record.at
        self.header = header
        self.links = [_Link()]
        self.chained = False
        self.told = False
        """The message has ended: lines of another program follow."""

    @property
    def complete(self) -> bool:
        """Whether its exception was printed and no further one is announced."""
        return self.links[-1].raised and not self.chained

    def open_to(self, record: Record) -> bool:
        """Return whether a line can continue this traceback."""
        if record.prefixed:
            return bool(record.source) and (record.source, record.actor, record.rank) == (
                self.first.source,
                self.first.actor,
                self.first.rank,
            )
        return record.actor == self.first.actor or not record.actor

    def add(self, record: Record) -> bool:
        """Add a line; return False if it belongs to something else."""
        line, link = record.message, self.links[-1]
        if line.strip() in _CHAINED:
            self.chained = True
        elif line.startswith(TRACEBACK):
            if not self.chained:
                return False
            self.links.append(_Link())
            self.chained = self.told = False
        elif frame := _FRAME.match(line):
            if link.raised:  # the message of an exception may quote frames, as a compiler's does
                link.lines.append(line)
            else:
                link.frames.append(f"{frame['path']}:{frame['function'] or ''}")
        elif not link.raised and (not line.strip() or line[:1] in " \t" or _UNDERLINE.match(line)):
            pass
        elif not link.raised:
            if _EXCEPTION.match(line) is None:
                return False
            link.lines.append(line)
            link.at = record.at
        elif not self.chained:
            if self.told or self.foreign.match(line):
                self.told = True
                return False
            link.lines.append(line)
        elif line.strip() and _EXCEPTION.match(line) is not None:
            # A chain whose second traceback was not printed, or whose frames were filtered out.
            self.links.append(_Link())
            self.chained = self.told = False
            return self.add(record)
        self.last = record.at
        return True

    def failure(self) -> Failure | None:
        """Return the exception that was read; None if there is neither exception, header nor frame."""
        raised = [link for link in self.links if link.raised]
        whole = bool(raised) and raised[-1] is self.links[-1] and not self.chained
        if not raised:
            if not self.header and not self.links[0].frames:
                return None
            raised = [self.links[-1]]
        root, final = raised[0], raised[-1]
        name, message = _split(root.lines)
        final_name, final_message = _split(final.lines)
        return Failure(
            at=self.at,
            end=self.last,
            rank=self.first.rank,
            time=self.first.time,
            header=self.header,
            exception=name,
            message=message,
            message_at=root.at or self.first.at,
            final_exception=final_name,
            final_message=final_message,
            final_at=final.at or self.first.at,
            frames=tuple(root.frames),
            whole=whole,
        )


def failures(stream: Iterable[Record], program: str) -> tuple[list[Failure], list[Record]]:
    """Put the tracebacks of a start together.

    Args:
        stream: Lines of one start, in order.
        program: Name of the engine's program, as its parser of command lines prints it before an error.

    Returns:
        The failures in the order in which they began, and the lines that belong to none.
    """
    foreign = re.compile(_NOT_OF_IT % re.escape(program))
    open_blocks: list[_Block] = []
    closed: list[_Block] = []
    others: list[Record] = []
    announced: set[int] = set()  # headers that were used: each announces one traceback
    for record in stream:
        block = next((b for b in reversed(open_blocks) if b.open_to(record)), None)
        begins = _begins(record.message)
        if block is not None and block.add(record):
            continue
        if block is not None and (begins or record.prefixed):
            open_blocks.remove(block)
            closed.append(block)
        if record.prefixed and not record.source:
            # A record of SGLang ends tracebacks whose exception was printed; unfinished ones go on after it.
            closed.extend(b for b in open_blocks if b.complete)
            open_blocks = [b for b in open_blocks if not b.complete]
        if begins:
            head, _, _ = record.message.partition(TRACEBACK)
            header, first = _HEADER_END.sub("", head), record
            if not header:
                header, first = _announced([other for other in others[-6:] if id(other) not in announced], record)
                announced.add(id(first))
            open_blocks.append(_Block(record, header, foreign, first))
            continue
        headless = not open_blocks if not record.prefixed else bool(record.source) and block is None
        if headless and _FRAME.match(record.message):
            open_blocks.append(orphan := _Block(record, "", foreign, headless=True))
            orphan.add(record)
            continue
        others.append(record)
    found = [(block, block.failure()) for block in (*closed, *open_blocks)]
    whole = [
        msgspec.structs.replace(failure, whole=False) if block.headless else failure
        for block, failure in found
        # Frames with a prefix and without an exception are a stack dump, no failure.
        if failure is not None and (failure.exception or not block.headless or not block.first.prefixed)
    ]
    return sorted(whole, key=lambda failure: failure.at), others


def _announced(others: list[Record], record: Record) -> tuple[str, Record]:
    """Return the header on a line of its own above a traceback, and the record at which the failure begins.

    An example is `EngineCore failed to start.`; without a header the failure begins at the traceback.
    """
    said = [other for other in others if other.message.strip()]
    if said and record.source and said[-1].source == record.source and said[-1].actor == record.actor:
        return said[-1].message.strip().rstrip("."), record
    said = said[-2:]
    if said and said[-1].message.startswith("future: <Task"):
        said.pop()
    # A header of the main process does not announce the traceback of a rank.
    own = record.rank is None or (bool(said) and said[-1].rank == record.rank)
    if own and said and _ANNOUNCED.match(header := said[-1].message.strip()):
        return header.rstrip(":"), said[-1]
    return "", record


def _begins(message: str) -> bool:
    """Return whether a traceback begins in a message.

    Its first words must end the line, or another process's record be glued to them. Elsewhere in a line they are a
    quotation, as in the prompt of a logged request.
    """
    _, words, rest = message.partition(TRACEBACK)
    return bool(words) and (not rest.strip() or rest.lstrip().startswith(("[", "(")))


def _split(lines: list[str]) -> tuple[str, str]:
    """Return type, without its module, and message of an exception's lines."""
    if not lines:
        return "", ""
    found = _EXCEPTION.match(lines[0])
    if found is None:
        return "", "\n".join(lines).strip()[:KEPT_MESSAGE]
    rest = [found["message"] or "", *lines[1:]]
    return found["type"].rpartition(".")[2], "\n".join(rest).strip()[:KEPT_MESSAGE]
