"""Questions on a real pseudo-terminal: what is shown, what is echoed, what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.cli.ask import TerminalAsk
from tuner.domain.link import HostKeyQuestion, SecretQuestion

KEY = HostKeyQuestion(target="box", host="10.0.0.7", port=22, key_type="ssh-ed25519", fingerprint="SHA256:abc")
PASSWORD = SecretQuestion(target="box", kind="password", prompt="root@10.0.0.7's password:")


class Terminal:
    """The operator's side of a pseudo-terminal."""

    def __init__(self) -> None:
        self._operator, self._ours = pty.openpty()
        self.path = Path(os.ttyname(self._ours))
        self.shown = ""

    async def see(self, text: str) -> None:
        """Wait until `text` was shown."""
        loop = asyncio.get_running_loop()
        while text not in self.shown:
            readable = loop.create_future()
            loop.add_reader(self._operator, readable.set_result, None)
            try:
                await readable
            finally:
                loop.remove_reader(self._operator)
            self.shown += os.read(self._operator, 4096).decode()

    def type(self, text: str) -> None:
        os.write(self._operator, text.encode())

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._ours)[3] & termios.ECHO)

    def close(self) -> None:
        os.close(self._operator)
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("typed", "answer"), [("once\n", "once"), ("s\n", "save"), ("\n", "refuse"), ("REFUSE\n", "refuse")]
)
async def test_a_host_key_is_shown_and_answered(terminal: Terminal, typed: str, answer: str) -> None:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(TerminalAsk(terminal.path)(KEY))
        await terminal.see("[refuse]: ")
        assert "SHA256:abc" in terminal.shown
        assert "box: is this 10.0.0.7 port 22?" in terminal.shown
        terminal.type(typed)
    assert asked.result() == answer


async def test_yes_is_no_answer_to_a_host_key(terminal: Terminal) -> None:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(TerminalAsk(terminal.path)(KEY))
        await terminal.see("[refuse]: ")
        terminal.shown = ""
        terminal.type("yes\n")
        await terminal.see("[refuse]: ")
        terminal.type("once\n")
    assert asked.result() == "once"


async def test_a_password_is_not_echoed_and_the_terminal_is_left_as_it_was(terminal: Terminal) -> None:
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(TerminalAsk(terminal.path)(PASSWORD))
        await terminal.see("password: ")
        assert not terminal.echoes()
        terminal.type("hunter2\n")
        await terminal.see("\n")
    assert asked.result() == "hunter2"
    assert "hunter2" not in terminal.shown
    assert terminal.echoes()


async def test_a_second_attempt_says_that_the_first_was_wrong(terminal: Terminal) -> None:
    again = SecretQuestion(target="box", kind="passphrase", prompt="Passphrase of /k", attempt=2)
    async with asyncio.TaskGroup() as group:
        group.create_task(TerminalAsk(terminal.path)(again))
        await terminal.see("Passphrase of /k: ")
        terminal.type("x\n")
    assert "That was wrong." in terminal.shown


async def test_an_interrupted_question_gives_the_echo_back(terminal: Terminal) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(TerminalAsk(terminal.path)(PASSWORD))
            await terminal.see("password: ")
            asked.cancel()
    assert terminal.echoes()


@pytest.mark.parametrize(("question", "hint"), [(KEY, "known_hosts"), (PASSWORD, "ssh-agent")])
async def test_without_a_terminal_it_is_refused_with_a_way_to_go_on(
    question: HostKeyQuestion | SecretQuestion, hint: str, tmp_path: Path
) -> None:
    ask = TerminalAsk(tmp_path / "no-terminal")
    assert await ask(question) is None
    assert ask.refusal is not None
    assert hint in ask.refusal
    assert "\n" not in ask.refusal
