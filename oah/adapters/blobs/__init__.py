"""The port `blobs` on a directory.

Belongs here: where artifacts lie. Does not belong here: what they mean, how long they are kept.
"""
