"""Which all-reduce a start really runs: its engine's rules, evaluated on its log, its environment and its host.

Pure, and the same for a log file and a live server. Where nothing tells a value, the default is taken and marked as
assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from tuner.core.engine import Engine
from tuner.core.knobs import OFF_WORDS, ON_WORDS
from tuner.core.sign_index import SignIndex
from tuner.core.surroundings import environment, parts
from tuner.core.talk import notes_of
from tuner.core.versions import Version, at_least, in_range, parse_version
from tuner.domain.findings import Finding, Severity
from tuner.domain.gates import (
    AllReduce,
    Closing,
    Gate,
    GateRule,
    GateState,
    Hardware,
    Look,
    Path,
    PathRule,
    PathState,
)
from tuner.domain.starts import Sign, Start
from tuner.domain.state import HostState, ServerState

_NEWEST: Version = (1 << 20,)
_ON = ON_WORDS | {"y"}
_OFF = OFF_WORDS | {"n", ""}
ASKED = "asked for"
"""`GateRule.what` of a gate that only an opt-in opens."""
_LISTED = "all-reduce-backends"
"""Id of the sign that holds vLLM's own list of all-reduce backends."""
_KEPT = 160
"""Most characters of a line that are quoted."""
_BROKEN = frozenset({"custom-ar-ipc-failure", "p2p-unsupported"})
"""Causes by which custom all-reduce itself ends a start."""
_OTHER_DEVICES = ("cpu", "xpu", "hpu", "npu", "tpu")


def all_reduce(start: Start, engine: Engine, hardware: Hardware | None = None) -> AllReduce | None:
    """Return the state of each all-reduce path of a start.

    Args:
        start: The start, with its process's environment if that could be read.
        engine: Its engine.
        hardware: GPUs of its host; None if only a log is known.

    Returns:
        None if there is no all-reduce: one rank, or no GPU.
    """
    return ways(Held(start, engine, hardware))


def with_failures(told: AllReduce, findings: Iterable[Finding]) -> AllReduce:
    """Return the paths, those of custom all-reduce as failed where a fatal finding says that they ended the start."""
    broken = next((each for each in findings if each.cause in _BROKEN and each.severity is Severity.FATAL), None)
    if broken is None:
        return told
    paths = [
        msgspec.structs.replace(path, state=PathState.FAILED, told=broken.title, at=broken.at)
        if path.id.startswith("custom") and path.state is not PathState.CLOSED
        else path
        for path in told.paths
    ]
    return msgspec.structs.replace(told, paths=tuple(paths))


def ways(held: Held) -> AllReduce | None:
    """Return the state of each all-reduce path by the facts of a start; None with one rank or without a GPU."""
    if held.world < 2 or not held.on_gpu:
        return None
    found: dict[str, Path] = {}
    for rule in held.rules.paths:
        if in_range(held.version, rule.versions) and rule.platform in ("", held.hardware.platform):
            found[rule.id] = _path(rule, held, found)
    return AllReduce(world=held.world, paths=tuple(found.values()), notes=notes_of(held.start))


