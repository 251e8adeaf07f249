"""`apply`, `stop`, `resume` and `clean`: change a host without a screen, through the same core as the dashboard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from tuner.cli import FINE, PROBLEM, UNREACHED, demo
from tuner.cli.ask import TerminalAsk
from tuner.cli.change_lines import server_words, tuning_lines
from tuner.cli.change_report import Printer, Told, ended
from tuner.cli.following import Follower
from tuner.cli.headless import connected, settled
from tuner.cli.running import run
from tuner.cli.tables import plain
from tuner.cli.wishes import Options, named, past_of, server_meant, wish_of
from tuner.core import run_words as words
from tuner.core import runs
from tuner.core.engine import Engine
from tuner.core.share import KNOBS, down
from tuner.core.shellwords import shell_line
from tuner.core.tuning import tune
from tuner.domain.acts import AnyAct, Clean, ResumeRun, Switch, TakeLease
from tuner.domain.events import Acted
from tuner.domain.forecast import Fit
from tuner.domain.link import Target
from tuner.domain.preflight import Verdict
from tuner.domain.presets import Preset
from tuner.domain.recipe import Recipe
from tuner.domain.runs import Lease, RunOutcome
from tuner.domain.state import HostState, ServerState
from tuner.domain.tuning import Tuning, Wish
from tuner.engines import load_engines
from tuner.errors import UsageProblem, sentences
from tuner.session.acts import new_run_id
from tuner.session.session import Session

_GOOD = frozenset({RunOutcome.READY, RunOutcome.STOPPED})

FACTS_S = 30.0
"""Seconds for which an order is good that was put together before the question; then it is made anew."""


def apply(target: Target, options: Options) -> int:
    """Switch a host to a preset, or go back, and follow that to its end.

    Returns:
        0 when the new server serves, or would be started (`dry_run`); 1 when a check refuses it, the start failed or
        was cancelled; 3 when the host could not be followed to the end.

    Raises:
        UsageProblem: There is no such preset, knob, value, recipe or server; or there is no terminal to confirm on.
        ConnectionFailed: The host was not reached.
    """
    presets, recipe = named(options)
    _can_confirm(options)
    printer = Printer(as_json=options.as_json)

    async def whole() -> Told:
        async with connected(target, retry=True, dry_run=options.dry_run) as (session, ask):
            state = await settled(session, ask, speed=False)
            return await _Change(session, ask, printer, options, presets, recipe).carried_out(state)

    return ended(run(whole()), printer, as_json=options.as_json)


def resume(target: Target, *, back: bool, options: Options) -> int:
    """Finish a run whose supervisor died, or go back from it."""
    printer = Printer(as_json=options.as_json)

    async def whole() -> Told:
        async with connected(target, retry=True, dry_run=options.dry_run) as (session, ask):
            state = await settled(session, ask, speed=False)
            left, option, told = resumption(state, back=back)
            if left is None or option is None:
                return Told(host=state.name, code=PROBLEM, outcome="refused", reason=told)
            printer.say(told)
            _can_confirm(options)
            if not await _confirmed(ask, options, f"{state.name}: {option.title}", "Do it? y or n [n]: "):
                return Told(host=state.name, code=PROBLEM, outcome="declined")
            if options.take_over and (refusal := await _taken_over(session)) is not None:
                return _refused(Told(host=state.name), refusal)
            act = ResumeRun(run=left.run.id, back=back)
            change = _Change(session, ask, printer, options, {}, None)
            return await change.ordered(act, left.run.id, Told(host=state.name))

    return ended(run(whole()), printer, as_json=options.as_json)


def clean(target: Target, options: Options) -> int:
    """Empty gputuner's folder on a host; the audit stays."""
    _can_confirm(options)
    printer = Printer(as_json=options.as_json)

    async def whole() -> Told:
        async with connected(target, retry=True, dry_run=options.dry_run) as (session, ask):
            state = await settled(session, ask, speed=False)
            if not await _confirmed(ask, options, clean_words(state), "Remove it? y or n [n]: "):
                return Told(host=state.name, code=PROBLEM, outcome="declined")
            told = Told(host=state.name, outcome="cleaned")
            if options.take_over and (refusal := await _taken_over(session)) is not None:
                return _refused(told, refusal)
            done = await session.act(Clean(), confirmed=True)
            if done.error is not None:
                return _refused(told, done, dry_run=options.dry_run)
            told.reason = done.hint
            return told

    return ended(run(whole()), printer, as_json=options.as_json)


def clean_words(state: HostState) -> str:
    """Return what is asked before gputuner's folder is emptied."""
    runs_of_it = f"{len(state.runs)} run{'' if len(state.runs) == 1 else 's'} with their logs"
    about = f"{state.name}: empties ~/.gputuner: {runs_of_it}, and the lease. The audit stays: ~/.gputuner/audit.ndjson"
    if state.runs:
        about += "\nThe way back is lost with them: what ran before cannot be started again by --back or B."
    return about


