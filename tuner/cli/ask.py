"""Ask the operator about the connection on the controlling terminal.

Used by the commands without a screen. Where there is no terminal the question is refused, and `refusal` says how to
go on. No option answers for the operator.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import termios
from collections.abc import Iterator
from pathlib import Path

from tuner.domain.link import HostKeyQuestion, Question, SecretQuestion

TERMINAL = Path("/dev/tty")


class TerminalAsk:
    """An `Ask` that reads answers from the controlling terminal, even where stdin and stdout are redirected."""

    def __init__(self, terminal: Path = TERMINAL) -> None:
        self._path = terminal
        self._turn = asyncio.Lock()
        self.refusal: str | None = None
        """Why the last question was not answered, and what the operator can do; None while none was refused."""

    async def __call__(self, question: Question) -> str | None:
        """Ask the question and return the operator's answer, or None where there is none."""
        async with self._turn:
            try:
                terminal = os.open(self._path, os.O_RDWR | os.O_NOCTTY)
            except OSError:
                self.refusal = without_terminal(question)
                return None
            try:
                if isinstance(question, HostKeyQuestion):
                    return await self._host_key(terminal, question)
                return await self._secret(terminal, question)
            finally:
                os.close(terminal)

    async def question(self, text: str, prompt: str) -> str | None:
        """Put a question of a command, and return the line typed; None where there is no terminal, or at its end.

        Args:
            text: Lines that say what it is about.
            prompt: The question itself; the answer is typed behind it.
        """
        async with self._turn:
            try:
                terminal = os.open(self._path, os.O_RDWR | os.O_NOCTTY)
            except OSError:
                return None
            try:
                _say(terminal, text.rstrip("\n") + "\n")
                return await _line(terminal, prompt)
            finally:
                os.close(terminal)

    def there(self) -> bool:
        """Return whether there is a terminal to ask on."""
        try:
            os.close(os.open(self._path, os.O_RDWR | os.O_NOCTTY))
        except OSError:
            return False
        return True

    async def _host_key(self, terminal: int, question: HostKeyQuestion) -> str:
        _say(
            terminal,
            f"{question.title} Its host key is not known.\n"
            f"  {question.key_type}  {question.fingerprint}\n"
            "Compare it with what `ssh-keygen -lf` says on the host itself.\n",
        )
        while True:
            answer = await _line(terminal, "Go on? once, save or refuse [refuse]: ")
            word = (answer or "refuse").strip().lower()
            found = [choice for choice in ("once", "save", "refuse") if choice.startswith(word)] if word else ["refuse"]
            if len(found) == 1:
                return found[0]

    async def _secret(self, terminal: int, question: SecretQuestion) -> str | None:
        if question.attempt > 1:
            _say(terminal, "That was wrong.\n")
        prompt = f"{question.prompt.rstrip().rstrip(':')}: "
        if question.echo:
            return await _line(terminal, prompt)
        with _silent(terminal):
            answer = await _line(terminal, prompt)
        _say(terminal, "\n")
        return answer


def without_terminal(question: Question) -> str:
    """Return what the operator can do about a question that could not be asked for want of a terminal."""
    if isinstance(question, HostKeyQuestion):
        return (
            f"{question.target}: the key of {question.host} port {question.port} is not known "
            f"({question.key_type} {question.fingerprint}) and there is no terminal to confirm it on. "
            f"Run `gputuner connect {question.target}` in a terminal once "
            "and choose save, or add the key to ~/.ssh/known_hosts"
        )
    return (
        f"{question.title}, and there is no terminal to type on. "
        "Load a key into ssh-agent, or name one without passphrase as IdentityFile in ~/.ssh/config"
    )


def _say(terminal: int, text: str) -> None:
    os.write(terminal, text.encode())


@contextlib.contextmanager
def _silent(terminal: int) -> Iterator[None]:
    """Turn the terminal's echo off inside the context; its settings are restored at the end, also when cancelled."""
    before = termios.tcgetattr(terminal)
    quiet = list(before)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSAFLUSH, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)


async def _line(terminal: int, prompt: str) -> str | None:
    """Return one line typed at the terminal, or None at end of file.

    Waits in the event loop, so that an interrupt ends the wait.
    """
    _say(terminal, prompt)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(terminal)
        if not ready.done():
            ready.set_result(os.read(terminal, 4096))

    loop.add_reader(terminal, read)
    try:
        typed = await ready
    finally:
        loop.remove_reader(terminal)
    return typed.decode(errors="replace").rstrip("\r\n") if typed else None
