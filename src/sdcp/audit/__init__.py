"""What an operator asks of a running or stopped deployment: what a commit log says and whether it can be true, and what
a cache holds (docs/mlc.md). Nothing here commits, fences or assigns anything.
"""
