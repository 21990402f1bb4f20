"""The click commands. They talk to the API through oah.client; only `--direct` repairs and process entries use
bootstrap."""
