"""What runs inside the PTY host: standard library only, nothing heavy, single-threaded.

The host is started with `-I -S` and lives by its connection to the worker. `tree` is shared with the worker, which
kills the trees itself when the host fails. Modules here import only each other and what starts in a few milliseconds.
"""