class Held:
    """Facts of one start that gate rules are evaluated on."""

    def __init__(
        self, start: Start, engine: Engine, hardware: Hardware | None = None, signs: SignIndex | None = None
    ) -> None:
        self.start = start
        self.engine = engine
        self.rules = engine.gates()
        self.hardware = hardware or Hardware()
        self.env = environment(start)
        self.env_known = start.env_read
        self.version = parse_version(start.version) or _NEWEST
        self.nccl = parts(start).get("nccl")
        self.world = engine.layout(start.settings).tp if start.settings else len(start.ranks)
        self.signs = signs if signs is not None else SignIndex(start.signs)
        if not self.hardware.capability:
            self.hardware = self._by_card()

    def _by_card(self) -> Hardware:
        """Return the hardware, completed by the name of the GPU if the log has one."""
        for sign in (*self.signs.all("gpu-model"), *self.signs.all("moe-config-default")):
            name = str(sign.fields.get("model") or sign.fields.get("gpu") or "").replace("_", " ")
            for card in self.rules.cards:
                if re.search(card.name, name):
                    return msgspec.structs.replace(self.hardware, capability=card.capability, platform=card.platform)
        return self.hardware

    @property
    def on_gpu(self) -> bool:
        """Whether the server runs on GPUs; other devices have no all-reduce paths."""
        device = str(self.start.setting("device", "device_config") or "")
        return not device.startswith(_OTHER_DEVICES) and "cpu" not in (self.start.version or "")

    def sign(self, closings: Iterable[Closing]) -> Sign | None:
        """Return the first sign that matches, in the order of `closings`; None if there is none."""
        for closing in closings:
            if not in_range(self.version, closing.versions):
                continue
            for sign in self.signs.all(closing.sign):
                if not closing.text or re.search(closing.text, sign.text):
                    return sign
        return None

    def first(self, name: str) -> Sign | None:
        """Return the first sign with this id; None if there is none."""
        return self.signs.first(name)

    def shown(self, name: str) -> int | None:
        """Return the place where the log shows a variable; None if it does not."""
        for kind in ("environment", "nccl-env", "nccl-env-invalid"):
            for sign in self.signs.all(kind):
                if sign.fields.get("name") == name:
                    return sign.at
        return next((sign.at for sign in self.start.signs if sign.fields.get("variable") == name), None)

    def variable(self, *names: str) -> tuple[str, str] | None:
        """Return name and value of the first of several variables that is set; None if none is."""
        return next(((name, self.env[name]) for name in names if self.env.get(name)), None)


def _path(rule: PathRule, held: Held, before: dict[str, Path]) -> Path:
    asked = [gate for gate in rule.gates if in_range(held.version, gate.versions)]
    gates = [gate for each in asked if (gate := _gate(each, held, before)) is not None]
    taken = any(_taken(each, before) for each in asked)
    proof = None if taken else held.sign(rule.proven_by)
    listed = held.first(_LISTED) if rule.listed else None
    if listed is not None and _names(listed, rule.listed):
        proof = listed
    elif listed is not None:
        told = f"not among the engine's own: {listed.fields.get('backends', '')}"
        gates.append(Gate(what="set up", state=GateState.CLOSED, told=told, at=listed.at))
    if proof is not None:
        gates = [_by_proof(gate, proof) for gate in gates]
        return Path(
            id=rule.id,
            title=rule.title,
            state=PathState.PROVEN,
            takes=rule.takes,
            gates=tuple(gates),
            told=words(proof),
            at=proof.at,
        )
    states = {gate.state for gate in gates}
    state = PathState.OPEN
    if GateState.CLOSED in states:
        state = PathState.CLOSED
    elif GateState.UNKNOWN in states:
        state = PathState.UNKNOWN
    return Path(id=rule.id, title=rule.title, state=state, takes=rule.takes, gates=tuple(gates))


def _taken(rule: GateRule, before: dict[str, Path]) -> bool:
    """Return whether another path runs instead, so that a line which both may print is the other's."""
    other = before.get(rule.name) if rule.test is Look.PATH else None
    return other is not None and other.state in (PathState.PROVEN, PathState.OPEN)


def _by_proof(gate: Gate, proof: Sign) -> Gate:
    """Return a gate of a path that is set up: it has passed, unless a fact and no default closes it."""
    if gate.state is GateState.UNKNOWN or (gate.assumed and gate.state is GateState.CLOSED):
        return Gate(what=gate.what, state=GateState.PASSED, told="it is set up", at=proof.at)
    return gate


