"""The state machines of SDCP: sans-IO, synchronous, deterministic.

Each is a plain object with `handle(input) -> list[Effect]`. It never awaits, reads a clock, draws a random number or
touches a socket: time and luck arrive in the input, and what has to happen is in the effects (`effects`), in order.
"""
