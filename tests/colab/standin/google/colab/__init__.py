"""A stand-in for Colab's own package, as far as the course uses it: Drive."""
