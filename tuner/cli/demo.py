"""The demo's simulated host: started as a child process, connected to like any host, ended with this process.

A running demo leaves an entry in the state folder, so that `snapshot demo` reads the same host as a dashboard in
another terminal.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tuner import paths, simhost
from tuner.domain.link import Target
from tuner.errors import ConnectionFailed
from tuner.simhost import Address


class DemoHost:
    """A simulated host, started by the constructor. `target` waits until it accepts connections.

    Args:
        scenario: A name in `simhost.scenarios.SCENARIOS`.
        version: The version of SGLang that it plays.
        speed: Factor by which its starts and waits are faster than real ones.
    """

    def __init__(self, *, scenario: str, version: str, speed: float = 1.0) -> None:
        self._process: subprocess.Popen[bytes] = simhost.launch(
            scenario, version=version, speed=speed, runtime=runtime_folder()
        )

    def __enter__(self) -> DemoHost:
        return self

    def __exit__(self, *exception: object) -> None:
        """End the host's process, whether or not it has come up: closing its stdin makes it exit."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._process.wait()
        simhost.running(runtime_folder())  # removes the entries of demos that were killed
        for folder in (runtime_folder(), paths.state_dir()):
            with suppress(OSError):  # the folder is not empty: another demo runs, or it holds what is worth keeping
                folder.rmdir()

    def target(self) -> Target:
        """Wait until the host has come up and return how to connect to it.

        Raises:
            ConnectionFailed: The host did not start; its own messages are on stderr above.
        """
        try:
            return target_of(simhost.finish(self._process).address)
        except RuntimeError as error:
            raise ConnectionFailed("The simulated host did not start", str(error), final=True) from error


def runtime_folder() -> Path:
    """Return the folder that holds an entry for each running demo."""
    return paths.state_dir() / "demo"


def target_of(address: Address) -> Target:
    """Return a simulated host as a target with its own `known_hosts`, so that the operator's files stay untouched."""
    return Target(
        name="demo",
        host=address.host,
        port=address.port,
        user=address.user,
        options={
            "known_hosts": str(address.known_hosts),
            "identity": str(address.identity),
            "config": "none",
            "history": str(address.dir / "history.sqlite3"),
        },
    )


def ended(target: Target) -> bool:
    """Return whether a target is a demo whose process has ended, so that connecting again is useless."""
    return target.name == "demo" and not simhost.runs(runtime_folder(), target.port)


@contextmanager
def at_home(target: Target, say: Callable[[str], None] = lambda _: None) -> Iterator[Target]:
    """Return the target. For `demo` it is the running demo, or one that is started and ends with the context.

    Args:
        target: The target as named on the command line.
        say: Called with a sentence when the demo was started by another process.
    """
    if target.scheme != "demo":
        yield target
        return
    address = simhost.running(runtime_folder())
    if address is not None:
        say(f"reading the demo that runs already, scenario {address.scenario}, SGLang {address.version}")
        yield target_of(address)
        return
    with DemoHost(scenario="healthy", version="0.5.23") as host:
        yield host.target()
