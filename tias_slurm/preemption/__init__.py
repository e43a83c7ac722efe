"""Whom to requeue so that which waiting job starts, and why nobody is."""
