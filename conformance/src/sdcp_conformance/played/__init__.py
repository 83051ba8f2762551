"""The roles that the kit plays against the one under test."""
