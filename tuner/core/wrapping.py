"""Removes what log drivers, orchestrators and tools in a pipe wrap round a server's lines.

Wrappers are nested (Kubernetes round Ray round the server) and mixed with bare lines. So each is recognised from many
lines and removed line by line; a line without it stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tuner.core import logtext

Unwrapped = tuple[str, bool]
"""The inner text, and whether it ends a line: some drivers cut lines at 16 KiB into several records."""

_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_MONTH_STAMP = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?"
_DAY_STAMP = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})? \S{1,9}"

# Kubernetes' runtimes and podman write time, stream, full or partial, and tags before the text.
_CRI = re.compile(r"\d{4}-\d\d-\d\dT\S{1,40} std(?:out|err) ([FP])(?::\S*)?(?: |$)")
_JOURNAL_TIME = rf"(?:{_MONTH_STAMP}|{_STAMP}|{_DAY_STAMP}|\d{{9,11}}\.\d{{1,9}}|\[ *\d+\.\d{{6}}\])"
_JOURNAL = re.compile(rf"{_JOURNAL_TIME} [\w.-]{{1,80}} [^\s:\[\]]{{1,120}}(?:\[\d+\])?: ?")
_JOURNAL_PROOF = re.compile(rf"{_JOURNAL_TIME} [\w.-]{{1,80}} [^\s:\[\]]{{1,120}}\[\d+\]: ")
_POD = re.compile(r"\[pod/[^\]\s]{1,300}\] ?")
_RFC3339 = re.compile(rf"{_STAMP} ?(?=\S| |$)")
_COMPOSE = re.compile(r"(?:\d+\|)?[A-Za-z0-9][\w.-]{0,100} +\| ?")
_STERN = re.compile(r"[a-z0-9][a-z0-9.]*-[a-z0-9.-]{1,100} [a-z0-9][a-z0-9-]{0,60} ")
_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_TS = re.compile(rf"(?:{_MONTH_STAMP}|\d{{4}}-\d\d-\d\d[ T]{_CLOCK}|{_CLOCK}) ")
_TS_BRACKETS = re.compile(rf"\[\d{{4}}-\d\d-\d\d[ T]{_CLOCK}\] ")
# SGLang's own stamps are in brackets too: of two, the first is a wrapper.
_TS_BRACKETS_PROOF = re.compile(
    _TS_BRACKETS.pattern + r"(?=\[\d{4}-\d\d-\d\d \d\d:|\(\S+ pid=|(?:DEBUG|INFO|WARNING|ERROR) \d\d-)"
)
_SRUN = re.compile(r" {0,5}\d{1,5}: ")
# What cat -n and nl, grep, quoting in a mail or in Markdown, a collector's tag and a platform put before each line.
_NUMBERED = re.compile(r" {0,8}\d{1,9}(?:\t|  )")
_GREP = re.compile(r"(?:[^\s:]{1,200}:)?\d{1,9}[:-](?=\D|\d\d\d\d-| |$)|[^\s:]{1,200}\.(?:log|txt|out|err):")
_QUOTED = re.compile(r"(?:> ?| {4}|\t)")
_TAG = re.compile(r"\[[A-Za-z][\w .-]{0,40}\] ")
_ARROW = re.compile(r"[^>]{1,200} >> ?")
_BOX = re.compile(r"[\u2502\u2503] ?")
# vLLM names its own processes in the same form; those names tell the rank and stay.
_VLLM_NAME = (
    r"(?:Worker(?:_[A-Z]+\d+)*|EngineCore\w*|A[Pp][Ii]Server\w*|VllmWorker\S*|MainProcess|VLLM_\w+|DPSupervisor)"
)
_RAY = re.compile(
    rf"(?:\({_VLLM_NAME} pid=\d+\) )?"
    rf"\((?!{_VLLM_NAME}(?: rank=\d+)? pid=)(?:[^()\s]{{1,200}} pid=\d+|raylet|autoscaler[^()]{{0,20}})"
    r"(?:, ip=[\d.:a-f]+)?\) ?"
)
_REPEATED = re.compile(r" \[repeated \d+x across cluster\](?: \(Ray deduplicates logs.*)?$")

_RECORD = re.compile(
    r"\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d[^\]]{0,60}\] |server_args=|Traceback \(most recent call last\)"
    r"|(?:\(\S+(?: rank=\d+)? pid=\d+[^()]{0,60}\) )?"
    r"(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: \d\d-\d\d \d\d:\d\d:\d\d |: {2,})|\(\S+ pid=\d+)"
)
"""How records of an engine begin: a wrapper whose form is no proof must uncover some."""


def _docker(text: str) -> Unwrapped | None:
    inner = _member(text, "log")
    return None if inner is None else (inner.removesuffix("\n"), inner.endswith("\n"))


def _json_log(text: str) -> Unwrapped | None:
    inner = _member(text, "log")
    return None if inner is None else (inner.removesuffix("\n"), True)


def _journal_json(text: str) -> Unwrapped | None:
    inner = _member(text, "MESSAGE")
    return None if inner is None else (inner.rstrip("\n"), True)


def _stern_json(text: str) -> Unwrapped | None:
    inner = _member(text, "message") if '"podName"' in text else None
    return None if inner is None else (inner.rstrip("\n"), True)


def _member(text: str, name: str) -> str | None:
    """Return a member of the JSON object that a line is: text, or the bytes that journald gives if it is no UTF-8."""
    if not text.startswith("{") or f'"{name}"' not in text:
        return None
    try:
        inner = json.loads(text)[name]
        if isinstance(inner, list):
            return bytes(inner).decode("utf-8", "replace")
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return inner if isinstance(inner, str) else None


def _cri(text: str) -> Unwrapped | None:
    head = _CRI.match(text)
    return None if head is None else (text[head.end() :], head[1] == "F")


def _ray(text: str) -> Unwrapped | None:
    head = _RAY.match(text)
    if head is None:
        return None
    inner = text[head.end() :]
    return (_REPEATED.sub("", inner) if " [repeated " in inner else inner), True


def _after(expression: re.Pattern[str]) -> Callable[[str], Unwrapped | None]:
    def strip(text: str) -> Unwrapped | None:
        head = expression.match(text)
        return None if head is None else (text[head.end() :], True)

    return strip


def _box(text: str) -> Unwrapped | None:
    """Remove the frame that a terminal drew round a line."""
    head = _BOX.match(text)
    return None if head is None else (text[head.end() :].rstrip().rstrip("\u2502\u2503").rstrip(), True)


class Layer(NamedTuple):
    """One kind of wrapper."""

    name: str
    strip: Callable[[str], Unwrapped | None]
    """Returns what is inside a line; None if the line does not have this wrapper."""
    proof: re.Pattern[str] | None = None
    """What lines must begin with for the wrapper to be recognised, if `strip` accepts more than that."""
    share: float = 0.05
    """Share of the lines that must have it: small where its form alone is proof."""

    def worn(self, texts: list[str]) -> bool:
        """Return whether enough lines have it; if its form is no proof, it must uncover an engine's records too."""
        if self.proof is None:
            inner = [found[0] for text in texts if (found := self.strip(text)) is not None]
        else:
            inner = [text[head.end() :] for text in texts if (head := self.proof.match(text)) is not None]
        return (
            bool(inner)
            and len(inner) >= self.share * len(texts)
            and (self.share < _MOST or any(_RECORD.match(text) for text in inner))
        )


