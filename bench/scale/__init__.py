"""What a load takes, past one machine."""
