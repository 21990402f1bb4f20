"""Hooks: child processes and HTTP calls around runs. What they mean and when they are due is not known here."""
