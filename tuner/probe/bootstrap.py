r"""Start the probe on a host that has nothing of ours, and leave nothing there.

One `sh -c` picks an interpreter, which runs a stub, which reads the probe's modules from stdin and runs them; stdin
stays open for orders. A host without Python 3.8 answers with one `problem` line instead of `hello`.

Both texts are one line without `'` and `!`, so that every login shell (bash, fish, tcsh) passes them on unchanged in
single quotes.
"""

from __future__ import annotations

import base64
import re
import zlib
from functools import lru_cache
from graphlib import TopologicalSorter
from importlib.resources import files

from tuner import __version__

_PROBLEM = r'"{\"t\":\"problem\",\"seq\":1,\"mono\":0.0,\"code\":\"python-old\",\"detail\":\"%s\"}\n"'

# eval, because exec is a statement in Python 2, where this line must at least compile. The lambda names what was read:
# it runs the first part, which finds the others in `parts`.
STUB = (
    "import sys,zlib;v=sys.version_info;"
    f'sys.stdout.write({_PROBLEM}%".".join(map(str,v[:3]))) if v<(3,8) else '
    '(lambda p:eval(compile(p.pop(0),"gputuner-probe","exec"),{"parts":p}))'
    '(zlib.decompress(sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))).split(b"\\0"))'
)
"""The stub, given to the interpreter with `-c`.

It runs on Python 2.7 and 3.x far enough to report a version too old.
"""

# -I: neither the working directory nor PYTHON* variables may put a module in our way. It hides the user's
# site-packages, and -S all others (and whatever sitecustomize does): the probe looks for pynvml by path instead. -B: no
# bytecode is written. -u: lines are not buffered.
_SCRIPT = (
    'o=none;t="import sys;sys.exit(sys.version_info<(3,8))";'
    'try(){ if command -v "$1" >/dev/null 2>&1;then '
    'if "$1" -ISc "$t" </dev/null >/dev/null 2>&1;then exec "$1" -ISBuc "$s";fi;'
    'if [ "$o" = none ];then o=$("$1" -c "import sys;sys.stdout.write(sys.version.split()[0])" '
    "</dev/null 2>/dev/null)||o=none;fi;fi;};"
    # One memory arena for all threads: glibc makes one per thread, each half empty.
    "export MALLOC_ARENA_MAX=1;"
    "s=$1;u=$(id -u)||u=0;"
    # Files that others may have put there must not run as this user, who is often root: only a Python is run, and none
    # that anybody but root and this user could write or replace, so all its folders are checked too.
    'try_checked(){ p=$(readlink -f "$1" 2>/dev/null)||return;'
    "case ${p##*/} in python3|python3.[0-9]|python3.[0-9][0-9]);;*)return;esac;"
    'f=$p;while set -- $(ls -lnLd "${f:-/}" 2>/dev/null);do '
    'case "$1,$3" in ?????w*|????????w*)return;;[-d]*,0|[-d]*,$u);;*)return;esac;'
    '[ "$f" ]||break;f=${f%/*};done;try "$p";};'
    "for p in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 python "
    '/usr/libexec/platform-python "$HOME"/*conda3/bin/python3 "$HOME"/.local/share/uv/python/*/bin/python3 '
    '"$HOME"/.pyenv/versions/*/bin/python3;do try "$p";done;'
    'for p in /opt/*/bin/python3;do try_checked "$p";done;'
    # Last, the interpreters of running programs: an engine's may be on no path at all.
    'for p in $(for e in "$HOST_ROOT"/proc/[0-9]*/exe;do readlink "$e";done 2>/dev/null|grep /python3|sort -u);'
    'do try_checked "$p";done;'
    f'printf {_PROBLEM} "$o";exit 3'
)


def argv() -> tuple[str, ...]:
    """Return the command line that starts the probe on a host; it first reads `payload` from stdin."""
    return ("sh", "-c", _SCRIPT, "gputuner-probe", STUB)


# The modules become real ones, so that what is tested in its folder is what runs on a host. Each is found in
# sys.modules when another imports it, without a look at the file system. Their file names have angle brackets, so that
# a traceback does not look for source lines either. Those that only functions import are compiled when one first does.
_LOADER = """\
later = {later!r}
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

def add(name, is_package):
    module = sys.modules[name] = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, is_package=is_package)
    return module

def run(module, source):
    exec(compile(source, "<gputuner-probe/%s.py>" % module.__name__.partition(".")[2], "exec"), module.__dict__)

class Later:
    sources = {{}}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return ModuleSpec(name, cls) if name in cls.sources else None

    @staticmethod
    def create_module(spec):
        return None

    @classmethod
    def exec_module(cls, module):
        run(module, cls.sources[module.__name__])

sys.meta_path.insert(0, Later)
add("gputuner_probe", True).__path__ = []
while parts:
    name = "gputuner_probe." + parts.pop(0).decode()
    if name in later:
        Later.sources[name] = parts.pop(0)
    else:
        run(add(name, False), parts.pop(0))
sys.modules[name].main()
"""

_IMPORT = re.compile(r"^from \.(\w+) import ", re.M)
"""Matches the imports of other modules that are executed at once. Indented ones are for the type checker only, or in a
function that few probes call."""
_MAIN = "probe"


@lru_cache(maxsize=1)
def payload() -> bytes:
    """Return what the stub reads: a line with a length, and as many bytes of zlib.

    Inside are parts separated by NUL: the loader, then name and source of each module. Modules are compiled one at a
    time: the parser takes a hundred bytes for each byte of source, and Python returns little of that. All at once would
    be a third of the probe's memory on the host.
    """
    sources = modules()
    at_once, wanted = set[str](), [_MAIN]
    while wanted:
        name = wanted.pop()
        if name not in at_once:
            at_once.add(name)
            wanted += _IMPORT.findall(sources[name])
    parts = [_LOADER.format(later=[f"gputuner_probe.{name}" for name in sources if name not in at_once])]
    for name, source in sources.items():
        parts += name, source
    packed = zlib.compress("\0".join(parts).encode())
    return b"%d\n" % len(packed) + packed


def modules() -> dict[str, str]:
    """Return the sources of the probe's modules by name, each after those it imports; the last one has `main`.

    Raises:
        graphlib.CycleError: Modules import each other.
    """
    sources = _sources("tuner.probe.agent")
    order = TopologicalSorter({name: sorted(_IMPORT.findall(source)) for name, source in sources.items()})
    return {name: sources[name] for name in sorted(order.static_order(), key=lambda name: name == _MAIN)}


# The program of a run's supervisor. It is a file on the host, so that it can be started again. Its modules are
# compiled when they are first imported: those that the wait for a server needs are not needed to begin.
_PROGRAM = """\
# Carries out one run of gputuner {version}: stops a server, starts another, and records what happens.
import os
import sys

for number in (1, 2):  # errors before the first record of the run are read from this file
    os.dup2(os.open(os.path.join(sys.argv[1], "supervisor.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)

import binascii
import zlib
from importlib.machinery import ModuleSpec


class Finder:
    parts = zlib.decompress(binascii.a2b_base64({packed!r})).decode().split("\\0")
    sources = dict(zip(parts[::2], parts[1::2]))

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in cls.sources:
            return ModuleSpec(name, cls, is_package=not cls.sources[name])

    @staticmethod
    def create_module(spec):
        return None

    @classmethod
    def exec_module(cls, module):
        name = module.__spec__.name
        exec(compile(cls.sources[name], "<gputuner/%s.py>" % name, "exec"), module.__dict__)


sys.meta_path.insert(0, Finder)
from gputuner_run.supervisor.main import main

main()
"""

_IMPORT_ANYWHERE = re.compile(r"^ *from (\.\.agent)?\.(\w+) import ", re.M)
"""Matches the imports of a module of the supervisor, those inside its functions too."""


@lru_cache(maxsize=1)
def supervisor() -> bytes:
    """Return the program of a run's supervisor: one Python file that is started with the folder of the run.

    Inside are the modules of `tuner.probe.supervisor` and those of the probe that they import.
    """
    own, agent = _sources("tuner.probe.supervisor"), modules()
    packed = {"gputuner_run": "", "gputuner_run.agent": "", "gputuner_run.supervisor": ""}
    wanted = [(False, "main")]
    while wanted:
        shared, name = wanted.pop()
        place = f"gputuner_run.{'agent' if shared else 'supervisor'}.{name}"
        if place in packed:
            continue
        packed[place] = source = agent[name] if shared else own[name]
        if shared:
            wanted += ((True, other) for other in _IMPORT.findall(source))
        else:
            wanted += ((bool(above), other) for above, other in _IMPORT_ANYWHERE.findall(source))
    text = "\0".join(part for item in sorted(packed.items()) for part in item)
    data = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    return _PROGRAM.format(packed=data, version=__version__).encode()


def _sources(package: str) -> dict[str, str]:
    """Return the sources of a package's modules by name, `__init__` left out."""
    folder = files(package)
    names = sorted(path.name[:-3] for path in folder.iterdir() if path.name.endswith(".py"))
    return {name: folder.joinpath(name + ".py").read_text("utf-8") for name in names if name != "__init__"}
