"""Judgements: (view, rules, now, chance) → decision. One file each: `Rules`, a union of frozen decisions, one function.

A policy neither loads what it judges nor applies what it decided; services do.
"""
