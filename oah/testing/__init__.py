"""Shipped test kit: scripted agent and terminal, fake clock, embedded fleet, faults.

Imports anything; nobody imports it.
"""