class _Change:
    """One change of a host, from the wish to its end."""

    def __init__(
        self,
        session: Session,
        ask: TerminalAsk,
        printer: Printer,
        options: Options,
        presets: Mapping[str, Preset],
        recipe: Recipe | None,
    ) -> None:
        self._session = session
        self._ask = ask
        self._printer = printer
        self._options = options
        self._presets = presets
        self._recipe = recipe
        self._engines = load_engines()

    async def carried_out(self, state: HostState) -> Told:
        """Put the wish together, have it confirmed, order it and follow it."""
        options = self._options
        server = server_meant(state, options, self._recipe)
        wish = wish_of(state, server, options, self._recipe, self._engines)
        state = self._session.state
        tuning = await self._tuned(state, wish)
        told = Told(host=state.name, tuning=tuning, state=state)
        self._printer.all(tuning_lines(tuning, state, server, self._printer.paper))
        self._printer.say("")
        if tuning.order is not None and not options.dry_run:
            asked_at = time.monotonic()
            if not await self._confirmed(state, tuning, server):
                told.code, told.outcome = PROBLEM, "declined"
                return told
            if time.monotonic() - asked_at > FACTS_S:
                # A server that ended meanwhile is not stopped, and what speaks against it by now is heeded.
                told.tuning = tuning = await self._tuned(self._session.state, wish)
        if tuning.order is None:
            told.code, told.outcome = PROBLEM, RunOutcome.REFUSED
            told.reason, *more = tuning.refused or ("it cannot be put together",)
            told.more = (*more, *fitting_command(state.name, tuning, options, self._engines))
            return told
        if options.dry_run:
            self._printer.say("dry run: nothing was sent")
            told.outcome, told.sent = "dry-run", msgspec.to_builtins(tuning.order)
            return told
        if options.take_over and (refusal := await _taken_over(self._session)) is not None:
            return _refused(told, refusal)
        return await self.ordered(Switch(order=tuning.order), tuning.order.run, told)

    async def ordered(self, act: AnyAct, run_id: str, told: Told) -> Told:
        """Send an act that begins or resumes a run, and follow the run."""
        follower = Follower(
            self._session,
            self._ask,
            run_id,
            self._printer.say,
            unattended=self._options.yes,
            ended=lambda: demo.ended(self._session.target),
        )
        with follower.minding_interrupts():
            try:
                done = await self._session.act(act, confirmed=True)
            except asyncio.CancelledError:
                if not follower.left:
                    raise
                told.code, told.outcome = 130, "left"
                told.reason = "the order was on its way: the run may go on at the host, and `gputuner snapshot` tells"
                return told
            if done.error is not None and not done.run:
                return _refused(told, done, dry_run=self._options.dry_run)
            if done.error is not None:
                self._printer.say(sentences(done.error, done.hint))
            self._printer.say(f"run {run_id}")
            followed = await follower.follow()
        told.followed, told.state = followed, self._session.state
        if followed.left:
            told.code, told.outcome, told.reason = 130, "left", "the run goes on at the host"
        elif followed.lost:
            unreached = followed.unreached or followed.run is None or followed.run.supervised
            told.code = UNREACHED if unreached else PROBLEM
            told.outcome, told.reason = "lost", followed.lost
        elif followed.run is not None:
            told.outcome = followed.run.outcome
            told.reason = words.outcome(followed.run, words.cause_title(followed.findings))
            wanted = _GOOD if not self._options.start else {RunOutcome.READY}
            told.code = FINE if followed.run.outcome in wanted else PROBLEM
        return told

    async def _tuned(self, state: HostState, wish: Wish) -> Tuning:
        """Return the wish put together, with the host's facts."""
        run_id, operator = new_run_id(), self._session.operator
        past = await asyncio.to_thread(past_of, self._session) if not wish.server else ()
        if self._options.take_over and not state.lease.mine:
            # It is taken over before the order is sent, so its present holder refuses nothing.
            state = msgspec.structs.replace(state, lease=Lease(holder=operator, mine=True))

        def made(facts: Mapping[str, Any] | None) -> Tuning:
            return tune(
                state, wish, self._engines, self._presets, run=run_id, operator=operator, facts=facts, past=past
            )

        tuning = await asyncio.to_thread(made, None)
        if tuning.ask is None or (wish.start and tuning.launch is None):
            return tuning
        facts = (await self._session.preflight(tuning.ask)).facts
        return await asyncio.to_thread(made, facts)

    async def _confirmed(self, state: HostState, tuning: Tuning, server: ServerState | None) -> bool:
        """Ask on the terminal, naming host, process, owner, age and requests in flight; True with `--yes`."""
        order = tuning.order
        assert order is not None
        parts = [f"host   {state.name}"]
        if order.stop is not None and server is not None:
            parts.append(f"stop   {server_words(state, server)}")
            if server.metrics.running or server.metrics.queued:
                drained = f"waits up to {self._options.drain_s:.0f} s for them" if self._options.drain_s else "are cut"
                parts.append(f"       its requests: {drained}, as far as the engine lets them")
        if order.start is not None:
            parts.append(f"start  {order.start.title or 'the server as it was'}")
            parts.append(f"back   {order.back.title if order.back is not None else 'nothing to go back to'}")
        holder = words.holder_words(state.lease, state.now, self._session.operator)
        if self._options.take_over and holder:
            parts.append(f"lease  {holder}: it is taken over, and they are told")
        warned = [check.title for check in tuning.checks if check.verdict in (Verdict.WARN, Verdict.UNKNOWN)]
        if warned:
            parts.append(
                f"{len(warned)} check{'s' if len(warned) > 1 else ''} to look at: {', '.join(dict.fromkeys(warned))}"
            )
        text = "\n".join(plain(part) for part in parts)
        return await _confirmed(self._ask, self._options, text, "Do it? y or n [n]: ")


