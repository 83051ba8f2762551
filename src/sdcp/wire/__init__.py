"""Bytes to plain values and back, strict and bounded: CBOR bodies, q rows, Problem Details."""
