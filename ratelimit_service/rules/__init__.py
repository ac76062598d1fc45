"""Rules: the file, the match, the reload."""
