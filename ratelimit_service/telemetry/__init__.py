"""What the parts count, measure and log."""
