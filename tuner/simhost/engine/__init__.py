"""The simulated SGLang server: a real process with real ranks, log, port and signals; only the GPUs are simulated."""
