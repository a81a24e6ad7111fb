"""The commands behind the Makefile. Not part of the library, and not installed with it."""
