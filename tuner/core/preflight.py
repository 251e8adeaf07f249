"""What is checked before a server is stopped: the verdicts, from the probe's facts and from what is known here.

The probe brings facts (docs/protocol.md, Pre-flight); the judgement and the words are here, in `preflight_gpus` and in
`preflight_host`. A fact that is missing yields UNKNOWN, never OK.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tuner.core.engine import Engine
from tuner.core.preflight_case import Case, Fact, check, fail, settings_of
from tuner.core.preflight_gpus import memory, tenants
from tuner.core.preflight_host import HOST_JUDGES
from tuner.core.run_words import TAKE_OVER, holder_words, lease_way_out, operator_name
from tuner.domain.forecast import Forecast
from tuner.domain.preflight import Check, PreflightAsk, Verdict
from tuner.domain.recipe import Launch
from tuner.domain.runs import Operator
from tuner.domain.state import HostState, ServerState
from tuner.units import format_gib, whole


def ask(
    launch: Launch | None,
    server: ServerState | None,
    engine: Engine | None,
    *,
    command: Sequence[str] = (),
    llm: str = "",
    flags_known: bool = False,
    ended: str = "",
) -> PreflightAsk:
    """Return what the probe is to look at before a switch.

    Args:
        launch: The new start; None: the server is only stopped.
        server: The server that is stopped; None: there is none.
        engine: The engine of the new start.
        command: What stands before the arguments of the new start.
        llm: The LLM as the arguments name it.
        flags_known: True: the flags of the installed engine are known already, so its help is not run.
        ended: Key of a server that has ended, in whose place the new one starts; empty: none.
    """
    key = server.identity.key if server is not None else ""
    if launch is None or engine is None:
        return PreflightAsk(key=key)
    return PreflightAsk(
        key=key,
        ended=ended,
        command=tuple(command),
        argv=launch.argv,
        help_argv=() if flags_known or not command else (*command, *engine.behaviour().starting.help),
        env=dict(launch.env),
        cwd=launch.cwd,
        like=launch.like,
        package=engine.plan().package,
        llm=llm,
        draft=draft_of(settings_of(launch, server, engine), engine),
        port=launch.port,
        log_dir=launch.log_dir,
    )


def judge(
    state: HostState,
    server: ServerState | None,
    launch: Launch | None,
    engine: Engine | None,
    facts: Mapping[str, Any] | None,
    *,
    flag_problems: Sequence[str] | None = None,
    unmet: Sequence[str] = (),
    forecast: Forecast | None = None,
    version: str | None = None,
    operator: Operator | None = None,
) -> tuple[Check, ...]:
    """Return the checks of a switch in a fixed order; several may share an id.

    Args:
        state: The host.
        server: The server that is stopped; None: there is none.
        launch: The new start; None: the server is only stopped, so that most checks fall away.
        engine: The engine of the new start.
        facts: What the probe found; None: it was not asked yet.
        flag_problems: What `helptext.flag_problems` says of the arguments; None: the flags are not known.
        unmet: What the preset requires and the host lacks.
        forecast: The memory of the new start; None: it is not forecast.
        version: The version for which the arguments are spelled.
        operator: Who wants the switch; None: not known.
    """
    case = Case(
        facts=facts or {},
        asked=facts is not None,
        state=state,
        server=server,
        launch=launch,
        engine=engine,
        flag_problems=None if flag_problems is None else tuple(flag_problems),
        unmet=tuple(unmet),
        forecast=forecast,
        version=version,
        operator=operator,
    )
    judges = _STOP if launch is None else _ALL
    return tuple(each for name in judges for each in _JUDGES[name](case))


def refused(checks: Sequence[Check]) -> bool:
    """Return whether any check refuses the switch."""
    return any(each.verdict is Verdict.FAIL for each in checks)


def _preset(case: Case) -> Iterator[Check]:
    launch = case.launch
    assert launch is not None
    for problem in launch.problems:
        # Each ends with its own way out, as a sentence.
        what, _, out = problem.rpartition(". ")
        yield fail("preset", "Preset", what or out, out if what else "change the preset or the value")
    for need in case.unmet:
        if not any(need in problem for problem in launch.problems):
            yield fail("preset", "Preset", f"{launch.preset or 'it'} {need}", "choose a preset that is for this host")
    if not launch.problems and not case.unmet:
        yield check("preset", "Preset", Verdict.OK, launch.title or launch.preset or "the bare recipe")


def _start(case: Case) -> Iterator[Check]:
    fact = case.fact("start")
    if fact.missing:
        yield fact.unknown("start", "Start")
    elif fact.value("refused"):
        yield fail("start", "Start", fact.text("refused"), fact.text("hint"))
    elif manager := fact.texts("manager"):
        yield check("start", "Start", Verdict.OK, f"its manager starts it: `{' '.join(manager)}`")
    else:
        yield check("start", "Start", Verdict.OK, "command line, environment and secrets are complete")


def _interpreter(case: Case) -> Iterator[Check]:
    fact = case.fact("interpreter")
    title = "Interpreter"
    if fact.missing:
        yield fact.unknown("interpreter", title)
        return
    path = fact.text("path") or fact.text("program") or "?"
    if not fact.value("exists"):
        yield fail("interpreter", title, f"{path} does not exist on the host", "correct the command in the recipe")
    elif not fact.value("executable"):
        yield fail(
            "interpreter", title, f"{path} may not be executed by {case.user}", f"make it executable: chmod +x {path}"
        )
    elif fact.value("broken"):
        yield fail(
            "interpreter", title, f"{path}: {fact.text('broken')}", "mend the virtual environment, or name another"
        )
    else:
        version = fact.text("version")
        yield check("interpreter", title, Verdict.OK, f"{path}{f', Python {version}' if version else ''}")


def _version(case: Case) -> Iterator[Check]:
    fact = case.fact("version")
    title = "Version"
    if fact.missing:
        yield fact.unknown("version", title)
        return
    package, installed = fact.text("package"), fact.text("version")
    known = case.version or (case.server.version if case.server is not None else None)
    running = case.server.version if case.server is not None and case.same_engine else None
    if not installed:
        detail = f"no metadata of {package} beside the interpreter: it is not installed there, or runs from sources"
        yield check("version", title, Verdict.WARN, detail, "look whether the command starts there at all")
    elif running and not _same_version(running, installed) and not _same_place(case):
        detail = f"{package} {installed} is installed there, and the running server is {running} of another place"
        yield check("version", title, Verdict.WARN, detail, "compare the two after the start: more than a knob differs")
    elif running and not _same_version(running, installed):
        detail = f"{package} {installed} is installed, and the running server is {running}: it was replaced meanwhile"
        out = f"a restart runs {installed}, and so does the way back; pip install {package}=={running} to keep it"
        yield check("version", title, Verdict.WARN, detail, out)
    elif known and not _same_version(known, installed):
        detail = f"{package} {installed} is installed, and the arguments are spelled for {known}"
        yield check("version", title, Verdict.WARN, detail, "read the recipe from the host again")
    else:
        yield check("version", title, Verdict.OK, f"{package} {installed}")


def _same_place(case: Case) -> bool:
    """Return whether the new server runs in the installation of the one that is stopped."""
    running = case.server.identity.interpreter if case.server is not None else None
    path = case.fact("interpreter").text("path")
    return not running or not path or running.rpartition("/")[0] == path.rpartition("/")[0]


def _same_version(one: str, other: str) -> bool:
    """Return whether two versions are equal but for a local part: `0.5.23` and `0.5.23+cu130`."""
    return one.partition("+")[0] == other.partition("+")[0]


def _flags(case: Case) -> Iterator[Check]:
    title = "Flags"
    if case.again:
        yield check("flags", title, Verdict.NOTE, "they are exactly those of an earlier start")
        return
    if case.flag_problems is None:
        why = case.fact("help").why or "the installed engine was not asked which flags it knows"
        yield check("flags", title, Verdict.UNKNOWN, why, "run its --help on the host and compare")
        return
    for problem in case.flag_problems:
        yield fail("flags", title, problem, "correct the recipe, the preset or the override that sets it")
    if not case.flag_problems:
        yield check("flags", title, Verdict.OK, "the installed engine knows all of them")


def _llm(case: Case) -> Iterator[Check]:
    fact = case.fact("llm")
    if fact.missing and case.again:
        yield check("llm", "LLM", Verdict.NOTE, "it is that of an earlier start, and was not looked for")
    elif fact.missing:
        yield fact.unknown("llm", "LLM")
    else:
        yield _files(case, fact, "LLM")
    if case.engine is None or not draft_of(case.settings(), case.engine):
        return
    fact = case.fact("draft")
    yield fact.unknown("llm", "Draft") if fact.missing else _files(case, fact, "Draft")


def draft_of(settings: Mapping[str, Any], engine: Engine) -> str:
    """Return the draft that server args name for speculative decoding; empty if they name none."""
    named = next((value for name in engine.behaviour().draft if (value := _set(settings, name))), None)
    # In brackets stands a method that needs no draft model: `[ngram]`.
    return named if isinstance(named, str) and not named.startswith("[") else ""


def _set(settings: Mapping[str, Any], name: str) -> object:
    """Return a server arg; `a.b` is also the key `b` of the JSON value of `a`."""
    whole, dot, key = name.partition(".")
    given = settings.get(whole)
    try:
        told = json.loads(given) if dot and isinstance(given, str) else given
    except ValueError:
        told = None
    inside = told.get(key) if dot and isinstance(told, Mapping) else None
    return inside or settings.get(name)


def _files(case: Case, fact: Fact, title: str) -> Check:
    """Return the check of an LLM's files."""
    name, kind = fact.text("name"), fact.text("kind")
    size = whole(fact.value("bytes"))
    told = f", {format_gib(size)} GiB" if size else ""
    if kind == "path":
        missing = fact.texts("missing")
        if not fact.value("exists"):
            return fail("llm", title, f"{name} does not exist on the host", "correct the path in the recipe")
        elif fact.value("config") is False:
            detail = f"{name} has no config.json that {case.user} may read"
            return fail("llm", title, detail, "name the folder that holds config.json, or make it readable")
        elif missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            detail = f"{name} lacks {missing[0]}{more}, which its index names"
            return fail("llm", title, detail, "finish the download")
        else:
            return check("llm", title, Verdict.OK, f"{name}{told}")
    elif kind == "hub":
        cache = fact.text("cache") or "?"
        if fact.value("cached"):
            return check("llm", title, Verdict.OK, f"{name} is in {cache}{told}")
        elif fact.value("offline"):
            detail = f"{name} is not in {cache}, and {fact.text('offline')} forbids to download it"
            return fail("llm", title, detail, f"download it first (hf download {name}), or correct the name")
        else:
            free = whole(fact.value("free_bytes"))
            detail = f"{name} is not in {cache}: the start downloads it first ({format_gib(free)} GiB free there)"
            return check("llm", title, Verdict.WARN, detail, f"download it before the switch: hf download {name}")
    else:
        return check("llm", title, Verdict.UNKNOWN, f"whether {name} can be had is not known: {fact.text('note')}")


