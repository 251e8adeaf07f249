"""The command line of `python -m sglang.launch_server`, with the options, usage and errors of the played version."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
_PROG = {"0.5.9": "launch_server.py", "0.5.23": "sglang serve"}
"""Program name in usage and errors: from 0.5.20 on launch_server is a synonym of `sglang serve`, and says so."""
_UNITS = {"k": 10**3, "K": 10**3, "m": 10**6, "M": 10**6, "g": 10**9, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def parser(version: str) -> argparse.ArgumentParser:
    """Return the parser of a version. Only options that were given appear in what it returns.

    Abbreviations are allowed, as in the engine, so that a retired option can be an ambiguous prefix of new ones.
    """
    made = argparse.ArgumentParser(prog=_PROG[version], argument_default=argparse.SUPPRESS)
    for row in (DATA / f"flags-{version}.tsv").read_text().splitlines():
        if row.startswith("#"):
            continue
        setting, names, action, kind, number, choices, text = (*row.split("\t"), *[""] * 6)[:7]
        options: dict[str, Any] = {"dest": setting, "help": (text or None) if text != "-" else argparse.SUPPRESS}
        if options["help"]:
            options["help"] = options["help"].replace("%", "%%") if text != "-" else options["help"]
        if action == "true":
            options["action"] = "store_true"
        elif action == "bool":
            options["action"] = argparse.BooleanOptionalAction
        elif action == "gone":
            options["action"] = _Gone
        else:
            options |= {"type": _KINDS.get(kind, str), "choices": choices.split(",") if choices else None}
            if options["type"] is int and options["choices"]:
                options["choices"] = [int(choice) for choice in options["choices"]]
            if number:
                options["nargs"] = number
        made.add_argument(*names.split(" "), required=setting == "model_path", **options)
    return made


def given(version: str, words: Sequence[str]) -> dict[str, Any]:
    """Parse a command line into the settings that it gives.

    Raises:
        SystemExit: With status 2 after usage and error on stderr; with 0 after --help on stdout.
    """
    return vars(parser(version).parse_args(list(words)))


def words_of(argv: Sequence[str]) -> list[str]:
    """Return the options within a command line: those after `-m MODULE`, or after `sglang serve`."""
    if "-m" in argv:
        return list(argv[argv.index("-m") + 2 :])
    return list(argv[argv.index("serve") + 1 :] if "serve" in argv[:4] else argv[1:])


class _Gone(argparse.Action):
    """An option of earlier versions: it takes no value and refuses to be used."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(f"The command line argument '{self.option_strings[0]}' is deprecated and will be removed.")


def human_readable_int(text: str) -> int:
    """Return an integer with an optional unit: `8192`, `8k`, `8Ki`."""
    found = re.fullmatch(r"(-?[\d.]+)([A-Za-z]{0,2})", text)
    if found is None or (found[2] and found[2] not in _UNITS):
        raise ValueError(text)
    return int(float(found[1]) * _UNITS.get(found[2], 1))


def _json_list(text: str) -> Any:
    return json.loads(text)


def _graph_backend(text: str) -> str:
    return text.lower()


# Their names appear in argparse's errors: "invalid int value: 'x'".
human_readable_int.__name__ = "human_readable_int"
_json_list.__name__ = "json_list_type"
_graph_backend.__name__ = "parse_cuda_graph_backend_arg"

_KINDS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "human_readable_int": human_readable_int,
    "loads": json.loads,
    "json_list_type": _json_list,
    "parse_cuda_graph_backend_arg": _graph_backend,
    "parse_cuda_graph_config_arg": json.loads,
}
