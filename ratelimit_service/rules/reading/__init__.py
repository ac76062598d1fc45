"""Files of rules to a book: read, parsed, watched."""
