"""Generated: see `ratelimit_service.api.generated`."""
