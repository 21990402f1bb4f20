"""One agent, one file: data first, hooks only where data cannot say it."""
