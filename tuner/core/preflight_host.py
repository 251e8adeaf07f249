"""Checks before a switch that look at the host: folders, disks, limits, rights, manager, variables set in files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

import msgspec

from tuner.core.preflight_case import Case, Fact, check, fail
from tuner.core.respawn import keeper, returns
from tuner.domain.preflight import Check, Verdict
from tuner.domain.recipe import Launch
from tuner.units import GIB, format_gib, whole

LOG_LEAST_BYTES = 100_000_000
"""100 MB: with less left a log of a start may not be written to its end."""
RUNS_LEAST_BYTES = 4_000_000
"""4 MB: order, program, record and reserve of a run take less than 1 MB."""
DISK_WANTED_BYTES = 1 << 30
SHM_LEAST_BYTES = 64 << 20
"""64 MiB: Docker's default; NCCL and the message queues of several ranks take more."""
SHM_WANTED_BYTES = 1 << 30
NOFILE_WANTED = 65_535
"""SGLang raises its own soft limit to this."""
NPROC_WANTED = 4_096
"""A server of eight ranks has some 2,000 threads, which count as processes."""
CGROUP_WANTED_BYTES = 8 << 30


def _cwd(case: Case) -> Iterator[Check]:
    fact = case.fact("cwd")
    if fact.missing:
        yield fact.unknown("cwd", "Working folder")
    elif not fact.value("exists"):
        detail = f"{fact.text('path')} does not exist on the host, or may not be entered by {case.user}"
        yield fail("cwd", "Working folder", detail, "correct it in the recipe")
    else:
        yield check("cwd", "Working folder", Verdict.OK, fact.text("path"))


def _disk(case: Case) -> Iterator[Check]:
    title = "Disk"
    fact = case.fact("log")
    good: list[str] = []
    if fact.missing:
        yield fact.unknown("disk", "Log folder")
    else:
        path, free = fact.text("path"), whole(fact.value("free_bytes"))
        if not fact.value("writable"):
            there = "" if fact.value("exists") else " may not be made: " + fact.text("at")
            detail = f"{path}{there} may not be written by {case.user}"
            yield fail("disk", "Log folder", detail, "name another log folder in the recipe")
        elif free is not None and free < LOG_LEAST_BYTES:
            detail = f"{path} has {free // 1_000_000} MB left: the log of the start would be torn"
            yield fail("disk", "Log folder", detail, "make room there, or name another log folder in the recipe")
        else:
            new = "" if fact.value("exists") else " (is made)"
            good.append(f"{path}{new}: {format_gib(free)} GiB free")
    runs = _full_runs(case)
    if runs:
        yield _no_room(case)
    fact = case.fact("disks")
    folders = fact.value("folders")
    if fact.missing or not isinstance(folders, Mapping):
        yield fact.unknown("disk", title)
        return
    for path, sizes in folders.items():
        free = whole(sizes[1]) if isinstance(sizes, list | tuple) and len(sizes) > 1 else None
        if free is None:
            yield check("disk", title, Verdict.UNKNOWN, f"{path} could not be read")
        elif runs and free < RUNS_LEAST_BYTES and PurePosixPath(path).is_relative_to(runs):
            continue  # it is told already, with more at stake
        elif free < DISK_WANTED_BYTES:
            detail = f"{path} has {free // 1_000_000} MB left: caches of kernels and graphs may fail to be written"
            yield check("disk", title, Verdict.WARN, detail, "make room there")
        else:
            good.append(f"{path}: {format_gib(free)} GiB free")
    if good:
        yield check("disk", title, Verdict.OK, ", ".join(dict.fromkeys(good)))


def _full_runs(case: Case) -> str:
    """Return the mount point of the disk on which runs are recorded if it is full; empty if not, or unknown."""
    free = whole(case.fact("rights").value("folder_free_bytes"))
    return case.fact("rights").text("folder_at") if free is not None and free < RUNS_LEAST_BYTES else ""


def _no_room(case: Case) -> Check:
    fact = case.fact("rights")
    free = whole(fact.value("folder_free_bytes")) or 0
    size = f"{free // 1_000_000} MB" if free >= 1_000_000 else f"{free} bytes"
    at, folder = fact.text("folder_at"), fact.text("folder")
    detail = f"{at}: {size} free, and every run is recorded in {folder}"
    return fail("disk", "Run folder", detail, f"free space on {at}")


