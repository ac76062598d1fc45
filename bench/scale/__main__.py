"""What a load takes, past one machine: `python bench/scale [--measure] [--simulate] [--write]`.

Prints the tables of RESULTS.md; --write puts them there. They are made by `model.py`, of what was found by
--measure, which runs the service on this machine for some minutes, and by --simulate, which runs up to 1,000
instances of the lease code; both are kept in `found.json`.
"""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
sys.path[:1] = [str(BENCH), str(BENCH.parent)]  # in place of this folder, whose modules are those of `scale`

from scale.tables import main  # noqa: E402 - the path comes first

if __name__ == "__main__":
    main()
