"""Kubernetes: the workload that a controller scales, and the Lease that elects one. The only home of its client.

An optional extra (`oah[kubernetes]`): nothing here is imported unless a setting asks for it. Every request has a
time-out; what may be repeated is repeated by the loop that called, never in here.
"""
