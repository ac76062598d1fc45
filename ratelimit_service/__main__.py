"""`python -m ratelimit_service` is `ratelimit`."""

from ratelimit_service.cli import main

if __name__ == "__main__":
    main(complete_var="_RATELIMIT_COMPLETE")
