"""Sessions, the imperative shell around the core: one per host, with asyncio and without a screen."""
