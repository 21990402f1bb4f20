"""Protocols that the shell must satisfy, and the plain values that cross them.

Belongs here: what services and components may ask of the outside world, said without naming a library. Does not belong
here: any implementation, any default adapter.
"""
