"""A conversation with an agent program as functions over screens: readiness, echo, busy or idle, completion, injection.

What differs between agents is data in `profiles/`. Terminals, processes and patterns' engines belong to adapters/pty.
"""
