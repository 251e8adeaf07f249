"""Judges of failures to compile kernels at run time: missing tools and damaged compile caches."""

from __future__ import annotations

from collections.abc import Callable

from tuner.core.diagnosis.backends import backend_of, other_attention
from tuner.core.diagnosis.case import Case
from tuner.core.diagnosis.proposals import (
    engine_variable,
    error_of,
    no_memory_advice,
    option,
    quoted,
    variable,
)
from tuner.domain.findings import Confidence, Evidence, Finding, Move, Remedy
from tuner.domain.starts import Sign

_TOOLS = ("toolchain-missing", "header-missing", "extension-build-failed", "jit-failed")
_HOST_COMPILERS = {"cxx": "CXX", "cc": "CC"}
"""Environment variable of each host compiler, by the sign's field that tells which compiler is missing."""
_NEITHER = "The GPU and its memory are not involved."


def no_toolchain(case: Case) -> Finding | None:
    """Diagnose a kernel that could not be compiled at run time."""
    sign = case.root_sign(*_TOOLS)
    if sign is None or case.root_sign("compiler-killed") is not None:
        return None
    return _launcher(case, sign) or _kernel(case, sign)


def _launcher(case: Case, sign: Sign) -> Finding | None:
    """Diagnose the host compiler failing on the C launcher of a Triton kernel, where no CUDA toolkit is missing."""
    command = case.root_sign("jit-failed")
    own = command is not None and "launcher" in command.fields
    # The compiler prints its error before Python raises the exception about its exit code.
    before = case.sign_before(case.root.at, "header-missing") if own and case.root is not None else None
    header = case.root_sign("header-missing") or before
    python = header is not None and str(header.fields.get("missing_path")).endswith("Python.h")
    if not python and (header is not None or not own):
        return None
    path = _path(command) if command is not None else ""
    what = "Python's own headers are missing, which it needs" if python else f"{path or 'the compiler'} failed"
    return case.finding(
        "jit-toolchain-missing",
        f"Triton compiles a launcher in C for each of its kernels, and that failed: {what}. {_NEITHER}",
        evidence=[
            Evidence(what="compiler", value=path, at=command.at) if command is not None and path else None,
            case.quote("missing header", header, "missing_path") if header is not None else None,
            _error(case, sign),
        ],
        remedies=[
            case.advice("packages", "the headers of this very Python: python3-dev, python3.12-dev or python3-devel"),
            None if python else
            case.advice("libcuda.so", "the linker wants libcuda.so beside libcuda.so.1: ldconfig -p | grep libcuda; in"
                        " a container the driver's libraries are mounted with --gpus"),
        ],
        wrong_advice=no_memory_advice(case),
        refuted_by="the compiler's own words above this line naming something else",
        confidence=Confidence.HIGH if python else Confidence.MEDIUM,
    )  # fmt: skip


def _kernel(case: Case, sign: Sign) -> Finding:
    """Build the finding for a CUDA toolkit or host compiler that is missing or that failed."""
    header, tool = case.root_sign("header-missing"), case.root_sign("toolchain-missing")
    refusal = case.root_sign("extension-build-failed")
    compiler = next((s for s in case.signs(*_TOOLS) if _path(s)), None)
    path = _path(compiler) if compiler is not None else ""
    told = (
        f"the header {header.fields.get('missing_path')} is missing, as in a CUDA toolkit that is too old"
        if header is not None else "",
        str(tool.fields.get("detail", "")) if tool is not None else "",
        str(refusal.fields.get("refusal", "")) if refusal is not None else "",
        f"{path} failed" if path else "",
    )  # fmt: skip
    what = next((f": {words.rstrip('.')}" for words in told if words), "")
    host = next((name for field, name in _HOST_COMPILERS.items() if tool is not None and field in tool.fields), "")
    return case.finding(
        "jit-toolchain-missing",
        f"A kernel is compiled when it is first used, and that failed{what}. {_NEITHER}",
        evidence=[
            Evidence(what="compiler", value=path, at=compiler.at) if compiler is not None else None,
            case.quote("missing header", header, "missing_path") if header is not None else None,
            case.quote("missing", tool, "detail") if tool is not None else None,
            case.quote("extension", sign, "extension"),
            _error(case, sign),
        ],
        remedies=_host_compiler(case, host) if host else _toolkit(case),
        wrong_advice=no_memory_advice(case),
        refuted_by="that very compiler answering to --version" if host else
        "nvcc --version of that very compiler showing 12.4 or newer, and the header in its include folder",
        confidence=Confidence.MEDIUM if header is None and tool is None else Confidence.HIGH,
    )  # fmt: skip


def _host_compiler(case: Case, name: str) -> list[Remedy | None]:
    why = "the path of a compiler that exists; unset, those on PATH are looked for"
    packages = "gcc or clang, also where no kernel of CUDA is compiled: Triton builds a launcher in C"
    return [variable(case, name, Move.SET, why), case.advice("packages", packages)]


def _toolkit(case: Case) -> list[Remedy | None]:
    other = other_attention(case, backend_of(case))
    if other is None and case.on_stack("flashinfer"):
        other = option(case, "attention_backend", "--attention-backend", Move.SET, "needs no nvcc", "triton")
    return [
        variable(case, "CUDA_HOME", Move.SET, "a CUDA toolkit of version 12 or newer, with nvcc and its headers"),
        other,
        case.advice("packages", "the toolkit (nvcc), ninja and a C++ compiler, or prebuilt kernels"),
    ]


def _path(sign: Sign) -> str:
    """Return the path of the tool that a sign names; empty if it names none."""
    return str(sign.fields.get("compiler_path") or sign.fields.get("command_path") or "")


def _error(case: Case, sign: Sign) -> Evidence | None:
    failure = case.root.failure if case.root is not None else None
    return quoted("error", failure.message, sign.at) if failure is not None else None


def damaged_cache(case: Case) -> Finding | None:
    """Diagnose a cached graph or kernel of an earlier start that cannot be used."""
    missing = case.root_sign("compiled-file-missing")
    sign = case.root_sign("compile-cache-damaged") or missing
    if sign is None:
        return None
    path = str(missing.fields.get("missing_path")) if missing is not None else ""
    behaviour = case.engine.behaviour()
    if not behaviour.compile_cache or (path and behaviour.compile_cache_part not in path):
        return _cache_of_kernels(case, sign, path)
    return case.finding(
        "compile-cache-damaged",
        "A compiled graph from an earlier start cannot be used again: it was cut off, or made by other packages.",
        evidence=[error_of(case, sign)],
        remedies=[
            case.advice("cache", f"remove {behaviour.compile_cache}; the next start compiles"),
            engine_variable(case, "disable_compile_cache", Move.SET, "as a test: compiles every time", "1"),
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
