"""Policies: pure functions from what can be observed to an order. `registry` names them all."""
