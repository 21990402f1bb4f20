"""rq: carries the names of maintenance tasks to a process that performs them. The only import of rq.

Here belongs what speaks to rq. What a task does belongs in `services/`; that its row in SQL is the truth, in
`ports/jobs.py`.
"""
