"""Figures, as JSON: `python -m benchmarks [NAME …] [--quick] [--out FILE]`.

Each figure says what it measured, on which servers and with which durability. Machines differ and are noisy: compare
ratios of one run, not figures of two machines. Nothing here is a test.
"""
