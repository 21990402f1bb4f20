"""Pure judgements and nouns: no clock, chance, system, threads, I/O or third party (a contract checks it).

Everything that can be judged is judged here, from values that the shell hands in. What opens, connects, waits or logs
does not belong here.
"""
