"""Regular expression for uvicorn's access lines, which both engines print and a busy log is full of."""

from __future__ import annotations


def routine(changing: str) -> str:
    """Return a regular expression for access lines of successful requests that did not change the server's state.

    Args:
        changing: Regular expression of how paths that change its state begin, after the leading slash.
    """
    return (
        r"INFO: {2,}(?:[\dA-Fa-f.:%\[\]]+|localhost|testclient|None):\d+ - "
        rf'"(?:GET|POST|HEAD|OPTIONS) /(?!{changing})[\w./?=&%+~:,@-]* HTTP/\d(?:\.\d)?"'
        r" \d{3} (?:OK|Created|Accepted|No Content)"
    )
