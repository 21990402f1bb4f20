"""Use cases, one verb and one file each: load → decide → commit, three visible steps.

A service speaks through ports. It never loops, sleeps or starts threads; a `runtime.Loop` calls it.
"""
