"""Files that outlive a session (journals, the history of starts, settings), and reading log files."""
