"""What Slurm prints and stores: readers of accounting exports and of node facts."""
