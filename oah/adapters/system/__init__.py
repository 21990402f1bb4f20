"""This machine: clocks, ids and nonces, process figures (psutil). The only home of chance and of the time of day."""
