"""Judges implementations of SDCP over the wire; imports nothing of the implementation `sdcp`."""
