"""What outlives a session: journals, the history of starts, settings."""
