"""The draft's arithmetic as pure functions: digests, distributions, draws, acceptance, limit, escalation, length."""
