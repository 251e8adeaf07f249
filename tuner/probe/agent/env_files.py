"""Files that set variables of NCCL, CUDA or an engine behind the scenes. They are read, and nothing in them is run."""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .arguments import masked_env
from .base import HOST_ROOT, Json, names_in, text_of
from .installation import package_folders

_WANTED = re.compile(
    r"(?:NCCL|CUDA|TORCH|PYTORCH|SGLANG|SGL|VLLM|HF|TRANSFORMERS|TRITON|FLASHINFER|OMP|MKL|GLOO|UCX|NVSHMEM|NVIDIA|LD)_\w+"
)
"""Variables that change how an engine runs."""
FILE_LIMIT = 1 << 18
"""Most bytes of a file that are read."""
MOST = 100
"""Most settings that are sent."""

Setting = Tuple[int, str, str, str]
"""Line, name, value, and `assign` (wins over the environment), `default` (only where it is not set) or `unset`."""

Tables = List[Tuple[int, str, Dict[str, str]]]
"""Dictionaries that a source assigns to names: line, name, pairs."""


def settings_in_files(python: Optional[str], env: Dict[str, str], home: str) -> List[Json]:
    """Return what files set, each as path, line, name, value and how, secrets masked.

    Args:
        python: Path of the interpreter that will run; None: no Python is known.
        env: Its environment.
        home: Its user's home folder.
    """
    out: List[Json] = []
    for path in startup_files(python, env, home) if python else ():
        text = text_of(path, FILE_LIMIT)
        if text is not None:
            out += told(path, in_pth(text) if path.endswith(".pth") else in_python(text))
    own = env.get("NCCL_CONF_FILE") or home + "/.nccl.conf"
    out += told(own, in_pairs(text_of(own, FILE_LIMIT) or "", "default"))
    for path, how in (("/etc/nccl.conf", "default"), ("/etc/environment", "login")):
        out += told(path, in_pairs(text_of(HOST_ROOT + path, FILE_LIMIT) or "", how))
    return out[:MOST]


def told(path: str, settings: Iterator[Setting]) -> List[Json]:
    """Return the settings of a file that matter to an engine, secrets masked."""
    out = []
    for line, name, value, how in settings:
        if _WANTED.fullmatch(name):
            shown = masked_env({name: value})[name][:500]
            out.append({"path": path, "line": line, "name": name, "value": shown, "how": how})
    return out


# -- which files Python runs at its start -----------------------------------------------------------------------------


def startup_files(python: str, env: Dict[str, str], home: str) -> List[str]:
    """Return the files that an interpreter runs before any program: .pth files, sitecustomize, usercustomize.

    Only the first sitecustomize on the path is run, and only the first usercustomize.
    """
    own, standard = _folders(python)
    path = [folder for folder in env.get("PYTHONPATH", "").split(":") if folder.startswith("/")]
    user = _user_folders(python, env, home)
    out = []
    for folder in [*user, *own]:
        out += [folder + "/" + name for name in sorted(names_in(folder)) if name.endswith(".pth")]
    for module in ("sitecustomize", "usercustomize") if user else ("sitecustomize",):
        found = (
            place
            for folder in [*path, *standard, *user, *own]
            for place in ("%s/%s/__init__.py" % (folder, module), "%s/%s.py" % (folder, module))
            if os.path.isfile(place)
        )
        first = next(found, None)
        if first is not None:
            out.append(first)
    return out


def _folders(python: str) -> Tuple[List[str], List[str]]:
    """Return an interpreter's package folders, and the folders of its standard library."""
    prefix = os.path.dirname(os.path.dirname(python))
    config = text_of(prefix + "/pyvenv.cfg", FILE_LIMIT)
    own = package_folders(prefix)
    base = prefix
    if config is not None:
        home = re.search(r"^home\s*=\s*(/\S+)", config, re.M)
        base = os.path.dirname(home.group(1)) if home else prefix
        if re.search(r"^include-system-site-packages\s*=\s*true", config, re.M | re.I):
            own = own + [folder for folder in _system(base) if folder not in own]
    else:
        own = own + [folder for folder in _system(base) if folder not in own]
    version = _version(python, own)
    standard = (
        ["%s/lib/python%s" % (base, version)] if version else sorted(glob.glob(base + "/lib/python3*"), reverse=True)
    )
    return _of_version(own, version), [folder for folder in standard if os.path.isdir(folder)]


