"""What the operating system gives: time, addresses, files, threads."""