def _shm(case: Case) -> Iterator[Check]:
    fact = case.fact("shm")
    title = "/dev/shm"  # noqa: S108 - a name
    if fact.missing:
        yield fact.unknown("shm", title)
        return
    total, free = whole(fact.value("total_bytes")), whole(fact.value("free_bytes"))
    ranks = case.ranks()
    alone = ranks == 1
    detail = f"{format_gib(free)} of {format_gib(total)} GiB free"
    out = "start the container with --shm-size 16g, or remount it larger; remove files of servers that are gone"
    if free is None or total is None:
        yield check("shm", title, Verdict.UNKNOWN, "its size could not be read")
    elif free < SHM_LEAST_BYTES and not alone:
        yield fail("shm", title, f"{free >> 20} MiB free: ranks exchange data there and the start would fail", out)
    elif free < SHM_WANTED_BYTES and not alone:
        yield check("shm", title, Verdict.WARN, f"{detail}: a start with several ranks may fail", out)
    else:
        yield check("shm", title, Verdict.OK, detail)


def _limits(case: Case) -> Iterator[Check]:
    fact = case.fact("limits")
    title = "Limits"
    if fact.missing:
        yield fact.unknown("limits", title)
        return
    found: list[str] = []
    bad = False
    for name, word, least in (("nofile", "open files", NOFILE_WANTED), ("nproc", "processes", NPROC_WANTED)):
        limit, before = _hard(fact.value(name)), _hard(fact.value(f"server_{name}"))
        if limit is None:
            continue
        if limit < least and not (before is not None and before <= limit):
            bad = True
            had = f"; the running server may have {before:,}" if before is not None and before < 1 << 60 else ""
            detail = f"at most {limit:,} {word} ({name}){had}"
            out = f"raise it: Limit{name.upper()}= of the unit, /etc/security/limits.conf, or --ulimit of the container"
            yield check("limits", title, Verdict.WARN, detail, out)
        else:
            found.append(f"{word} {'unlimited' if limit >= 1 << 60 else f'{limit:,}'}")
    memlock = _hard(fact.value("memlock"))
    if memlock is not None and memlock < GIB:
        found.append(f"memlock {memlock >> 10:,} KiB (RDMA between hosts needs more)")
    room, used = whole(fact.value("cgroup_bytes")), whole(fact.value("cgroup_used_bytes"))
    if room is not None:
        left = room - (used or 0)
        if left < CGROUP_WANTED_BYTES:
            bad = True
            detail = (
                f"its cgroup may use {format_gib(room)} GiB of host memory, of which {format_gib(left)} GiB are left"
            )
            out = "raise MemoryMax= of the unit, or the container's memory: else the kernel kills the load of the LLM"
            yield check("limits", title, Verdict.WARN, detail, out)
        else:
            found.append(f"cgroup {format_gib(room)} GiB")
    if not bad:
        yield check("limits", title, Verdict.OK if found else Verdict.UNKNOWN, ", ".join(found) or "none was readable")


def _hard(limit: object) -> int | None:
    """Return the hard limit of a pair; 2^60 for none, None where it is unknown."""
    if not isinstance(limit, list | tuple) or len(limit) < 2:
        return None
    number = whole(limit[1])
    return None if number is None else 1 << 60 if number < 0 else number


def _rights(case: Case) -> Iterator[Check]:
    fact = case.fact("rights")
    title = "Rights"
    if fact.missing:
        yield fact.unknown("rights", title)
        return
    owner, me = fact.text("server_user"), fact.text("user") or case.user
    may = fact.value("may")
    if case.server is not None and may is False:
        detail = f"{me} may not stop the server of {owner or 'another user'} ({fact.text('why')})"
        yield fail("rights", title, detail.replace(" ()", ""), f"connect as {owner or 'its user'} or as root")
        return
    if case.server is not None and may is None:
        yield check("rights", title, Verdict.UNKNOWN, "whose the running server is could not be read")
        return
    if fact.value("folder_writable") is False:
        detail = f"{fact.text('folder')} may not be written: no run can be recorded there"
        yield fail("rights", title, detail, "give this user a home folder that it may write, or make room there")
        return
    if case.launch is None and _full_runs(case):
        # A stop alone has no check of the disks.
        yield msgspec.structs.replace(_no_room(case), id="rights", title=title)
        return
    if case.server is not None and owner and owner != me and case.launch is not None:
        detail = f"the running server is {owner}'s, and the new one would be {me}'s, with other files and limits"
        yield fail("rights", title, detail, f"connect as {owner}; as {me} it can only be stopped")
        return
    detail = "" if case.server is None else f"{me} may stop it"
    yield check("rights", title, Verdict.OK, detail or f"as {me}")


