"""Environment variables and versions of parts that a start's log proves, each by one name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.core.redact import mask_env
from tuner.core.runs import RUN_VARIABLE
from tuner.domain.starts import Sign, Start

OWN_VARIABLES = frozenset({RUN_VARIABLE, "HOST_ROOT"})
"""Variables that gputuner itself gives a server (the id of its run, the root of a simulated host): they change nothing
in it, and differ between any two starts."""
_ASSIGNED = re.compile(r"(?:^|\] )(?P<name>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)=(?P<value>[\w./+-]{1,80})(?=: |$)")
"""A variable that the engine repeats at the beginning of a message: `SGLANG_FORCE_CUSTOM_AR_PCIE=1: Enabling ...`."""
_PARTS = (
    (re.compile(r"pytorch|torch", re.IGNORECASE), "torch"),
    (re.compile(r"flashinfer", re.IGNORECASE), "flashinfer"),
    (re.compile(r"sgl[-_]kernel|sglang-kernel"), "sgl-kernel"),
    (re.compile(r"nvidia-nccl"), "nccl"),
    (re.compile(r"cuda used to build|cuda runtime", re.IGNORECASE), "cuda"),
    (re.compile(r"driver", re.IGNORECASE), "driver"),
    (re.compile(r"transformers"), "transformers"),
    (re.compile(r"triton"), "triton"),
)
"""How tools name a part, and its name here. The engine's own version is `Start.version`."""


def environment(start: Start) -> dict[str, str]:
    """Return environment variables by name, secrets masked; what the process showed overrides the log.

    `OWN_VARIABLES` are left out.
    """
    found: dict[str, str] = {}
    for sign in start.signs:
        if sign.id in ("environment", "nccl-env") and sign.fields.get("name"):
            found.setdefault(sign.fields["name"], str(sign.fields.get("value", "")))
    for line in start.lines:
        if "=" in line.text and (told := _ASSIGNED.search(line.text)) is not None:
            found.setdefault(told["name"], told["value"])
    return mask_env({name: value for name, value in (found | start.env).items() if name not in OWN_VARIABLES})


def parts(start: Start) -> dict[str, str]:
    """Return versions by part: torch, cuda, nccl, flashinfer, driver, ...; for an editable install its commit."""
    found: dict[str, str] = {}
    for sign in start.signs:
        for name, version in _told(sign):
            found.setdefault(name, version)
    return found | start.versions


def _told(sign: Sign) -> Iterator[tuple[str, str]]:
    fields = {name: str(value) for name, value in sign.fields.items() if value is not None}
    match sign.id:
        case "nccl-version":
            yield "nccl", fields["version"]
            if "cuda_version" in fields:
                yield "nccl's cuda", fields["cuda_version"]
        case "part-version":
            for form, name in _PARTS:
                if form.search(fields["part"]):
                    yield name, fields["version"]
                    return
        case "driver-version":
            yield "driver", fields["driver_version"]
        case "gpu-model":
            yield "gpu", fields["model"].strip()
        case "source-commit":
            yield "commit", fields["commit"]
            if "changed_on" in fields:
                yield "changed files", f"yes, on {fields['changed_on']}"
