"""Agents in terminals: the PTY host process and deadman, the reader of all terminals, pexpect's matching, recording.

Knows processes and bytes, not runs' meaning; what a screen says is judged in core/dialogue.
"""
