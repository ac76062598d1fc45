"""A standalone rate-limit service that speaks Envoy's rate-limit protocol."""

__version__ = "0.3.0"
"""The one place of the version: the build reads it here, and so may anyone, at no cost."""
