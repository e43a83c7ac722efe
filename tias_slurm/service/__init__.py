"""The daemon: its start, schedule, reload and leadership."""
