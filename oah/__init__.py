"""OAH: a Redis-backed, distributed session-queue worker pool for agent runs.

SQL is the truth, Redis dispatches, workers drive agents in terminals, a controller recovers. Nothing is imported here:
`import oah` must stay free.
"""

__version__ = "0.1.0"
