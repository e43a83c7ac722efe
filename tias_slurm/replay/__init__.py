"""The dry run: a model of Slurm in virtual time, fed by a site's own history or by a trace."""
