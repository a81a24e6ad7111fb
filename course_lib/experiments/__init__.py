"""The recipes as data, one file an experiment."""
