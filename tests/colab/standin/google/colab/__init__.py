"""A stand-in for Colab's own package, as far as the course and its forms use it."""

from google.colab import drive, files, output

__all__ = ["drive", "files", "output"]
