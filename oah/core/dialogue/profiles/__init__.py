"""Built-in profiles: one agent, one TOML file. Data only; `oah.core.dialogue.profile` says what the keys mean."""
