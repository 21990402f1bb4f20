"""How long-lived things run, knowing nothing of runs: component, loop, group, signals, leadership, logging."""
