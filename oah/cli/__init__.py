"""The click commands. They talk to the API through oah.client; only `--direct` and the long-lived processes open the
stores themselves."""
