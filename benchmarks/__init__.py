"""Ratios against peers, one script a question. `make bench` runs them all; see README.md here."""
