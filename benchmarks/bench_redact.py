"""Speed of masking, which every byte of a log passes, in MB/s and relative to splitting the same text into lines.

`python benchmarks/bench_redact.py` masks text without secrets (the bar is 30 MB/s), text with a secret in every tenth
line, and 64 KiB of each kind of line that an attacker would write to make masking slow (the bar is 0.5 MB/s; a pattern
that starts again from each place inside reaches 0.02).
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable

from tuner.core.logtext import clean
from tuner.core.redact import mask

BAR_MB_S = 30.0
HOSTILE_BAR_MB_S = 0.5
HOSTILE = (
    *("secret", "secret_", "passw", "credential-", "://a:", "://a:@", "hf_", "_hf_", "ghp_", "_sk-", "_eyJ"),
    *("?sig=", "token=", "api_key=", "--token=", "/--token ", "'token=[a',", "authorization=", "cookie="),
)
HOSTILE_SEQUENCES = ("\x1bP", "\x1b_a", "\x1b[", "\x1b]")
BLOCK = 32_768
LINES = 40_000
LINE = (
    "[2026-11-29 16:24:{s:02d} TP{r}] Decode batch, #running-req: 32, #token: {n}, token usage: 0.41, "
    "cuda graph: True, gen throughput (token/s): 1505.78, #queue-req: 3\n"
)
SECRET = "[2026-11-29 16:24:00] login of https://user:{n}secret@host/ with HF_TOKEN=hf_{n}AbCdEfGhIjKlMnOpQrStUv\n"


def blocks(secrets: bool) -> list[str]:
    """Return the text in blocks as they arrive."""
    lines = [LINE.format(s=n // 700 % 60, r=n % 8, n=100_000 + n) for n in range(LINES)]
    if secrets:
        lines[::10] = [SECRET.format(n=n) for n in range(0, LINES, 10)]
    text = "".join(lines)
    return [text[at : at + BLOCK] for at in range(0, len(text), BLOCK)]


def speed(work: Callable[[str], object], text: list[str]) -> float:
    """Return the speed in MB/s, best of five."""
    size = sum(map(len, text)) / 1e6
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for block in text:
            work(block)
        best = min(best, time.perf_counter() - began)
    return size / best


def main() -> int:
    """Print the figures; return 1 when a bar was missed."""
    print(f"Python {platform.python_version()}")
    reached = 0.0
    for name, secrets in (("clean", False), ("a secret in every tenth line", True)):
        text = blocks(secrets)
        masking, splitting = speed(mask, text), speed(str.splitlines, text)
        reached = reached or masking
        print(f"{name}: {masking:.0f} MB/s, {splitting / masking:.0f} times the cost of splitting into lines")
    print(f"bar {BAR_MB_S:.0f} MB/s")
    slowest = float("inf")
    for work, units in ((lambda text: mask(text, torn=True), HOSTILE), (clean, HOSTILE_SEQUENCES)):
        for unit in units:
            did = speed(work, [unit * (65_536 // len(unit))])
            slowest = min(slowest, did)
            print(f"{unit!r} again and again: {did:.1f} MB/s")
    print(f"bar {HOSTILE_BAR_MB_S} MB/s")
    return 0 if reached >= BAR_MB_S and slowest >= HOSTILE_BAR_MB_S else 1


if __name__ == "__main__":
    sys.exit(main())
