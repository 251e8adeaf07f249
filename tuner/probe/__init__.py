"""What runs on the GPU host, how it gets there, and how its lines are read. docs/protocol.md describes the lines."""
