"""Homes of sessions as directories: on this host, on a volume, or packed into blobs."""
