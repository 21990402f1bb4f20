"""Terminals: the PTY host process, the reader over all terminals, profiles driven through them, recordings.

Belongs here: everything that touches a pseudo-terminal or a process tree, and the only imports of pexpect and re2.
Does not belong here: what a screen means (core/dialogue judges that).
"""