def fitting_command(host: str, tuning: Tuning, options: Options, engines: Mapping[str, Engine]) -> tuple[str, ...]:
    """Return the command with the largest safe fraction, where only the memory forecast refuses a change; else nothing.

    Args:
        host: Name of the host.
        tuning: The change.
        options: What was asked for.
        engines: Engines by name.
    """
    refusing = {check.id for check in tuning.checks if check.verdict is Verdict.FAIL}
    if refusing != {"memory"} or tuning.planned is None or tuning.engine not in engines:
        return ()
    plan = tuning.planned.then
    knob = next((name for name in KNOBS if engines[tuning.engine].knobs().named(name)), None)
    if knob is None or plan.f_min is None or plan.f_max is None or plan.fit is Fit.NOWHERE:
        return ()
    fraction = down(plan.f_max)
    if fraction <= plan.f_min:
        return ()
    typed = ["gputuner", "apply", host, *([options.preset] if options.preset else [])]
    typed += ["--recipe", options.recipe] if options.recipe else []
    typed += ["--server", str(options.pid)] if options.pid is not None else []
    typed += ["--bare"] if options.bare else []
    for text in options.overrides:
        found = engines[tuning.engine].knobs().named(text.partition("=")[0])
        if found is None or found.knob.name != knob:
            typed += ["--set", text]
    return (f"try: {shell_line([*typed, '--set', f'{knob}={fraction:g}'])}, or --ignore-forecast",)


def resumption(state: HostState, *, back: bool) -> tuple[runs.Interrupted | None, runs.Option | None, str]:
    """Return the interrupted run, what finishes or undoes it, and what is told of it; why not, where there is nothing.

    Args:
        state: State of the host.
        back: Whether it is to be undone.
    """
    left = next(iter(runs.interrupted(state)), None)
    if left is None:
        return None, None, _nothing_to_resume(state)
    told = words.left_words(state, left.run)
    why, way_out = words.way_words(state, left.run)
    if why:
        return left, None, sentences(f"{told}; {why}", way_out)
    option = next((each for each in left.options if each.id == ("back" if back else "finish")), None)
    if option is None:
        told = sentences(f"{told}: nothing to go back to", f"`gputuner resume {state.name}` finishes it")
    return left, option, told


def _nothing_to_resume(state: HostState) -> str:
    """Return that no run was interrupted, and what can be done instead."""
    going_on = runs.active_run(state)
    if going_on is not None:
        way_out = f"{words.aim(going_on)} goes on by itself: `gputuner snapshot {state.name}` shows how far it is"
    else:
        way_out = f"`gputuner apply {state.name} --back` goes back from a switch that has ended"
    return sentences("no run was interrupted there", way_out)


def _can_confirm(options: Options) -> None:
    """Check that there is somebody to confirm.

    Raises:
        UsageProblem: There is neither `--yes` nor a terminal.
    """
    if not options.yes and not options.dry_run and not TerminalAsk().there():
        raise UsageProblem(
            "This changes the host and must be confirmed",
            "there is no terminal to ask on",
            "Add --yes to do it without being asked, or --dry-run to see what would be done",
        )


async def _confirmed(ask: TerminalAsk, options: Options, text: str, prompt: str) -> bool:
    if options.yes or options.dry_run:
        return True
    answer = await ask.question(text, prompt)
    return (answer or "").strip().lower() in ("y", "yes")


async def _taken_over(session: Session) -> Acted | None:
    """Take the lease from whoever has it; return the refusal, or None."""
    if session.state.lease.mine or session.state.lease.holder is None:
        return None
    done = await session.act(TakeLease(seize=True), confirmed=True)
    return None if done.error is None else done


def _refused(told: Told, done: Acted, *, dry_run: bool = False) -> Told:
    if dry_run:
        told.outcome, told.sent = "dry-run", done.would
        return told
    told.code, told.outcome = PROBLEM, RunOutcome.REFUSED
    told.reason = sentences(done.error or "", done.hint)
    return told
