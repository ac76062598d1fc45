"""A browser that is somebody else's, to see the page as people do."""

import subprocess
from tempfile import TemporaryDirectory

from tests.peers import chromium

_SECONDS = 120


def browse(url: str, *options: str, milliseconds: int = 3000) -> str:
    """The page's DOM as markup, after its scripts have run for so long on the browser's own clock."""
    with TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        command = [
            str(chromium()),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={profile}",
            f"--virtual-time-budget={milliseconds}",
            *options,
            "--dump-dom",
            url,
        ]
        process = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout
