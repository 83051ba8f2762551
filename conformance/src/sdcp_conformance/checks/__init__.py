"""The checks; every module here is loaded by name of the package."""
