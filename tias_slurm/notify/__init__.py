"""Messages to the owners of jobs."""