def _system(base: str) -> List[str]:
    """Return the package folders of a system's interpreter: its own, and those below /usr/local."""
    found = package_folders(base)
    if base == "/usr":
        found = package_folders("/usr/local") + found
        found += [folder for folder in ("/usr/lib/python3/dist-packages",) if os.path.isdir(folder)]
    return list(dict.fromkeys(found))


def _version(python: str, folders: List[str]) -> str:
    """Return `3.12` of an interpreter, by the file behind its links or by its only package folder; empty if unknown."""
    named = re.search(r"(\d+\.\d+)$", os.path.basename(os.path.realpath(python)))
    if named:
        return named.group(1)
    versions = {found.group(1) for found in (re.search(r"/python(3\.\d+)/", folder) for folder in folders) if found}
    return versions.pop() if len(versions) == 1 else ""


def _of_version(folders: List[str], version: str) -> List[str]:
    """Return the folders of one version, and those of all versions."""
    other = re.compile(r"/python(3\.\d+)/")
    found = []
    for folder in folders:
        named = other.search(folder)
        if not version or named is None or named.group(1) == version:
            found.append(folder)
    return found


def _user_folders(python: str, env: Dict[str, str], home: str) -> List[str]:
    """Return the user's own package folder, if the interpreter looks there."""
    prefix = os.path.dirname(os.path.dirname(python))
    config = text_of(prefix + "/pyvenv.cfg", FILE_LIMIT)
    closed = config is not None and not re.search(r"^include-system-site-packages\s*=\s*true", config, re.M | re.I)
    if closed or env.get("PYTHONNOUSERSITE"):
        return []
    base = env.get("PYTHONUSERBASE") or home + "/.local"
    version = _version(python, package_folders(prefix))
    folders = ["%s/lib/python%s/site-packages" % (base, version)] if version else []
    return [folder for folder in folders if os.path.isdir(folder)]


# -- what a file sets -------------------------------------------------------------------------------------------------


def in_pairs(text: str, how: str) -> Iterator[Setting]:
    """Yield the settings of a file of lines `NAME=VALUE`, `export NAME=VALUE`."""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*$", line)
        if found and not line.lstrip().startswith("#"):
            yield number, found.group(1), found.group(2).strip("\"'"), how


