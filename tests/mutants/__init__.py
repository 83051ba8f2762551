"""Deliberate faults of `sdcp`, and which tier of the checks catches each: `python -m tests.mutants`.

mutant.py     what a mutant is, and how it is read and applied          faults/*.toml   the mutants themselves
tiers.py      the tiers: which tests and commands each consists of      caught.json     what caught each, when last run
trial.py      one run of a tier against one mutant, in a process        docs/mutants.md both, as a table
records.py    caught.json and docs/mutants.md
"""
