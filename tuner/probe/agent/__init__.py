"""The probe: looks at a GPU host and tells what it sees, line by line.

It is sent to the host over stdin, runs from memory on the standard library of Python 3.8 or later, writes nothing
there and ends with the connection. It knows no inference engine: what to look for and what to ask comes with the
plan. docs/protocol.md describes every line it reads and writes, and `tuner.probe.bootstrap` how it travels: its
modules go one after another, those without imports first. They import nothing of ours but each other, relatively,
and this one is only read, never sent.

One thread per thing that can block: NVML (a driver may hang for seconds), each HTTP endpoint, each log, the writer.
The conductor scans the process table, and the main thread runs searches, because only there a signal can interrupt
a regular expression that does not end.

With HOST_ROOT set in its environment, /proc, /sys and the names of users are read below that folder.
"""
