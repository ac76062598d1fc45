"""Prometheus's text format 0.0.4, written by hand.

prometheus_client names every counter `…_total`, and upstream's names, which dashboards have, end otherwise. That is why
OpenMetrics, where the suffix is law, is not offered.
"""

from collections.abc import Iterable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Iterable[tuple[str, str]]


def head(name: str, kind: str, meaning: str) -> str:
    """The two lines before the first series of a metric."""
    meaning = meaning.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def label_text(labels: Labels) -> str:
    """Labels as they stand between the braces; those without a value are left out, which means the same."""
    return ",".join([f'{name}="{_escape(value)}"' for name, value in labels if value])


def line(name: str, labels: str, value: float) -> str:
    """One series; `labels` is from `label_text`."""
    return f"{name}{{{labels}}} {value!r}\n" if labels else f"{name} {value!r}\n"


def _escape(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value