def _gate(rule: GateRule, held: Held, before: dict[str, Path]) -> Gate | None:
    """Evaluate a gate; None if it belongs to a patch of which this start shows no sign."""
    closing = held.sign(rule.closed_by)
    if closing is not None:
        return Gate(what=rule.what, state=GateState.CLOSED, told=words(closing), at=closing.at)
    doubt = held.sign(rule.unsure_by)
    if doubt is not None:
        return Gate(what=rule.what, state=GateState.UNKNOWN, told=f"a patch decides: {words(doubt)}", at=doubt.at)
    if rule.unsure_by:
        return None
    gate = _TESTS[rule.test](rule, held, before)
    if gate.state is GateState.UNKNOWN or gate.assumed:
        passing = held.sign(rule.passed_by)
        if passing is not None:
            return Gate(what=rule.what, state=GateState.PASSED, told=words(passing), at=passing.at)
    return gate


def _setting(rule: GateRule, held: Held, _: dict[str, Path]) -> Gate:
    name, value = next(
        ((n, held.start.settings[n]) for n in (rule.name, *rule.also) if held.start.settings.get(n) is not None),
        (rule.name, None),
    )
    known = value is not None or bool(held.start.settings)
    told = f"{name}={value}" if value is not None else f"{rule.name} is not set"
    value = rule.default if value is None else value
    at = held.start.settings_at if known else None
    return Gate(what=rule.what, state=_state(value, rule), told=told, at=at, assumed=not known)


def _variable(rule: GateRule, held: Held, _: dict[str, Path]) -> Gate:
    found = held.variable(rule.name, *rule.also)
    if found is not None:
        return Gate(what=rule.what, state=_state(found[1], rule), told="=".join(found), at=held.shown(found[0]))
    default = "" if rule.default is None else f", and is {rule.default} by itself"
    told = f"{rule.name} is not {'set' if held.env_known else 'in the log'}{default}"
    return Gate(what=rule.what, state=_state(rule.default, rule), told=told, assumed=not held.env_known)


def _world(rule: GateRule, held: Held, _: dict[str, Path]) -> Gate:
    state = GateState.PASSED if held.world in rule.opens else GateState.CLOSED
    return Gate(what=rule.what, state=state, told=f"{held.world} ranks", at=held.start.settings_at)


def _nodes(rule: GateRule, held: Held, _: dict[str, Path]) -> Gate:
    nodes = held.start.setting("nnodes")
    if nodes in (None, 1):
        told = "nnodes=1" if nodes == 1 else "no sign of another node"
        return Gate(what=rule.what, state=GateState.PASSED, told=told, at=held.start.settings_at, assumed=nodes is None)
    state = GateState.UNKNOWN if "clique" in rule.opens else GateState.CLOSED
    return Gate(what=rule.what, state=state, told=f"{nodes} nodes", at=held.start.settings_at)


def _nvlink(rule: GateRule, held: Held, _: dict[str, Path]) -> Gate:
    if held.world <= rule.above:
        return Gate(
            what=rule.what, state=GateState.PASSED, told=f"not asked of {held.world} ranks", at=held.start.settings_at
        )
    full = held.hardware.full_nvlink
    if full is None:
        return Gate(what=rule.what, state=GateState.UNKNOWN, told="the log does not tell how the GPUs are connected")
    state = GateState.PASSED if full else GateState.CLOSED
    return Gate(what=rule.what, state=state, told=held.hardware.told)


def _capability(rule: GateRule, held: Held, _: dict[str, Path]) -> Gate:
    own = held.hardware.capability
    if not own:
        return Gate(what=rule.what, state=GateState.UNKNOWN, told="the log does not tell the compute capability")
    passed = own in rule.opens or own.partition(".")[0] in rule.opens
    state = GateState.PASSED if passed else GateState.CLOSED
    return Gate(what=rule.what, state=state, told=f"compute capability {own}")


def _nccl(rule: GateRule, held: Held, _: dict[str, Path]) -> Gate:
    enough = at_least(held.nccl, str(rule.opens[0]))
    if enough is None:
        return Gate(what=rule.what, state=GateState.PASSED, told="NCCL's version is not told", assumed=True)
    sign = held.first("nccl-version")
    return Gate(
        what=rule.what,
        state=GateState.PASSED if enough else GateState.CLOSED,
        told=f"NCCL {held.nccl}",
        at=sign.at if sign is not None else None,
    )


