"""The probe: what runs on the GPU host, how it gets there, and how its lines are parsed. See docs/protocol.md."""
