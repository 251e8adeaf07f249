"""The files of an LLM on the host: a folder, or a name of a hub that is in its cache or must be downloaded."""

from __future__ import annotations

import json
import os
import re
from typing import Dict, List, Optional

from .base import HOST_ROOT, Json, names_in, stat_of, text_of

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
_CONFIGS = ("config.json", "params.json")
"""Files that describe an LLM: the usual one, and Mistral's own."""
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_HUB_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?")
_TRUE = ("1", "on", "yes", "true")
MOST_MISSING = 8
"""Most names of missing files that are sent."""


def llm_facts(name: str, env: Dict[str, str], cwd: str, home: str) -> Json:
    """Return the fact `llm`: whether what the arguments name is there, and whole."""
    path = os.path.expanduser(name) if not name.startswith("~/") else home + name[1:]
    full = os.path.normpath(os.path.join(cwd, path))
    # What is below HOST_ROOT is the simulated host's.
    places = [HOST_ROOT + full, full] if HOST_ROOT else [full]
    place = next((each for each in places if os.path.exists(each)), full)
    if name.startswith(("/", "./", "../", "~")) or os.path.isdir(place):
        return {"name": name, "kind": "path", **_folder(place)}
    if "://" in name:
        return {"name": name, "kind": "remote", "note": "it is fetched from %s" % name.partition("://")[0]}
    if any(env.get(each, "").lower() in _TRUE for each in ("SGLANG_USE_MODELSCOPE", "VLLM_USE_MODELSCOPE")):
        return {"name": name, "kind": "remote", "note": "it is fetched from ModelScope"}
    if not _HUB_NAME.fullmatch(name):
        return {"name": name, "kind": "path", "exists": False}
    return {"name": name, "kind": "hub", **_cached(name, env, home)}


def _folder(path: str) -> Json:
    """Look at a folder, or at a single file such as a GGUF, that should hold an LLM."""
    status = stat_of(path)
    if status is None:
        return {"exists": False}
    if not os.path.isdir(path):
        return {
            "exists": True,
            "config": os.access(path, os.R_OK) if path.endswith(".gguf") else False,
            "bytes": status.st_size,
        }
    names = names_in(path)
    configs = [path + "/" + each for each in _CONFIGS if each in names]
    size = 0
    for name in names:
        if name.endswith(_WEIGHTS):
            file = stat_of(path + "/" + name)
            size += file.st_size if file is not None else 0
    out: Json = {"exists": True, "config": any(os.access(each, os.R_OK) for each in configs), "bytes": size}
    gguf = [name for name in names if name.endswith(".gguf")]
    out["config"] = out["config"] or bool(gguf)
    if names and not os.access(path, os.X_OK):
        out["config"] = False
    out["missing"] = _missing(path, names)
    return out


def _missing(path: str, names: List[str]) -> List[str]:
    """Return the files that an index of the weights names and that are not there, or are links to nothing."""
    for index in _INDEXES:
        text = text_of(path + "/" + index, 1 << 24) if index in names else None
        if text is None:
            continue
        try:
            wanted = sorted(set(json.loads(text)["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        return [name for name in wanted if isinstance(name, str) and stat_of(path + "/" + name) is None][:MOST_MISSING]
    return []


def hub_cache(env: Dict[str, str], home: str) -> str:
    """Return the folder in which huggingface_hub keeps what it downloads."""
    cache = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE")
    if not cache:
        base = env.get("HF_HOME") or (env.get("XDG_CACHE_HOME") or home + "/.cache") + "/huggingface"
        cache = base + "/hub"
    return home + cache[1:] if cache.startswith("~/") else cache


def _cached(name: str, env: Dict[str, str], home: str) -> Json:
    """Look for an LLM of the hub in its cache."""
    cache = hub_cache(env, home)
    out: Json = {"cache": cache, "cached": False}
    out["offline"] = next((each for each in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if _on(env, each)), None)
    folder = "%s/models--%s" % (cache, name.replace("/", "--"))
    head = _revision(folder)
    for revision in [head] if head else names_in(folder + "/snapshots"):
        found = _folder("%s/snapshots/%s" % (folder, revision))
        if found.get("config") and found.get("bytes") and not found.get("missing"):
            out.update(cached=True, bytes=found["bytes"])
    place = cache
    while place not in ("", "/") and not os.path.isdir(place):
        place = os.path.dirname(place)
    disk = os.statvfs(place or "/")
    out["free_bytes"] = disk.f_bavail * disk.f_frsize
    return out


def _revision(folder: str) -> Optional[str]:
    """Return the commit that the cache holds for the branch main; None where there is none."""
    head = (text_of(folder + "/refs/main", 200) or "").strip()
    return head if re.fullmatch(r"[0-9a-f]{7,64}", head) else None


def _on(env: Dict[str, str], name: str) -> bool:
    return env.get(name, "").lower() in _TRUE
