"""The worker process: slots, claimer, settler, ear, the two witnesses, drain.

What is judged is judged in core/policy; what is written is written by services.
"""
