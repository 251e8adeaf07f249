"""The pure core: no clock, no IO, no randomness but what is passed in."""
