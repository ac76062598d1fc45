"""Python imports it as it starts, if it finds it on PYTHONPATH: signals then do to a worker what faults would.

SIGUSR1 has the main thread compute, with no turn for anything else, until there is a file GO_ON in its folder. SIGUSR2
has it wait for ever, as in a read from what never answers.
"""

import os
import signal


def _compute(*_: object) -> None:
    while not os.path.exists("GO_ON"):  # noqa: PTH110 - pathlib is not to be imported in each process
        pass


def _wait(*_: object) -> None:
    os.read(os.pipe()[0], 1)


signal.signal(signal.SIGUSR1, _compute)
signal.signal(signal.SIGUSR2, _wait)
