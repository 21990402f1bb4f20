"""The HTTP process: app, schemas, auth, problems (RFC 9457), streams (SSE).

Calls services in a thread pool and decides nothing. What judges belongs to core/policy, what acts to services.
"""
