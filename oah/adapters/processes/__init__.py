"""Workers of this machine as a target of scaling: a file in the data directory says which there shall be, and a
supervisor (`oah up`, `oah worker supervise`) sees to it.

Belongs here: that file, both of its sides. Does not belong here: starting and ending processes.
"""
