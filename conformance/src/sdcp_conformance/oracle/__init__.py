"""What the draft computes, written down once more and plainly: digests, distributions, draws, rules, ladder."""
