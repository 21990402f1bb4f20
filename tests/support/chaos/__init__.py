"""Chaos: a fleet between failing stores, a plan made of a seed, users who repeat what was not answered, and the facts
that a judge needs afterwards. ``python -m tests.support.chaos`` runs seeds by hand (``make chaos``).
"""
