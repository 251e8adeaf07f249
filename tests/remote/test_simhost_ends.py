"""The simulated host ends in silence, whatever still runs on it: its stderr is that of `gputuner snapshot demo`."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import asyncssh
import pytest

from tuner import simhost

RUNNING = ("exec sleep 60", "trap '' HUP TERM; while :; do sleep 60; done", "exec cat")


@pytest.mark.parametrize("command", RUNNING)
async def test_commands_that_run_when_it_ends_leave_no_words(command: str) -> None:
    with subprocess.Popen(  # noqa: ASYNC220 - it takes no time to begin
        [sys.executable, "-m", "tuner.simhost", "--no-server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        address = (await asyncio.to_thread(simhost.finish, process)).address
        async with asyncssh.connect(
            address.host,
            address.port,
            username=address.user,
            client_keys=[str(address.identity)],
            known_hosts=str(address.known_hosts),
            config=None,
        ) as client:
            for _ in range(4):
                await client.create_process(command)
            assert (await client.run("echo up")).stdout == "up\n"
            _, said = await asyncio.to_thread(process.communicate, timeout=20)
    assert said.decode() == ""
    assert process.returncode == 0
