"""What every transport owes its caller, run against each of them with real programs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.facts import until
from tests.support.sshd import SshWorld, world
from tuner import transports
from tuner.domain.link import Question, Target
from tuner.errors import ConnectionFailed, UsageProblem
from tuner.transports import RemoteProcess, Transport
from tuner.transports.inbox import HIGH_WATER_BYTES

KINDS = ["local", pytest.param("ssh", marks=pytest.mark.sshd)]


async def refuse(question: Question) -> str | None:
    raise AssertionError(f"nothing should be asked: {question}")


@pytest.fixture
def ssh_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshWorld]:
    with world(tmp_path / "home") as made:
        monkeypatch.setenv("HOME", str(made.home))
        yield made


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest) -> Target:
    if request.param == "local":
        return Target(name="local", scheme="local")
    server = request.getfixturevalue("ssh_world").server()
    return Target(name="box", scheme="ssh", host="127.0.0.1", port=server.port)


@pytest.fixture
async def transport(target: Target) -> AsyncIterator[Transport]:
    made = transports.opener(target)()
    await made.connect(refuse)
    yield made
    await made.aclose()


async def all_of(process: RemoteProcess) -> bytes:
    read = bytearray()
    while block := await process.read():
        read += block
    return bytes(read)


async def test_output_and_exit_status(transport: Transport) -> None:
    process = await transport.spawn(["sh", "-c", "echo out; exit 7"])
    assert await all_of(process) == b"out\n"
    assert await process.wait() == 7
    assert await process.read() == b""


async def test_errors_are_apart_and_only_their_end_is_kept(transport: Transport) -> None:
    process = await transport.spawn(
        ["sh", "-c", "i=0; while [ $i -lt 4000 ]; do echo $i >&2; i=$((i+1)); done; echo out"]
    )
    assert await all_of(process) == b"out\n"
    await process.wait()
    assert process.errors().endswith("3999\n")
    assert len(process.errors()) <= 8192


async def test_input_reaches_the_program_and_its_end_too(transport: Transport) -> None:
    process = await transport.spawn(["sh", "-c", "cat; echo end"])
    await process.write(b"some ")
    await process.write(b"bytes\0\xff\n")
    process.close_stdin()
    assert await all_of(process) == b"some bytes\0\xff\nend\n"
    assert await process.wait() == 0


async def test_output_comes_as_it_is_written(transport: Transport) -> None:
    process = await transport.spawn(["sh", "-c", 'while read line; do echo "got $line"; done'])
    for word in (b"one", b"two"):
        await process.write(word + b"\n")
        assert await process.read() == b"got " + word + b"\n"
    process.close_stdin()
    assert await process.wait() == 0


async def test_a_block_is_never_longer_than_asked(transport: Transport) -> None:
    process = await transport.spawn(["sh", "-c", "printf 0123456789"])
    blocks = []
    while block := await process.read(3):
        blocks.append(block)
    assert b"".join(blocks) == b"0123456789"
    assert max(map(len, blocks)) <= 3


class Standstill:
    """True once a program has written nothing over twenty looks."""

    def __init__(self, pid: int) -> None:
        self._io = Path(f"/proc/{pid}/io")
        self._seen: list[str] = []

    def __call__(self) -> bool:
        self._seen = [*self._seen[-19:], self._io.read_text()]
        return len(self._seen) == 20 and len(set(self._seen)) == 1


async def test_a_reader_that_does_not_read_stops_the_program(transport: Transport) -> None:
    process = await transport.spawn(["sh", "-c", "yes 0123456789abcdef & echo $! >&2; wait"])
    await until(lambda: process.errors().strip().isdigit())
    pid = int(process.errors())
    await until(lambda: transport.received_bytes > HIGH_WATER_BYTES)
    await until(Standstill(pid))
    assert transport.received_bytes < 8 * HIGH_WATER_BYTES
    first = await process.read()
    assert first.startswith(b"0123456789abcdef\n")
    await process.aclose()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def test_a_program_that_is_not_there(transport: Transport) -> None:
    try:
        process = await transport.spawn(["/no/such/program"])
    except ConnectionFailed as error:
        assert error.final
        assert "/no/such/program" in str(error)
    else:
        assert await all_of(process) == b""
        assert await process.wait() == 127
        assert "/no/such/program" in process.errors()


async def test_a_program_that_a_signal_ends_has_no_status(transport: Transport) -> None:
    process = await transport.spawn(["sh", "-c", "kill -9 $$"])
    assert await all_of(process) == b""
    assert await process.wait() is None


async def test_writing_to_a_program_that_is_gone_is_a_lost_connection(transport: Transport) -> None:
    process = await transport.spawn(["true"])
    await all_of(process)
    await process.wait()
    with pytest.raises(ConnectionFailed):
        for _ in range(100):
            await process.write(b"x" * 65_536)
            await asyncio.sleep(0)


async def test_closing_a_channel_lets_the_program_see_the_end(transport: Transport, tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    process = await transport.spawn(["sh", "-c", f"echo ready; cat >/dev/null; echo > {shlex.quote(str(mark))}"])
    assert await process.read() == b"ready\n"
    await process.aclose()
    await process.aclose()
    await until(mark.exists)


async def test_a_reader_may_be_cancelled_and_nothing_is_lost(transport: Transport) -> None:
    process = await transport.spawn(["sh", "-c", "read go; echo all of it"])
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await process.read()
    await process.write(b"\n")
    assert await all_of(process) == b"all of it\n"


async def test_environment_variables(transport: Transport) -> None:
    process = await transport.spawn(["sh", "-c", 'printf %s "$TUNER_TEST"'], env={"TUNER_TEST": "a 'b' $c"})
    assert await all_of(process) == b"a 'b' $c"


async def test_traffic_is_counted(transport: Transport) -> None:
    process = await transport.spawn(["cat"])
    await process.write(b"x" * 10_000)
    process.close_stdin()
    assert len(await all_of(process)) == 10_000
    assert 10_000 <= transport.received_bytes < 11_500
    assert 10_000 <= transport.sent_bytes < 11_500


async def test_several_programs_run_beside_each_other(transport: Transport) -> None:
    processes = [await transport.spawn(["sh", "-c", f"read go; echo {n}"]) for n in range(3)]
    for process in reversed(processes):
        await process.write(b"\n")
        process.close_stdin()
    assert [await all_of(process) for process in processes] == [b"0\n", b"1\n", b"2\n"]


async def test_closing_twice_is_fine_and_ends_programs(transport: Transport) -> None:
    process = await transport.spawn(["sh", "-c", "echo up; cat"])
    assert await process.read() == b"up\n"
    await transport.aclose()
    await transport.aclose()
    assert await process.read() == b""
    await process.wait()


async def test_a_stubborn_program_on_this_machine_does_not_keep_us() -> None:
    transport = transports.opener(Target(name="local", scheme="local"))()
    process = await transport.spawn(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"])
    assert await process.read() == b"up\n"
    async with asyncio.timeout(8):
        await transport.aclose()


@pytest.mark.sshd
async def test_a_lost_link_is_the_end_of_output_without_status(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    transport = transports.opener(Target(name="box", host="127.0.0.1", port=server.port))()
    await transport.connect(refuse)
    process = await transport.spawn(["sh", "-c", "echo up; cat"])
    assert await process.read() == b"up\n"
    server.cut()
    assert await process.read() == b""
    assert await process.wait() is None
    with pytest.raises(ConnectionFailed):
        await process.write(b"x")
    with pytest.raises(ConnectionFailed):
        await transport.spawn(["true"])
    await transport.aclose()


words = st.lists(
    st.text(st.characters(min_codepoint=1, max_codepoint=0x2FF, blacklist_categories=("Cs",)), max_size=12), max_size=5
)


def _quoted_by_sh(arguments: Sequence[str]) -> list[str]:
    """Arguments as a real shell hands them on, quoted as the SSH transport does it."""
    line = shlex.join(["printf", r"%s\0", *arguments])
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, timeout=10)
    return done.stdout.decode().split("\0")[:-1]


@given(words)
@settings(max_examples=60, deadline=None)
def test_any_argument_passes_a_shell_unchanged(arguments: list[str]) -> None:
    assert _quoted_by_sh(arguments) == (arguments or [""])


@pytest.mark.sshd
async def test_any_argument_reaches_a_program_on_a_host_unchanged(ssh_world: SshWorld) -> None:
    server = ssh_world.server()
    transport = transports.opener(Target(name="box", host="127.0.0.1", port=server.port))()
    await transport.connect(refuse)
    hard = [
        "",
        " ",
        "a b",
        "'",
        '"',
        "\\",
        "$HOME",
        "`id`",
        "*",
        "~",
        "!x",
        "a\nb",
        "--",
        "-n",
        ";",
        "&",
        "|",
        "ä€",
        "\x01",
    ]
    process = await transport.spawn(["printf", r"%s\0", *hard])
    assert (await all_of(process)).decode().split("\0")[:-1] == hard
    await transport.aclose()


def test_transports_are_found_by_being_there() -> None:
    assert transports.schemes() == ("local", "replay", "ssh")


@pytest.mark.parametrize("scheme", ["docker", "inbox", "", "__init__", "ssh.route"])
def test_an_unknown_scheme_is_wrong_usage(scheme: str) -> None:
    with pytest.raises(UsageProblem):
        transports.opener(Target(name="x", scheme=scheme))
