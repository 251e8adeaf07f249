"""The supervisor: the program on the host that carries out one stop, start or switch of a server.

The probe starts it detached, so it outlives link, probe and gputuner. It reads `order.json` in the folder of the run
and writes `state.json`; `tuner.domain.runs` describes both. The modules travel to the host together with some of
`tuner.probe.agent`, as one file; they import each other relatively and nothing but the standard library of Python 3.8.
"""