def in_pth(text: str) -> Iterator[Setting]:
    """Yield the settings of a .pth file: only lines that begin with `import` are run."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(("import ", "import\t")):
            for _, name, value, how in in_python(line):
                yield number, name, value, how


def in_python(text: str) -> Iterator[Setting]:
    """Yield the settings of Python source, by its syntax; by its lines where this Python cannot parse it."""
    import ast

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        yield from _in_lines(text)
        return
    tables: Tables = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            tables += [(node.lineno, name, _pairs(node.value)) for name in names]
    found: List[Setting] = []
    for node in ast.walk(tree):
        found += _of_node(node, tables)
    yield from sorted(set(found))


def _of_node(node: Any, tables: Tables) -> Iterator[Setting]:
    """Yield what one node of the syntax tree sets."""
    import ast

    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Subscript) and _is_environ(target.value):
                name = _text(target.slice)
                if name:
                    yield node.lineno, name, _value(node.value), "assign"
    elif isinstance(node, ast.AugAssign) and _is_environ(node.target):
        for name, value in _table(node.value, tables).items():
            yield node.lineno, name, value, "assign"
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_environ(target.value) and _text(target.slice):
                yield node.lineno, _text(target.slice) or "", "", "unset"
    elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
        yield from _of_call(node, tables)
    elif isinstance(node, ast.For):
        yield from _of_loop(node, tables)


def _of_call(node: Any, tables: Tables) -> Iterator[Setting]:
    import ast

    called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    of_environ = isinstance(node.func, ast.Attribute) and _is_environ(node.func.value)
    first = _text(node.args[0]) if node.args else None
    second = _value(node.args[1]) if len(node.args) > 1 else "..."
    if called == "putenv" and first:
        yield node.lineno, first, second, "assign"
    elif called == "setdefault" and of_environ and first:
        yield node.lineno, first, second, "default"
    elif called in ("pop", "unsetenv") and first and (of_environ or called == "unsetenv"):
        yield node.lineno, first, "", "unset"
    elif called == "update" and of_environ:
        pairs = _table(node.args[0], tables) if node.args else {}
        pairs.update((word.arg, _value(word.value)) for word in node.keywords if word.arg)
        for name, value in pairs.items():
            yield node.lineno, name, value, "assign"


def _of_loop(node: Any, tables: Tables) -> Iterator[Setting]:
    """Yield what `for name, value in {...}.items()` sets, if its body sets variables by name."""
    import ast

    source = (
        node.iter.func.value if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Attribute) else None
    )
    pairs = _table(source, tables) if source is not None else {}
    if not pairs and isinstance(node.iter, (ast.Tuple, ast.List)):
        both = [each.elts for each in node.iter.elts if isinstance(each, (ast.Tuple, ast.List)) and len(each.elts) == 2]
        pairs = {_text(name) or "": _value(value) for name, value in both}
    how = ""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Subscript) and isinstance(inner.ctx, ast.Store) and _is_environ(inner.value):
            how = "assign"
        elif isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            if inner.func.attr == "setdefault" and _is_environ(inner.func.value):
                how = how or "default"
            elif inner.func.attr == "putenv":
                how = "assign"
    if how:
        for name, value in pairs.items():
            yield node.lineno, name, value, how


def _is_environ(node: Any) -> bool:
    """Return whether an expression is `os.environ`, under whatever name os was imported."""
    import ast

    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in ("environ", "environb")


def _table(node: Any, tables: Tables) -> Dict[str, str]:
    """Return the pairs of a dictionary that is written out, or was assigned to a name."""
    import ast

    if isinstance(node, ast.Dict):
        return _pairs(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        return {word.arg: _value(word.value) for word in node.keywords if word.arg}
    if not isinstance(node, ast.Name):
        return {}
    named = [(line, pairs) for line, name, pairs in tables if name == node.id and line <= node.lineno]
    return dict(max(named, key=lambda item: item[0])[1]) if named else {}


def _pairs(node: Any) -> Dict[str, str]:
    out = {}
    for key, value in zip(node.keys, node.values):  # noqa: B905 - Python 3.8 has no strict
        name = _text(key)
        if name:
            out[name] = _value(value)
    return out


def _value(node: Any) -> str:
    """Return the text of a constant; `...` for what is computed."""
    found = _text(node)
    return "..." if found is None else found


def _text(node: Any) -> Optional[str]:
    """Return the text of a constant, also within `str(...)`; None for what is computed."""
    import ast

    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, bytes)):
        return node.value.decode("utf-8", "replace") if isinstance(node.value, bytes) else str(node.value)
    if type(node).__name__ == "Index":  # around a subscript, up to Python 3.8
        return _text(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return _text(node.args[0])
    return None


_ASSIGNED = re.compile(r"environb?\s*\[\s*[bru]*['\"](\w+)['\"]\s*\]\s*=(?!=)\s*[bru]*['\"]?([^'\"\n#;]*)")
_CALLED = re.compile(r"(putenv|environ\s*\.\s*setdefault)\s*\(\s*['\"](\w+)['\"]\s*,\s*['\"]?([^'\"\n),]*)")


def _in_lines(text: str) -> Iterator[Setting]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        for name, value in _ASSIGNED.findall(line):
            yield number, name, value.strip(), "assign"
        for call, name, value in _CALLED.findall(line):
            yield number, name, value.strip(), "assign" if call == "putenv" else "default"
