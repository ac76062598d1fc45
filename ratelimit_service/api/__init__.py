"""The gRPC methods: bytes in, bytes out."""
