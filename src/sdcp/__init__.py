"""SDCP, the Speculative Decoding Coordination Protocol: the reference implementation."""

__version__ = "0.1.0"
