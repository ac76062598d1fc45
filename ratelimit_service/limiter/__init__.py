"""The limiter: plans what a request charges, and judges it."""
