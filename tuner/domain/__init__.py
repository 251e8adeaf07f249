"""Frozen value types: what every layer above agrees on. No behaviour beyond small derived properties."""
