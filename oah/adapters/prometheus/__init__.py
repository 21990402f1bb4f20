"""Every metric in one table (`table.py`), the telemetry port on top of it, and the exposition.

A metric that is not in the table does not exist; dashboards and alert rules are checked against it.
"""
