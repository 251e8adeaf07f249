r"""Sends the probe to a host that has nothing of ours, and leaves nothing there.

One `sh -c` picks an interpreter, which runs a stub, which reads the probe's source from stdin and executes it; stdin
stays open for orders. A host without Python 3.8 answers with one `problem` line instead of `hello`.

Both texts are one line without `'` and `!`: whatever login shell they pass in single quotes (bash, fish, tcsh), it
hands them on unchanged.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from importlib.resources import files

_PROBLEM = r'"{\"t\":\"problem\",\"seq\":1,\"mono\":0.0,\"code\":\"python-old\",\"detail\":\"%s\"}\n"'

# eval, because exec is a statement of Python 2, where this line must at least compile.
STUB = (
    "import sys,zlib;v=sys.version_info;"
    f'sys.stdout.write({_PROBLEM}%".".join(map(str,v[:3]))) if v<(3,8) else '
    "eval(compile(zlib.decompress(sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))),"
    '"gputuner-probe","exec"))'
)
"""What the interpreter is told with `-c`. It runs on Python 2.7 and 3.x far enough to say that it is too old."""

# -I: neither the working directory nor PYTHON* variables may put a module in our way. It hides the user's
# site-packages, and -S all others (and whatever sitecustomize does): the probe looks for pynvml by path instead.
# -B: no bytecode is written. -u: lines go out at once.
_SCRIPT = (
    'o=none;t="import sys;sys.exit(sys.version_info<(3,8))";'
    'try(){ if command -v "$1" >/dev/null 2>&1;then '
    'if "$1" -ISc "$t" </dev/null >/dev/null 2>&1;then exec "$1" -ISBuc "$s";fi;'
    'if [ "$o" = none ];then o=$("$1" -c "import sys;sys.stdout.write(sys.version.split()[0])" '
    "</dev/null 2>/dev/null)||o=none;fi;fi;};"
    # One pool of memory for all threads: glibc gives each its own, half empty.
    "export MALLOC_ARENA_MAX=1;"
    "s=$1;"
    "for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 python "
    '/usr/libexec/platform-python /opt/conda/bin/python3 "$HOME"/*conda3/bin/python3 /opt/*/bin/python3 '
    '"$HOME"/.local/share/uv/python/*/bin/python3 "$HOME"/.pyenv/versions/*/bin/python3;do try "$p";done;'
    # Last, the interpreters of running programs: an engine's may be on no path at all.
    'for p in $(for e in "$HOST_ROOT"/proc/[0-9]*/exe;do readlink $e;done 2>/dev/null|grep python3|sort -u);'
    'do try "$p";done;'
    f'printf {_PROBLEM} "$o";exit 3'
)


def argv() -> tuple[str, ...]:
    """Command line that starts the probe on a host; `payload` is what it reads first."""
    return ("sh", "-c", _SCRIPT, "gputuner-probe", STUB)


_RULE = "\n# " + "-" * 111 + "\n"
_LOADER = """from __future__ import annotations
for part in %r:
    exec(compile(part, "gputuner-probe", "exec"))
"""


@lru_cache(maxsize=1)
def payload() -> bytes:
    """The probe's source as the stub expects it: a line with a length, and so many bytes of zlib.

    It is compiled a section at a time: the parser takes a hundred bytes for each of the source, and Python gives
    little of that back. All at once would be a third of the probe's memory on the host.
    """
    source = files("tuner.probe").joinpath("agent.py").read_text("utf-8")
    packed = zlib.compress((_LOADER % (sections(source),)).encode(), 9)
    return b"%d\n" % len(packed) + packed


def sections(source: str) -> list[str]:
    """A source cut at the rules between its sections; empty lines in front keep the line numbers of each."""
    parts: list[str] = []
    line = 0
    for part in source.replace(_RULE, "\0" + _RULE).split("\0"):
        parts.append("\n" * line + part)
        line += part.count("\n")
    return parts
