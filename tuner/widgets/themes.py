"""The themes of this app, and the colours of memory in every theme."""

from __future__ import annotations

from textual.theme import Theme

DARK_MEMORY = {
    "memory-weights": "#5f8fd7",
    "memory-kv": "#5faf6f",
    "memory-graphs": "#b58be0",
    "memory-context": "#d7af5f",
    "memory-other": "#8a8f98",
    "memory-servers": "#56b6c2",
    "memory-foreign": "#ff6b6b",
}
LIGHT_MEMORY = {
    "memory-weights": "#1f5fbf",
    "memory-kv": "#2e7d32",
    "memory-graphs": "#7b1fa2",
    "memory-context": "#8d5f00",
    "memory-other": "#5f6368",
    "memory-servers": "#00707c",
    "memory-foreign": "#c62828",
}
CONTRAST_MEMORY = {
    "memory-weights": "#6cb6ff",
    "memory-kv": "#5cff7a",
    "memory-graphs": "#ff9cff",
    "memory-context": "#ffe14d",
    "memory-other": "#d0d0d0",
    "memory-servers": "#5cf0ff",
    "memory-foreign": "#ff8080",
}

THEMES: tuple[Theme, ...] = (
    Theme(
        name="gputuner-dark",
        primary="#7aa2f7",
        secondary="#565f89",
        accent="#e0af68",
        warning="#e0af68",
        error="#f7768e",
        success="#7fc98b",
        foreground="#d5d9e3",
        background="#14161b",
        surface="#1b1e26",
        panel="#232733",
        dark=True,
        variables=DARK_MEMORY,
    ),
    Theme(
        name="gputuner-light",
        primary="#1f5fbf",
        secondary="#6b7280",
        accent="#9a5b00",
        warning="#9a5b00",
        error="#b3261e",
        success="#1b6e2c",
        foreground="#1d2129",
        background="#fbfbf8",
        surface="#efefea",
        panel="#e4e4dd",
        dark=False,
        variables=LIGHT_MEMORY,
    ),
    Theme(
        name="gputuner-contrast",
        primary="#6cb6ff",
        secondary="#ffffff",
        accent="#ffe14d",
        warning="#ffe14d",
        error="#ff8080",
        success="#5cff7a",
        foreground="#ffffff",
        background="#000000",
        surface="#000000",
        panel="#1a1a1a",
        dark=True,
        text_alpha=1.0,
        variables={**CONTRAST_MEMORY, "foreground-muted": "#d0d0d0"},
    ),
)
"""Themes that are registered beside Textual's own; the first is the default."""


def memory_colors(*, dark: bool) -> dict[str, str]:
    """Return the colours of memory for themes that do not define them."""
    return DARK_MEMORY if dark else LIGHT_MEMORY
