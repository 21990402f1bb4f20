"""Agents without a process: `noop` for benchmarks, and the one factory that gives each profile to whoever can open it.

Belongs here: what needs neither terminal nor file. Does not belong here: anything that does I/O.
"""
