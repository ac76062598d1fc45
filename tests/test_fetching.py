"""What fetches other people's programs: once for all processes that ask, and with nothing left of a failure."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.fetching import ROOT, Missing, filled, system_program

pytestmark = pytest.mark.extended

FILL: Final = """
import sys, time
from pathlib import Path
from tests.fetching import filled

def fill(fresh):
    with Path(sys.argv[1], "log").open("a") as log:
        log.write("filled\\n")
    print("filling", flush=True)
    sys.stdin.readline()

filled(Path(sys.argv[1], "peer"), "1.0", fill)
print("there", flush=True)
"""


def test_two_that_want_the_same_at_once_fetch_it_once(tmp_path: Path) -> None:
    """Whichever of them has the lock first; it holds it until both were told to go on."""
    command = [sys.executable, "-c", FILL, str(tmp_path)]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go on\n")
        process.stdin.flush()
    said = sorted(process.communicate(timeout=60)[0].split() for process in processes)

    assert said == [["filling", "there"], ["there"]]
    assert (tmp_path / "log").read_text() == "filled\n"


def test_a_folder_is_filled_anew_for_other_pins_only(tmp_path: Path) -> None:
    folder = tmp_path / "peer"
    programs: list[str] = []
    for pins in ("1", "1", "2"):

        def fill(fresh: Path, name: str = f"program-{len(programs)}") -> None:
            (fresh / name).touch()

        filled(folder, pins, fill)
        programs.append(next(path.name for path in folder.iterdir() if path.name != ".pins"))

    assert programs == ["program-0", "program-0", "program-2"]


def test_nothing_is_left_of_what_could_not_be_fetched(tmp_path: Path) -> None:
    def fail(fresh: Path) -> None:
        (fresh / "half").touch()
        raise Missing("no network")

    with pytest.raises(Missing, match="no network"):
        filled(tmp_path / "peer", "1", fail)

    assert [path.name for path in tmp_path.iterdir()] == ["peer.lock"]


def test_a_program_of_this_machine_is_taken_before_a_package() -> None:
    assert system_program("sh", "no-such-package") == Path(subprocess.check_output(["which", "sh"], text=True).strip())
