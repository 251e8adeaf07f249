"""Causes in compiling at run time: tools that are missing, and caches of what was compiled."""

from __future__ import annotations

import re
from collections.abc import Callable

from tuner.core.diagnosis.backends import backend_of, other_attention
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import first_line, no_memory_advice, option, said, variable
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy
from tuner.domain.starts import Sign

_TOOLS = ("toolchain-missing", "header-missing", "extension-build-failed", "jit-failed")


def no_toolchain(case: Case) -> Finding | None:
    """A kernel had to be compiled at run time, and could not be."""
    sign = case.root_sign(*_TOOLS)
    if sign is None or "Killed signal terminated" in case.message:
        return None
    compiler = next((s for s in case.signs(*_TOOLS) if s.fields.get("compiler_path") or s.fields.get("command_path")),
                    None)  # fmt: skip
    host_code = _of_a_launcher(case.message)
    # A compiler prints its complaint before the exception that tells of its exit.
    said_before = case.sign_before(case.root.at, "header-missing") if host_code and case.root is not None else None
    header = case.root_sign("header-missing") or said_before
    tool = case.root_sign("toolchain-missing")
    path = next((compiler.fields[n] for n in ("compiler_path", "command_path") if n in compiler.fields), "") \
        if compiler is not None else ""  # fmt: skip
    refused = re.search(r"nvcc fatal[^\n]*", case.message)
    what = refused[0].strip() if refused is not None else "the build of it"
    python = header is not None and str(header.fields.get("missing_path")).endswith("Python.h")
    launcher = not python and header is None and host_code
    if python:
        what = "Python's own headers are missing, which Triton's launcher needs"
    elif header is not None:
        what = f"the header {header.fields.get('missing_path')} is missing, as in a CUDA toolkit that is too old"
    elif tool is not None:
        what = f"{tool.fields.get('detail', 'a tool is not there')}"
    elif path:
        what = f"{path} failed"
    flashinfer = "flashinfer" in case.message or case.on_stack("flashinfer")
    host = _host_compiler(str(path), case.message)
    return case.finding(
        "jit-toolchain-missing",
        f"A kernel is compiled when it is first used, and that failed: {what.rstrip('.')}. The GPU and its memory are"
        " not involved.",
        evidence=[
            Evidence(what="compiler", value=str(path), at=compiler.at) if compiler is not None and path else None,
            case.quote("missing header", header, "missing_path") if header is not None else None,
            case.quote("missing", tool, "detail") if tool is not None else None,
            case.quote("extension", sign, "extension"),
            Evidence(what="error", value=first_line(case.root.failure.message), at=sign.at)
            if case.root is not None and case.root.failure is not None else None,
        ],
        remedies=_for_a_launcher(case, libraries=launcher) if python or launcher else [
            variable(case, host, Move.SET, "the path of a compiler that exists; unset, those on PATH are looked for")
            if host else
            variable(case, "CUDA_HOME", Move.SET, "a CUDA toolkit of version 12 or newer, with nvcc and its headers"),
            None if host else other_attention(case, backend_of(case)) or
            (option(case, "attention_backend", "--attention-backend", Move.SET, "needs no nvcc", "triton")
             if flashinfer else None),
            case.advice("packages", "gcc or clang, also where no kernel of CUDA is compiled: Triton builds a launcher"
                        " in C" if host else "the toolkit (nvcc), ninja and a C++ compiler, or prebuilt kernels"),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="the compiler's own words above this line naming something else" if python or launcher else
        "that very compiler answering to --version" if host else
        "nvcc --version of that very compiler showing 12.4 or newer, and the header in its include folder",
        confidence=Confidence.MEDIUM if header is None and tool is None else Confidence.HIGH,
    )  # fmt: skip


def _of_a_launcher(message: str) -> bool:
    """The compiler that failed was the host's, on the C code that starts kernels of Triton's."""
    return re.search(r"\b(?:cuda_utils|driver|main|__triton_launcher)\.c'?,", message) is not None


def _for_a_launcher(case: Case, *, libraries: bool) -> list[Remedy | None]:
    return [
        case.advice("packages", "the headers of this very Python: python3-dev, python3.12-dev or python3-devel"),
        case.advice("libcuda.so", "the linker wants libcuda.so beside libcuda.so.1: ldconfig -p | grep libcuda; in a"
                    " container the driver's libraries are mounted with --gpus") if libraries else None,
    ]  # fmt: skip


def _host_compiler(path: str, message: str) -> str:
    """The variable that names the compiler of the host which is missing; empty where it is another tool."""
    if "No such file" not in message and "Failed to find C compiler" not in message:
        return ""
    name = path.rpartition("/")[2]
    if name in ("c++", "g++", "clang++"):
        return "CXX"
    return "CC" if name in ("cc", "gcc", "clang") or "Failed to find C compiler" in message else ""


def damaged_cache(case: Case) -> Finding | None:
    """A compiled graph or kernel of an earlier start cannot be used."""
    missing = case.root_sign("compiled-file-missing")
    sign = case.root_sign("compile-cache-damaged") or missing
    if sign is None:
        return None
    path = str(missing.fields.get("missing_path")) if missing is not None else ""
    if path and "vllm" not in path:
        return _cache_of_kernels(case, sign, path)
    return case.finding(
        "compile-cache-damaged",
        "A compiled graph from an earlier start cannot be used again: it was cut off, or made by other packages.",
        evidence=[Evidence(what="error", value=said(case, sign), at=sign.at)],
        remedies=[
            case.advice("cache", "remove ~/.cache/vllm/torch_compile_cache (VLLM_CACHE_ROOT); the next start compiles"),
            variable(case, "VLLM_DISABLE_COMPILE_CACHE", Move.SET, "as a test: compiles every time", "1"),
        ],
        refuted_by="the same failure with an empty cache",
        confidence=Confidence.MEDIUM,
    )


def _cache_of_kernels(case: Case, sign: Sign, path: str) -> Finding:
    triton = "/.triton/" in path
    return case.finding(
        "compile-cache-damaged",
        "A file of the cache of compiled kernels is gone that another process, or an earlier start, had put there: the"
        " cache was removed meanwhile, or several servers or nodes share it.",
        evidence=[case.quote("file", sign, "missing_path")],
        remedies=[
            variable(case, "TRITON_CACHE_DIR" if triton else "TORCHINDUCTOR_CACHE_DIR", Move.SET,
                     "a directory of its own for each server, on a local disk"),
            case.advice("cache", "remove the whole cache while no server runs; the next start compiles"),
        ],
        refuted_by="the same failure with an empty cache",
        confidence=Confidence.MEDIUM,
    )  # fmt: skip


JUDGES: tuple[Callable[[Case], Finding | None], ...] = (no_toolchain, damaged_cache)
