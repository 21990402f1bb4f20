"""Outgoing HTTP calls to where users want them: webhooks and hooks. The only import of httpcore.

Here belongs what connects; which addresses are allowed is judged in `core/policy/addresses.py`, what an answer means in
the policies of who calls. The SDK's calls to our own API are `oah.client`.
"""
