"""Logins that OpenSSH cannot offer without the system's accounts, against an SSH server in this process."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.support.asking import Operator
from tests.support.facts import until
from tuner import transports
from tuner.domain.link import Target
from tuner.errors import ConnectionFailed
from tuner.transports import Opener


class Host(asyncssh.SSHServer):
    """Takes the password `right`, or two answers; a silent one offers to ask and has no question."""

    def __init__(
        self, *, password: bool = False, questions: tuple[tuple[str, bool], ...] = (), silent: bool = False
    ) -> None:
        self._password = password
        self._questions = questions
        self._silent = silent

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return self._password

    def validate_password(self, username: str, password: str) -> bool:
        return password == "right"

    def kbdint_auth_supported(self) -> bool:
        return bool(self._questions) or self._silent

    def get_kbdint_challenge(self, username: str, lang: str, submethods: str) -> Any:
        return bool(self._questions) and ("Two steps", "Have your phone ready.", "", list(self._questions))

    def validate_kbdint_response(self, username: str, responses: list[str]) -> bool:
        return responses == ["right"] * len(self._questions)


@contextlib.asynccontextmanager
async def host(home: Path, **offers: Any) -> AsyncIterator[Opener]:
    """A server; yields the way to it."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.create_server(lambda: Host(**offers), "127.0.0.1", 0, server_host_keys=[key])
    port = server.get_port()
    known = home / "known_hosts"
    known.write_text(f"[127.0.0.1]:{port} {key.export_public_key('openssh').decode()}")
    target = Target(
        name="box",
        host="127.0.0.1",
        port=port,
        user="someone",
        options={"known_hosts": str(known), "config": "none"},
    )
    try:
        yield transports.opener(target)
    finally:
        server.close()
        await server.wait_closed()


async def log_in(opener: Opener, ask: Operator) -> None:
    transport = opener()
    try:
        await transport.connect(ask)
    finally:
        await transport.aclose()


async def test_a_password_is_asked_for_until_it_is_right(tmp_path: Path) -> None:
    async with host(tmp_path, password=True) as opener:
        ask = Operator("wrong", "right")
        await log_in(opener, ask)
    assert [(secret.kind, secret.attempt, secret.echo) for secret in ask.secrets] == [
        ("password", 1, False),
        ("password", 2, False),
    ]
    assert "someone@127.0.0.1" in ask.secrets[0].prompt


async def test_a_password_is_not_kept(tmp_path: Path) -> None:
    async with host(tmp_path, password=True) as opener:
        for _ in range(2):
            ask = Operator("right")
            await log_in(opener, ask)
            assert len(ask.secrets) == 1


async def test_three_wrong_passwords_are_enough(tmp_path: Path) -> None:
    ask = Operator("a", "b", "c")
    async with host(tmp_path, password=True) as opener:
        with pytest.raises(ConnectionFailed, match="refused the login") as failed:
            await log_in(opener, ask)
    assert failed.value.final
    assert "the password was wrong 3 times" in str(failed.value)
    assert len(ask.secrets) == 3


async def test_giving_up_is_final_and_nothing_else_is_asked(tmp_path: Path) -> None:
    ask = Operator(None)
    async with host(tmp_path, password=True, questions=(("Code:", True),)) as opener:
        with pytest.raises(ConnectionFailed) as failed:
            await log_in(opener, ask)
    assert failed.value.final
    assert "no answer was given" in str(failed.value)
    assert len(ask.asked) == 1


async def test_the_servers_own_questions(tmp_path: Path) -> None:
    ask = Operator("right", "right")
    async with host(tmp_path, questions=(("Password: ", False), ("Code: ", True))) as opener:
        await log_in(opener, ask)
    assert [(secret.kind, secret.echo) for secret in ask.secrets] == [
        ("keyboard-interactive", False),
        ("keyboard-interactive", True),
    ]
    assert "Have your phone ready." in ask.secrets[0].prompt
    assert ask.secrets[1].prompt.endswith("Code:")


async def test_who_was_asked_nothing_is_not_told_that_it_was_wrong(tmp_path: Path) -> None:
    """sshd offers keyboard-interactive by default, and without PAM it has no question."""
    ask = Operator()
    async with host(tmp_path, questions=(), silent=True) as opener:
        with pytest.raises(ConnectionFailed) as failed:
            await log_in(opener, ask)
    assert not ask.asked
    assert "typed" not in str(failed.value)
    assert "authorized_keys" in str(failed.value)


async def test_a_question_says_who_asks_for_what(tmp_path: Path) -> None:
    ask = Operator("wrong", "wrong", "right", "right")
    async with host(tmp_path, questions=(("Password: ", False), ("Code: ", True))) as opener:
        await log_in(opener, ask)
    assert [secret.attempt for secret in ask.secrets] == [1, 1, 2, 2]
    server = ask.secrets[0].host
    assert re.fullmatch(r"box \(someone@127\.0\.0\.1:\d+\)", server)
    assert [secret.title for secret in ask.secrets[:2]] == [
        f"{server} asks for a password",
        f"{server} asks a question",
    ]


async def test_a_servers_words_cannot_drive_the_terminal(tmp_path: Path) -> None:
    ask = Operator("right")
    async with host(tmp_path, questions=(("\x1b[2J\x07Code\r\n:" + "x" * 5000, True),)) as opener:
        await log_in(opener, ask)
    (secret,) = ask.secrets
    assert secret.prompt.isprintable()
    assert len(secret.prompt) < 600


async def test_the_servers_own_questions_answered_wrongly(tmp_path: Path) -> None:
    ask = Operator("wrong", "wrong", "wrong")
    async with host(tmp_path, questions=(("Code: ", True),)) as opener:
        with pytest.raises(ConnectionFailed) as failed:
            await log_in(opener, ask)
    assert failed.value.final
    assert [secret.attempt for secret in ask.secrets] == [1, 2, 3]


async def test_time_to_think_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 0.5
    monkeypatch.setattr("tuner.transports.ssh.login.LOGIN_S", limit)
    clock = asyncio.get_running_loop().time

    class Slow(Operator):
        async def __call__(self, question: Any) -> str | None:
            over = clock() + limit
            await until(lambda: clock() > over)
            return await super().__call__(question)

    async with host(tmp_path, password=True) as opener:
        await log_in(opener, Slow("right"))


async def test_being_cancelled_while_the_operator_thinks(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def never(question: Any) -> str | None:
        asked.set()
        await asyncio.Event().wait()
        return None

    async with host(tmp_path, password=True) as opener:
        transport = opener()
        attempt = asyncio.ensure_future(transport.connect(never))
        await asyncio.wait_for(asked.wait(), 10)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        await transport.aclose()