def _manager(case: Case) -> Iterator[Check]:
    title = "Manager"
    if (before := returns(case.facts)) is not None:
        yield fail("manager", title, before.refusal, before.way_out)
        return
    if case.server is None:
        yield check("manager", title, Verdict.OK, "no server is stopped")
        return
    found = keeper(case.facts, case.server.identity.manager)
    if found.refusal:
        yield fail("manager", title, found.refusal, found.way_out)
    elif found.doubt:
        yield check("manager", title, Verdict.UNKNOWN, found.doubt, "look whether something would start it again")
    elif found.stop:
        how = f"{found.words}: it is stopped by `{' '.join(found.stop)}`"
        back = f", and started again by `{' '.join(found.start)}`" if found.start else ""
        yield check("manager", title, Verdict.NOTE, how + back, "it stays stopped while the new server runs")
    else:
        yield check("manager", title, Verdict.OK, found.words or "nothing starts it again by itself")


def _env_files(case: Case) -> Iterator[Check]:
    fact = case.fact("env_files")
    title = "Env files"
    launch = case.launch
    assert launch is not None
    if fact.missing:
        yield fact.unknown("env-files", title)
        return
    unit = case.fact("manager").value("systemd")
    of_unit = Fact({"settings": unit.get("settings")}, True).maps("settings") if isinstance(unit, Mapping) else ()
    # What a unit sets is in the server's environment already; it is worth a word where this start changes it.
    changed = [each for each in of_unit if each.get("name") in launch.env or each.get("name") in launch.unset]
    settings = (*fact.maps("settings"), *changed)
    for each in settings:
        place = f"{each.get('path')}:{each['line']}" if each.get("line") else str(each.get("path"))
        name, value = str(each.get("name") or "?"), str(each.get("value") or "")
        yield _setting(launch, name, value, place, str(each.get("how") or ""))
    if not settings:
        yield check("env-files", title, Verdict.OK, "no file sets variables of NCCL, CUDA or the engine")


def _setting(launch: Launch, name: str, value: str, place: str, how: str) -> Check:
    """Return the check of one variable that a file sets."""
    title = "Env files"
    mine = launch.env.get(name)
    out = f"take that line out of {place}, or leave {name} alone"
    if how == "unset" and mine is not None:
        return check(
            "env-files", title, Verdict.WARN, f"{place} takes {name} away, which this start sets to {mine}", out
        )
    if how == "unset":
        return check("env-files", title, Verdict.NOTE, f"{place} takes {name} away")
    if mine is not None and mine != value and how == "assign":
        detail = f"{place} sets {name}={value} in the new server and overwrites the {mine} of this start"
        return check("env-files", title, Verdict.WARN, detail, out)
    if mine is not None and mine != value:
        return check("env-files", title, Verdict.NOTE, f"{place} sets {name}={value}; the {mine} of this start wins")
    if mine is None and name in launch.unset and how != "unit":
        detail = f"{place} sets {name}={value} again, which this start takes away"
        return check("env-files", title, Verdict.WARN, detail, out)
    if name in launch.unset:
        return check("env-files", title, Verdict.NOTE, f"{place} sets {name}={value}; this start takes it away")
    return check("env-files", title, Verdict.NOTE, f"{place} sets {name}={value} behind the scenes")


HOST_JUDGES: Mapping[str, Callable[[Case], Iterator[Check]]] = {
    "cwd": _cwd,
    "disk": _disk,
    "shm": _shm,
    "limits": _limits,
    "rights": _rights,
    "manager": _manager,
    "env-files": _env_files,
}
"""Functions of the checks here, by id."""
