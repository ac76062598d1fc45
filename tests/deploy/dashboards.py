"""What the dashboards of deploy/grafana ask."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.deploy.deployed import DEPLOY

DASHBOARDS: Final = sorted((DEPLOY / "grafana").glob("dashboards/*.json"))

VALUES: Final = {
    "__rate_interval": "1h",
    "__range": "1h",
    "job": "ratelimit",
    "instance": ".+",  # the label must be there, and so must the next two
    "domain": ".+",
    "key1": ".+",
    "key2": ".*",
}


def dashboard(path: Path) -> dict[str, Any]:
    """A dashboard."""
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return board


def walk(node: Any) -> Iterator[dict[str, Any]]:
    """Every object of the JSON, those in collapsed rows too."""
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for part in node:
            yield from walk(part)


def filled(query: str) -> str:
    """With a value for each variable, and windows as long as the run; a variable without a value is a KeyError."""
    return re.sub(r"\$(\w+)", lambda found: VALUES[found[1]], query.replace("[1m]", "[1h]"))


def queries() -> dict[str, set[str]]:
    """Each expression of both dashboards, and the labels that it or its legend names."""
    found: dict[str, set[str]] = {}
    for node in (node for path in DASHBOARDS for node in walk(dashboard(path)) if "expr" in node):
        legend = node.get("legendFormat", "") + node.get("titleFormat", "")
        groups = re.findall(r"\bby \(([^)]*)\)", node["expr"])
        labels = {label.strip() for group in groups for label in group.split(",")} - {"le"}
        found.setdefault(node["expr"], set()).update(labels, re.findall(r"{{(\w+)}}", legend))
    return found
