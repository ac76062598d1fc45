"""A client made of other people's stubs understands every field of every answer."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.peers import xds_protos
from tests.processes import start_service

pytestmark = pytest.mark.usefixtures("transport")

RULES = """
domain: shop
descriptors:
  - key: user
    metadata: {tier: gold}
    rate_limit: {unit: year, requests_per_unit: 10, name: per-user}
  - key: free
    rate_limit: {unlimited: true}
"""
PER_USER = {"name": "per-user", "requests_per_unit": 10, "unit": "YEAR"}


def headers(limit: int, remaining: int) -> list[dict[str, Any]]:
    return [
        {"key": "RateLimit-Limit", "value": str(limit)},
        {"key": "RateLimit-Remaining", "value": str(remaining)},
        {"key": "RateLimit-Reset", "value": True},
    ]


def asked(*entries: str, **more: Any) -> dict[str, Any]:
    return {"domain": "shop", "descriptors": [{"entries": [entry]} for entry in entries], **more}


def test_every_field_of_every_answer_is_understood(tmp_path: Path) -> None:
    environ = {"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "RESPONSE_DYNAMIC_METADATA": "true"}
    with start_service(tmp_path, RULES, environ) as service:
        client = subprocess.run(
            [
                sys.executable,
                Path(__file__).with_name("independent_client.py"),
                f"127.0.0.1:{service.grpc_port}",
            ],
            env=os.environ | {"PYTHONPATH": str(xds_protos())},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert client.returncode == 0, client.stderr
    answers = json.loads(client.stdout)

    assert answers["two descriptors"] == {
        "overall_code": "OK",
        "statuses": [
            {"code": "OK", "current_limit": PER_USER, "limit_remaining": 7, "duration_until_reset": True},
            {"code": "OK"},
        ],
        "response_headers_to_add": headers(10, 7),
        "dynamic_metadata": asked("user=ada", "nobody=x", hitsAddend=3.0, metadata={"tier": "gold"}),
    }
    assert answers["own cost"]["statuses"] == [
        {"code": "OK", "current_limit": PER_USER, "limit_remaining": 2, "duration_until_reset": True}
    ]
    assert answers["look"]["statuses"] == answers["own cost"]["statuses"]
    assert answers["override"]["statuses"] == [
        {
            "code": "OK",
            "current_limit": {"requests_per_unit": 7, "unit": "YEAR"},
            "limit_remaining": 6,
            "duration_until_reset": True,
        }
    ]
    assert answers["unlimited"] == {
        "overall_code": "OK",
        "statuses": [{"code": "OK", "limit_remaining": 4294967295}],
        "dynamic_metadata": asked("free="),
    }
    assert answers["over"]["overall_code"] == "OVER_LIMIT"
    assert answers["over"]["statuses"] == [
        {"code": "OVER_LIMIT", "current_limit": PER_USER, "duration_until_reset": True}
    ]
    assert answers["over"]["response_headers_to_add"] == headers(10, 0)
    assert "metadata" not in answers["over"]["dynamic_metadata"]
