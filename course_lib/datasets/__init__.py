"""One file per data set: where its files come from, and how they are read."""

from course_lib.datasets.sources import torchvision_datasets

__all__ = ["torchvision_datasets"]
