from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.support.asking import Operator
from tests.support.facts import until
from tuner import transports
from tuner.core import journal
from tuner.domain import events as e
from tuner.domain.link import Target
from tuner.errors import ConnectionFailed, JournalError
from tuner.store.journal import Journal
from tuner.transports.replay import Player, ReplayOpener, ReplayProcess

HEADER = '{"journal":1,"protocol":1,"host":"h","at":0}\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Events at 0, 1, ..., 9 seconds, numbered from 1."""
    written = Journal(tmp_path / "j.ndjson", "box", at=100.0)
    for number in range(10):
        written.append(e.Pong(seq=number + 1, n=number), float(number))
    written.close()
    return tmp_path / "j.ndjson"


def tear(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def damage(file: Path, number: int, name: str, value: str) -> None:
    lines = file.read_text().splitlines()
    lines[number + 1], count = re.subn(rf'"{name}":[\d.]+', f'"{name}":{value}', lines[number + 1])
    assert count == 1
    file.write_text("\n".join(lines) + "\n")


def remove(file: Path) -> None:
    file.unlink()


async def playing(file: Path, speed: float) -> tuple[ReplayProcess, Player]:
    opener = transports.opener(Target(name="j", scheme="replay", host=str(file), options={"speed": str(speed)}))
    assert isinstance(opener, ReplayOpener)
    transport = opener()
    await transport.connect(Operator())
    return await transport.spawn(["ignored"]), opener.player


async def numbers(process: ReplayProcess) -> list[int]:
    read = b""
    while block := await process.read():
        read += block
    return [json.loads(line)["n"] for line in read.splitlines()]


async def test_all_is_played_as_fast_as_asked(file: Path) -> None:
    process, player = await playing(file, 0)
    assert player.header.host == "box"
    assert player.duration == 9.0
    assert await numbers(process) == list(range(10))
    assert player.position == 9.0
    assert await process.wait() == 0
    assert process.errors() == ""


@pytest.mark.parametrize("at", ["1e18", "1e300", "-5", "500", "0"])
@pytest.mark.parametrize("damaged", [0, 4, 9])
async def test_an_entry_whose_time_is_damaged_holds_nothing_up(file: Path, damaged: int, at: str) -> None:
    damage(file, damaged, "at", at)
    process, player = await playing(file, 0)
    played = await numbers(process)
    assert [n for n in played if n != damaged] == [n for n in range(10) if n != damaged]
    assert player.position <= 500
    assert player.duration == player.position


@pytest.mark.parametrize(("name", "value"), [("mono", "1e18"), ("seq", "999999999999")])
@pytest.mark.parametrize("damaged", [0, 4, 9])
async def test_an_entry_of_a_clock_or_number_that_leaps_is_passed_over(
    file: Path, damaged: int, name: str, value: str
) -> None:
    damage(file, damaged, name, value)
    played = await numbers((await playing(file, 0))[0])
    # Nothing contradicts the first until two others have agreed.
    assert played == ([0, *range(2, 10)] if damaged == 0 else [n for n in range(10) if n != damaged])


async def test_a_part_of_a_long_recording_begins_where_it_was_cut(file: Path) -> None:
    for number in range(10):
        damage(file, number, "at", str(500_000 + number))
    process, player = await playing(file, 0)
    assert await numbers(process) == list(range(10))
    assert player.duration == 500_009


async def test_blocks_are_never_longer_than_asked(file: Path) -> None:
    process, _ = await playing(file, 0)
    blocks = []
    while block := await process.read(50):
        blocks.append(block)
    assert max(map(len, blocks)) <= 50
    assert len(b"".join(blocks).splitlines()) == 10


async def test_lines_come_when_their_time_has_come(file: Path) -> None:
    process, player = await playing(file, 20)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await numbers(process) == list(range(10))
    assert 0.4 <= loop.time() - began < 5
    assert player.position == 9.0


async def test_a_pause_holds_and_a_resume_goes_on(file: Path) -> None:
    process, player = await playing(file, 0)
    player.pause()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.read(), 0.1)
    player.resume()
    assert await numbers(process) == list(range(10))


async def test_the_speed_can_be_changed_while_waiting(file: Path) -> None:
    process, player = await playing(file, 0.000001)
    assert json.loads(await process.read())["n"] == 0
    waiting = asyncio.ensure_future(numbers(process))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 0.1)
    player.speed = 0
    assert await waiting == list(range(1, 10))


async def test_seeking_forward_plays_what_lies_between_at_once(file: Path) -> None:
    process, player = await playing(file, 0.000001)
    player.seek(4.5)
    read = b""
    async with asyncio.timeout(10):
        while read.count(b"\n") < 5:
            read += await process.read()
    assert [json.loads(line)["n"] for line in read.splitlines()] == [0, 1, 2, 3, 4]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.read(), 0.1)


async def test_seeking_backward_ends_the_stream_to_be_played_again(file: Path) -> None:
    process, player = await playing(file, 0)
    block = await process.read(150)
    assert block
    player.pause()
    await until(lambda: player.position > 1)
    player.seek(1.0)
    assert player.rewound
    while await process.read():
        pass
    again, _ = await playing(file, 0)
    assert not again._owner.player.rewound
    assert await numbers(again) == list(range(10))


async def test_what_is_written_is_ignored_and_closing_ends_it(file: Path) -> None:
    process, _ = await playing(file, 0.000001)
    await process.write(b"x")
    process.close_stdin()
    await process.read()
    await process.aclose()
    assert await process.read() == b""
    assert await process.wait() == 0


async def test_a_torn_journal_is_played_as_far_as_it_goes(file: Path) -> None:
    tear(file)
    process, player = await playing(file, 0)
    assert player.duration == 8.0
    assert await numbers(process) == list(range(9))


async def test_a_file_that_went_away(file: Path) -> None:
    opener = transports.opener(Target(name="j", scheme="replay", host=str(file)))
    remove(file)
    with pytest.raises(ConnectionFailed) as failed:
        await opener().connect(Operator())
    assert failed.value.final


@pytest.mark.parametrize("content", ["", "x\n", HEADER.replace('"journal":1', '"journal":9'), "\0" * 70_000])
def test_what_is_no_journal(tmp_path: Path, content: str) -> None:
    (tmp_path / "x").write_text(content)
    with pytest.raises(JournalError) as failed:
        Player(tmp_path / "x")
    assert failed.value.exit_code == 2
    with pytest.raises(JournalError):
        Player(tmp_path / "none")


async def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_LINE_BYTES", 1000)
    entry = '{"at":1,"e":{"n":1}}\n'
    (tmp_path / "x").write_text(HEADER + entry + "x" * 2000 + "\n" + entry)
    process, _ = await playing(tmp_path / "x", 0)
    with pytest.raises(ConnectionFailed) as failed:
        await numbers(process)
    assert failed.value.final


def test_a_device_without_end_is_no_journal() -> None:
    with pytest.raises(JournalError, match="Not a journal"):
        Player(Path("/dev/zero"))
