"""Uvicorn's access lines: both engines have them, and a busy log is full of them."""

from __future__ import annotations


def routine(changing: str) -> str:
    """Expression of an access line of a request that went well and changed nothing about the server.

    Args:
        changing: Expression of what paths begin with, after the slash, that change it.
    """
    return (
        r"INFO: {2,}(?:[\dA-Fa-f.:%\[\]]+|localhost|testclient|None):\d+ - "
        rf'"(?:GET|POST|HEAD|OPTIONS) /(?!{changing})[\w./?=&%+~:,@-]* HTTP/\d(?:\.\d)?"'
        r" \d{3} (?:OK|Created|Accepted|No Content)"
    )