_SOME, _MOST = 0.3, 0.6
_LAYERS = (
    Layer("docker-json", _docker),
    Layer("journal-json", _journal_json),
    Layer("stern-json", _stern_json),
    Layer("cri", _cri),
    Layer("pod", _after(_POD)),
    Layer("journal", _after(_JOURNAL), _JOURNAL_PROOF),
    Layer("rfc3339", _after(_RFC3339)),
    Layer("compose", _after(_COMPOSE), share=_MOST),
    Layer("stern", _after(_STERN), share=_MOST),
    Layer("ts", _after(_TS), share=_MOST),
    Layer("ts-brackets", _after(_TS_BRACKETS), _TS_BRACKETS_PROOF, share=_SOME),
    Layer("srun", _after(_SRUN), share=_MOST),
    Layer("ray", _ray),
    Layer("numbered", _after(_NUMBERED), share=_MOST),
    Layer("grep", _after(_GREP), share=_MOST),
    Layer("quoted", _after(_QUOTED), share=_MOST),
    Layer("tag", _after(_TAG), share=_MOST),
    Layer("arrow", _after(_ARROW), share=_MOST),
    Layer("box", _box, share=_MOST),
)
_JSON_LOG = Layer("json-log", _json_log)
_BY_NAME = {layer.name: layer for layer in (*_LAYERS, _JSON_LOG)}
NAMES = tuple(_BY_NAME)
_HEAD_LINES = 400
"""First lines, empty ones not counted, by which the wrappers of a log are recognised."""
_DEEPEST = 4
"""Most wrappers round one line."""


class Wrapping:
    """The wrappers of one log, the outermost first."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Take wrappers by name, as `names` of another gives them; unknown names are left out."""
        self._layers = tuple(_BY_NAME[name] for name in names if name in _BY_NAME)
        self.names = tuple(layer.name for layer in self._layers)

    def unwrap(self, text: str) -> Unwrapped:
        """Return the server's own line in one line of the log.

        Returns:
            The inner text and whether it is a whole line; a line that is not wrapped stays as it is.
        """
        whole = True
        for layer in self._layers:
            if "\x1b" in text:
                text = logtext.without_escapes(text)
            found = layer.strip(text)
            if found is not None:
                text = found[0]
                whole = whole and found[1]
        return text, whole


def find(lines: Iterable[str]) -> Wrapping:
    """Return the wrappers that the first lines of a log have."""
    texts: list[str] = []
    for line in lines:
        if line.strip():
            texts.append(logtext.without_escapes(line.rstrip("\r\n")))
            if len(texts) == _HEAD_LINES:
                break
    layers: list[Layer] = []
    while texts and len(layers) < _DEEPEST:
        layer = next((layer for layer in _LAYERS if layer not in layers and layer.worn(texts)), None)
        if layer is None:
            break
        if layer.name == "docker-json" and not any(found[1] for found in map(_docker, texts) if found is not None):
            # Collectors that write Docker's format leave out the line's end, and cut no lines.
            layer = _JSON_LOG
        layers.append(layer)
        texts = [
            logtext.without_escapes(found[0]) if (found := layer.strip(text)) is not None else text for text in texts
        ]
        if layer is _JSON_LOG:
            break
    return Wrapping(layer.name for layer in layers)


def unwrap(kind: str, text: str) -> Unwrapped:
    """Return the server's own line without what its log driver wrapped round it.

    Args:
        kind: `LogSource.kind`; `docker-json` and `cri` wrap.
        text: One line of the file.

    Returns:
        The inner text and whether it is a whole line.
    """
    found = _docker(text) if kind == "docker-json" else _cri(text) if kind == "cri" else None
    return (text, True) if found is None else found
