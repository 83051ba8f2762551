"""Coverage-guided fuzzing of all that reads octets of a stranger: CBOR, messages, logs, HTTP/2 (see README.md here).

Not here: what the product promises about those octets, which each target states and checks.
"""