def _other(rule: GateRule, _: Held, before: dict[str, Path]) -> Gate:
    other = before.get(rule.name)
    if other is None or other.state is PathState.CLOSED:
        return Gate(what=rule.what, state=GateState.PASSED, told="" if other is None else f"{other.title} is off")
    state = GateState.UNKNOWN if other.state is PathState.UNKNOWN else GateState.CLOSED
    return Gate(what=rule.what, state=state, told=f"{other.title} comes first", at=other.at)


def _line(rule: GateRule, _: Held, __: dict[str, Path]) -> Gate:
    return Gate(what=rule.what, state=GateState.PASSED, told="no line says otherwise", assumed=True)


_TESTS = {
    Look.SETTING: _setting,
    Look.ENV: _variable,
    Look.WORLD: _world,
    Look.NODES: _nodes,
    Look.NVLINK: _nvlink,
    Look.CAPABILITY: _capability,
    Look.NCCL: _nccl,
    Look.PATH: _other,
    Look.LINE: _line,
}


def _state(value: Any, rule: GateRule) -> GateState:
    word = as_word(value)
    opens = [as_word(each) for each in rule.opens]
    passed = word in opens or ("any" in opens and word not in ("none", "0"))
    return GateState.PASSED if passed else GateState.CLOSED


def as_word(value: Any) -> str:
    """Return a setting or variable as one word, so that `True`, `1` and `yes` are equal."""
    word = "none" if value is None else str(value).strip().lower()
    return "1" if word in _ON else "0" if word in _OFF else word


def words(sign: Sign) -> str:
    """Return the first sentence of a line, at most `_KEPT` characters."""
    text = sign.text.split("\n")[0]
    return text.partition(". ")[0][:_KEPT].rstrip(".")


def _names(sign: Sign, backend: str) -> bool:
    return re.search(rf"'{re.escape(backend)}'", str(sign.fields.get("backends", ""))) is not None


# --- A live server ----------------------------------------------------------------------------------------------------


def smallest_gpu_bytes(state: HostState) -> int | None:
    """Return the memory of the smallest GPU of a host; None: not known."""
    sizes = (info.memory_total_bytes for info in state.gpu_table.gpus) if state.gpu_table is not None else ()
    return min((size for size in sizes if size is not None), default=None)


def hardware_of(state: HostState, server: ServerState) -> Hardware:
    """Return what the GPU table tells of the GPUs that a server uses."""
    table = state.gpu_table
    used = sorted({rank.gpu for rank in server.ranks if rank.gpu is not None})
    smallest = smallest_gpu_bytes(state)
    if table is None or not used:
        return Hardware(smallest_bytes=smallest)
    infos = [info for info in table.gpus if info.index in used]
    capabilities = sorted((parse_version(each) or (), each) for info in infos if (each := info.compute_capability))
    amd = any("AMD" in info.name or "Instinct" in info.name for info in infos)
    full, told = _connected(used, table.topology, [info.nvlink_count for info in infos])
    return Hardware(
        full_nvlink=full,
        capability=capabilities[0][1] if capabilities else "",
        told=told,
        platform="rocm" if amd else "cuda",
        smallest_bytes=smallest,
    )


def _connected(
    used: list[int], topology: tuple[tuple[str, ...], ...] | None, links: list[int | None]
) -> tuple[bool | None, str]:
    """Return whether NVLink connects every pair of GPUs (None: not known), and the kinds of connections."""
    if topology is None or max(used) >= len(topology):
        none = bool(links) and all(count == 0 for count in links)
        return (False, "no NVLink") if none else (None, "")
    kinds = sorted({topology[one][other] for one in used for other in used if one != other})
    told = f"{', '.join(kinds)} between the GPUs"
    if not kinds or "?" in kinds:
        return None, told
    return all(kind.startswith("NV") for kind in kinds), told
