"""Checks of rules: warnings, and the difference of two versions."""
