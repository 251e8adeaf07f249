"""The probe observes a GPU host and reports what it sees, one JSON line per event.

It is sent to the host over stdin, runs from memory on the standard library of Python 3.8 or later, and ends with the
connection. It writes nothing there until an operator acts: `acts` is the only door to what changes the host. It knows
no inference engine: what to look for and what to ask comes with the plan. docs/protocol.md describes every line it
reads and writes, and `tuner.probe.bootstrap` how it travels: module by module, those without imports first. The modules
import nothing of ours except each other, relatively; this one is only read, never sent.

Everything that can block has a thread of its own: NVML (a driver may hang for seconds), each HTTP endpoint, each log,
the writer. The conductor scans the process table, and the main thread runs searches, because only there can a signal
interrupt a regular expression that does not end.

With HOST_ROOT set in its environment, /proc, /sys and the names of users are read below that folder.
"""
