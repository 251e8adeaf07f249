"""Answers to the Tune screen, without the screen."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from textual.message import Message
from textual.message_pump import MessagePump

from tests.support import states
from tests.support.sessions import OPERATOR
from tuner.domain.presets import Preset
from tuner.domain.recipe import Recipe
from tuner.domain.tuning import Wish
from tuner.errors import CatalogError
from tuner.messages import PresetsArrived, PresetsRequested, TuneArrived, TuneRequested
from tuner.screens.tune_requests import Bench, answer


class Pump:
    """Takes messages in the place of a screen."""

    def __init__(self) -> None:
        self.got: list[Message] = []

    def post_message(self, message: Message) -> bool:
        self.got.append(message)
        return True


BROKEN = CatalogError(Path("presets/huge.toml"), 3, "is not TOML")


class Slow:
    """A library on a disk that may be slow: it notes in which threads it is read."""

    def __init__(self) -> None:
        self.threads: dict[str, threading.Thread] = {}

    def presets(self) -> tuple[Mapping[str, Preset], tuple[CatalogError, ...]]:
        self.threads["presets"] = threading.current_thread()
        return {"a": Preset(id="a", title="A", why="w"), "b": Preset(id="b", title="B", why="w")}, (BROKEN,)

    def order(self, host: str) -> Sequence[str]:
        self.threads["order"] = threading.current_thread()
        return ["b"]

    def recipes(self, host: str) -> Sequence[Recipe]:
        self.threads["recipes"] = threading.current_thread()
        return ()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} writes")


class Host:
    """As much of a session as is asked for presets, and for what a wish would change."""

    state = states.serving()
    operator = OPERATOR


async def test_the_library_is_read_beside_the_event_loop_and_listed_in_the_operators_order() -> None:
    pump, library = Pump(), Slow()
    ask = PresetsRequested(cast("MessagePump", pump), states.serving().name, states.KEY)
    await answer(cast("Any", Host()), ask, Bench(cast("Any", library)))
    (arrived,) = pump.got
    assert isinstance(arrived, PresetsArrived)
    assert [each.id for each in arrived.presets] == ["b", "a"]
    assert arrived.problems == ("is not TOML: presets/huge.toml:3",)
    assert set(library.threads) == {"presets", "order", "recipes"}
    assert threading.main_thread() not in library.threads.values()


async def test_a_preset_whose_file_broke_meanwhile_is_named_with_its_line() -> None:
    pump = Pump()
    wish = Wish(server=states.KEY, preset="huge")
    ask = TuneRequested(cast("MessagePump", pump), states.serving().name, wish)
    await answer(cast("Any", Host()), ask, Bench(cast("Any", Slow())))
    (arrived,) = pump.got
    assert isinstance(arrived, TuneArrived)
    assert arrived.tuning.refused == ("Start: is not TOML: presets/huge.toml:3",)
