"""The imperative shell: one session per host, with asyncio and without a screen."""
