"""Which of both formats of metrics a client prefers."""

import pytest

from ratelimit_service.server.admin.openmetrics import prefers_openmetrics


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text",
        "application/openmetrics-text; version=1.0.0",
        'application/openmetrics-text;version="1.0.0";charset=utf-8',
        # Prometheus 2 and 3.
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
            "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
        ),
        "text/plain, application/openmetrics-text",
    ],
)
def test_openmetrics_is_for_who_names_it(accept: str) -> None:
    assert prefers_openmetrics(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "application/*",
        "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
        "text/plain;version=0.0.4",
        "application/openmetrics-text;version=0.0.1",
        "application/openmetrics-text;q=0",
        "application/openmetrics-text;q=0.3,text/plain;q=0.5",
        "application/openmetrics-text;q=much",
        "application/openmetrics-text;q=nan",
        ";;,=;q,,",
    ],
)
def test_everything_else_is_the_text_format(accept: str) -> None:
    assert not prefers_openmetrics(accept)
