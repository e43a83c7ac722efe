"""A policy daemon for Slurm GPU clusters, and the dry run that shows what it would do."""

__version__ = "0.1.0"