def _port(case: Case) -> Iterator[Check]:
    launch = case.launch
    assert launch is not None
    fact = case.fact("port")
    port = launch.port
    title = "Port" if port is None else f"Port {port}"
    if port is None:
        yield check("port", title, Verdict.UNKNOWN, "the port of the new server is not known", "set it in the recipe")
        return
    if fact.missing or whole(fact.value("port")) != port:
        yield fact.unknown("port", title)
        return
    owners = fact.maps("owners")
    others = [each for each in owners if not each.get("ours")]
    for each in others:
        pid = whole(each.get("pid"))
        owner = f"pid {pid}" if pid else "a process that cannot be seen"
        user = f" of {each['user']}" if each.get("user") else ""
        detail = f"{owner}{user} listens on it: {each.get('title') or 'its command line is hidden'}"
        yield fail("port", title, detail, "choose another port, or have its owner stop it; it is not touched from here")
    if not others:
        yield check("port", title, Verdict.OK, "the server that is stopped listens on it" if owners else "free")


def _lease(case: Case) -> Iterator[Check]:
    lease = case.state.lease
    title = "Lease"
    if lease.holder is not None and not lease.mine:
        detail = holder_words(lease, case.state.now, case.operator)
        yield fail("lease", title, detail, lease_way_out(lease, case.operator))
    elif lease.lost_to is not None and not lease.mine:
        detail = f"{operator_name(lease.lost_to)} took the right to change this host over"
        yield fail("lease", title, detail, TAKE_OVER)
    else:
        yield check("lease", title, Verdict.OK, "yours" if lease.mine else "free; it is taken with the switch")


_JUDGES = {
    "preset": _preset,
    "start": _start,
    "interpreter": _interpreter,
    "version": _version,
    "flags": _flags,
    "llm": _llm,
    "port": _port,
    "tenants": tenants,
    "memory": memory,
    **HOST_JUDGES,
    "lease": _lease,
}
_ALL = (
    "preset",
    "start",
    "interpreter",
    "version",
    "flags",
    "cwd",
    "llm",
    "port",
    "tenants",
    "memory",
    "disk",
    "shm",
    "limits",
    "rights",
    "manager",
    "lease",
    "env-files",
)
"""Order of the checks of a start or switch."""
_STOP = ("rights", "manager", "lease")
"""Order of the checks where a server is only stopped."""
