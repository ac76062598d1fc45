"""Where rules come from: `source.py` says what a source does, the others are one each, or what they read."""
