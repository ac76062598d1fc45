"""`python bench/attack`: every attack, each on a service of its own, beside a healthy client."""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(BENCH), str(BENCH.parent)]  # in place of this folder, whose modules are those of `attack`

from attack.run import main  # noqa: E402 - the path comes first

if __name__ == "__main__":
    main()
