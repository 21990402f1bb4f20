"""The only home of the redis client: connection, every key in one file, the Lua scripts and their typed loader, and the
broker's ports on top. Holds dispatch, never truth.
"""
