"""What must be remembered: the table of the jobs, its file, claims, quota, and what was done and told."""
