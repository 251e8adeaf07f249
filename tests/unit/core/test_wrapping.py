from __future__ import annotations

import json

from tuner.core import wrapping


def test_records_of_container_runtimes_are_unwrapped() -> None:
    time = "2026-11-29T14:02:11.123456789Z"
    assert wrapping.unwrap("cri", f"{time} stderr F [x] hi") == ("[x] hi", True)
    assert wrapping.unwrap("cri", "2026-11-29T14:02:11.1+02:00 stdout P:tag  half ") == (" half ", False)
    assert wrapping.unwrap("cri", f"{time} stdout F ") == ("", True)
    assert wrapping.unwrap("cri", f"{time} stdout F") == ("", True)
    assert wrapping.unwrap("file", f"{time} stdout F x") == (f"{time} stdout F x", True)
    assert wrapping.unwrap("cri", "stdout F x") == ("stdout F x", True)


def test_docker_records_are_unwrapped() -> None:
    record = json.dumps({"log": "[x] hi\n", "stream": "stderr", "time": "2026-02-27T12:00:00Z"})
    assert wrapping.unwrap("docker-json", record) == ("[x] hi", True)
    assert wrapping.unwrap("docker-json", json.dumps({"log": "half"})) == ("half", False)
    assert wrapping.unwrap("file", record) == (record, True)
    assert wrapping.unwrap("docker-json", "{broken") == ("{broken", True)
    assert wrapping.unwrap("docker-json", '{"log": 5}') == ('{"log": 5}', True)
