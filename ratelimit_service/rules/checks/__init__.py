"""What is said about rules: warnings, the difference of two versions, why a request matches as it does."""
