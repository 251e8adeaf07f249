"""gputuner: live tuning of LLM inference servers on remote multi-GPU hosts."""

__version__ = "0.1.0"
