"""Metrics and logs: how the parts of the service count, measure and log."""
