"""Processes of the simulated host where there is no /proc."""

from __future__ import annotations

import os
import time

from tuner.simhost import ps

ROOT = "/var/folders/x/gputuner-ab/root"
TEXT = f"""\
    1     0 Mon Nov 30 09:00:00 2026     Ss   /sbin/launchd
 4711     1 Mon Nov 30 11:02:03 2026     S    /w/venv/bin/python3 -ISB /w/home/.gputuner/supervisor.py /w/run \
HOME=/w/home HOST_ROOT={ROOT} PATH=/w/bin:/usr/bin LANG=C.UTF-8
 4712  4711 Mon Nov 30 11:02:04 2026     S    /w/venv/bin/python -m sglang.launch_server --tp 8 HOST_ROOT={ROOT}
 4713     1 Sat Nov  7 11:02:04 2026     Z    (python3) HOST_ROOT={ROOT}
 4714     1 Mon Nov 30 11:02:04 2026     S    vim HOST_ROOT={ROOT}2 A=b
{os.getpid()}     1 Mon Nov 30 11:02:04 2026     S    pytest HOST_ROOT={ROOT}
"""


def test_processes_are_read_from_ps() -> None:
    found = ps.parse(TEXT, ROOT, 501)
    assert found.keys() == {4711, 4713}
    one = found[4711]
    assert one.cmdline == b"/w/venv/bin/python3\0-ISB\0/w/home/.gputuner/supervisor.py\0/w/run\0"
    assert one.env == {"HOME": "/w/home", "HOST_ROOT": ROOT, "PATH": "/w/bin:/usr/bin", "LANG": "C.UTF-8"}
    assert (one.ppid, one.uid, one.comm) == (1, 501, "python3")
    assert time.strftime("%H:%M:%S", time.localtime(one.started_at)) == "11:02:03"
    assert found[4713].state == "Z"
