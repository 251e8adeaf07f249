"""Ask the probe for the facts before a switch; an engine's help is run once for each version and then kept here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from tuner.domain.events import PreflightResult
from tuner.domain.preflight import PreflightAsk
from tuner.domain.state import HostState
from tuner.paths import cache_dir
from tuner.store.help_texts import HelpTexts


class Preflight:
    """The facts of one host.

    Args:
        ask: Asks the probe; raises ConnectionFailed.
        state: Returns the newest state of the host.
        texts: Help texts that are kept on this machine; None: those in its cache folder.
    """

    def __init__(
        self,
        ask: Callable[[PreflightAsk], Awaitable[PreflightResult]],
        state: Callable[[], HostState],
        texts: HelpTexts | None = None,
    ) -> None:
        self._ask = ask
        self._state = state
        self._texts = texts or HelpTexts(cache_dir() / "help")

    async def facts(self, ask: PreflightAsk) -> PreflightResult:
        """Return the probe's facts. The help text among them may be one that this version printed earlier.

        Raises:
            ConnectionFailed: The probe did not answer.
        """
        if not ask.help_argv:
            return await self._ask(ask)
        host, guess = self._state().name, self._version(ask)
        text = await asyncio.to_thread(self._texts.find, host, ask.help_argv, guess)
        if text is not None:
            answer = await self._ask(msgspec.structs.replace(ask, help_argv=()))
            if _version_in(answer.facts) == guess:
                return msgspec.structs.replace(answer, facts={**answer.facts, "help": {"text": text, "kept": True}})
        answer = await self._ask(ask)
        fact = answer.facts.get("help")
        printed = fact.get("text") if isinstance(fact, dict) and not fact.get("problem") else None
        if isinstance(printed, str):
            version = _version_in(answer.facts)
            await asyncio.to_thread(self._texts.keep, host, ask.help_argv, version, printed)
        return answer

    def _version(self, ask: PreflightAsk) -> str | None:
        """Return the version that was installed when the server was found; a newer one is told by the facts."""
        state = self._state()
        server = state.server(ask.key) or next(iter(state.servers), None)
        return None if server is None else server.identity.version or server.version


def _version_in(facts: dict[str, Any]) -> str | None:
    fact = facts.get("version")
    told = fact.get("version") if isinstance(fact, dict) else None
    return told if isinstance(told, str) and told else None
