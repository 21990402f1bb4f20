"""cronsim: when a cron expression fires. The only import of cronsim.

Here belongs what reads expressions and time zones. What becomes of a fire time belongs in `core/policy/schedules.py`.
"""
