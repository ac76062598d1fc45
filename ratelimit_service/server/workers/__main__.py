"""`python -m ratelimit_service.server.workers CHANNEL HANDOFF`: a worker, as its parent starts it."""

import sys

from ratelimit_service.server.workers.worker import main

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
