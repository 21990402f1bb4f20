"""Redis without an installation: `memory://` (fakeredis in this process) and `embedded://` (a private server process).

Servers only. What is spoken to them is the one implementation in adapters/redis.
"""
