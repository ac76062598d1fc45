"""The services of the operating system: time, addresses, files, threads."""
