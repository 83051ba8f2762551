"""One process each: verifier, drafter, router, cache, gateway. Here the effects of the machines become I/O."""
