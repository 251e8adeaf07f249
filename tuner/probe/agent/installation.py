"""Python installations on the host: interpreters, package folders, versions of packages."""

from __future__ import annotations

import os
import re
import sys
from typing import Dict, List, Optional, Sequence

from .base import PROC, Json, link_of, names_in, text_of, which
from .processes import below_root
from .recognition import Engine, is_python


def interpreter_of(pid: int, argv: Sequence[str], env: Dict[str, str], cwd: Optional[str]) -> Optional[str]:
    """Return the path of a process's Python as it was called: resolving links would leave a virtual environment."""
    name = argv[0] if argv else ""
    if name.startswith("/") and is_python(name):
        return name
    if is_python(name):
        if "/" in name:
            return os.path.normpath(os.path.join(cwd or "/", name))
        for folder in env.get("PATH", "").split(":"):
            path = os.path.join(folder, name)
            if folder.startswith("/") and any(os.path.exists(p) for p in below_root(pid, path)):
                return path
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        path = env.get(name, "") + "/bin/python3"
        if env.get(name) and any(os.path.exists(p) for p in below_root(pid, path)):
            return path
    exe = link_of("%s/%d/exe" % (PROC, pid))
    return exe.replace(" (deleted)", "") if exe and is_python(exe.replace(" (deleted)", "")) else None


def package_folders(prefix: str) -> List[str]:
    """Return the folders below an installation prefix that hold Python packages."""
    out: List[str] = []
    for base in (prefix, prefix + "/local"):
        for name in sorted(names_in(base + "/lib"), reverse=True):
            if name.startswith(("python3", "pypy3")):
                out += ["%s/lib/%s/%s" % (base, name, kind) for kind in ("site-packages", "dist-packages")]
    return [path for path in out if os.path.isdir(path)]


def site_folders(pid: int, interpreter: Optional[str], env: Dict[str, str]) -> List[str]:
    """Return the package folders of a process's interpreter, as paths that can be read from here."""
    prefixes = [os.path.dirname(os.path.dirname(interpreter))] if interpreter else []
    prefixes += [env[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name, "").startswith("/")]
    out: List[str] = []
    for prefix in prefixes:
        for way in below_root(pid, prefix):
            config = text_of(way + "/pyvenv.cfg") or ""
            home = re.search(r"^home\s*=\s*(/\S+)", config, re.M)
            found = package_folders(way)
            if home and re.search(r"^include-system-site-packages\s*=\s*true", config, re.M | re.I):
                found += [f for w in below_root(pid, os.path.dirname(home.group(1))) for f in package_folders(w)]
            out += [f for f in found if f not in out]
            if found:
                break
    if not out:
        # A launcher that hides its interpreter still maps the packages it imported.
        maps = text_of("%s/%d/maps" % (PROC, pid), 1 << 19) or ""
        for path in dict.fromkeys(re.findall(r"(/\S*?/(?:site|dist)-packages)/", maps)):
            out += [w for w in below_root(pid, path) if os.path.isdir(w)][:1]
    return out


def package_version(folders: Sequence[str], package: str) -> Optional[str]:
    """Return the version of an installed distribution from its metadata; None where it is not installed."""
    wanted = re.compile(re.escape(re.sub(r"[-_.]+", "_", package)) + r"-([^-]+)\.(?:dist|egg)-info$", re.I)
    for folder in folders:
        for name in names_in(folder):
            found = wanted.match(name)
            if found:
                metadata = text_of("%s/%s/METADATA" % (folder, name), 65_536) or ""
                version = re.search(r"^Version:\s*(\S+)", metadata, re.M)
                return version.group(1) if version else found.group(1)
    return None


def own_package_folders() -> List[str]:
    """Return the package folders of the probe's own interpreter, which was started without them on its path."""
    version = "python%d.%d" % sys.version_info[:2]
    here = os.path.dirname(os.path.dirname(sys.executable or ""))
    out = []
    for prefix in dict.fromkeys((here, sys.prefix, "/usr/local", "/usr", os.path.expanduser("~/.local"))):
        out += ["%s/lib/%s/%s" % (prefix, version, kind) for kind in ("site-packages", "dist-packages")]
    out.append("/usr/lib/python3/dist-packages")
    return [folder for folder in dict.fromkeys(out) if os.path.isdir(folder)]


def pythons_on_path() -> List[str]:
    """Return the Python interpreters on PATH, by name, newest first."""
    names = ["python3"] + ["python3.%d" % minor for minor in range(20, 7, -1)]
    return [path for path in map(which, names) if path]


def installed_engines(engines: Sequence[Engine], home: str) -> List[Json]:
    """Return the engines that are installed in the usual places for virtual environments."""
    import glob

    patterns = ["%s/*/", "%s/.venv/", "%s/*/.venv/", "%s/*/venv/", "%s/miniconda3/envs/*/", "%s/anaconda3/envs/*/"]
    prefixes = ["/usr/local/", "/opt/venv/", "/venv/", *glob.glob("/opt/*/"), *glob.glob("/opt/conda/envs/*/")]
    for pattern in patterns:
        prefixes += glob.glob(pattern % home)
    out = []
    for prefix in dict.fromkeys(p.rstrip("/") for p in prefixes[:200]):
        folders = package_folders(prefix)
        for engine in engines:
            version = package_version(folders, engine.package) if folders and engine.package else None
            if version:
                out.append({"engine": engine.name, "version": version, "prefix": prefix, "running": False})
    return out
