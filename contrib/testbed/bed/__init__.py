"""The test bed: a whole Slurm cluster on one Debian machine. Standard library only."""
