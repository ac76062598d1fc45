"""What a request charges, and what comes of it."""
