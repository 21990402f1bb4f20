"""The only home of `websockets` on the server's side: a worker's private endpoint, and how an API process reaches it.

What is said over it is not known here: frames are `core/dialogue/frames.py`, conversations are in `worker/` and `api/`.
"""
