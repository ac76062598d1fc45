"""The settings in force, over HTTP."""

import json
from pathlib import Path

from tests.admin.conftest import RULES
from tests.admin.service import running

TOKEN = "0123456789abcdef0123456789abcdef"


def test_settings_in_force_are_shown_without_their_secrets(tmp_path: Path) -> None:
    values = {"admin_token": TOKEN, "redis_url": "redis://ada:hunter2@redis:6379", "backend_type": "memory"}
    with running(tmp_path, RULES, **values) as one:
        reply = one.get("/status/settings")
        without = one.get("/status/settings", "HEAD")

    found = {setting["name"]: setting for setting in json.loads(reply.text)["settings"]}
    assert (reply.status, without.status) == (200, 200)
    assert (TOKEN in reply.text, "hunter2" in reply.text) == (False, False)
    assert found["ADMIN_TOKEN"]["value"] == "set"
    assert found["REDIS_URL"]["value"] == "redis://***@redis:6379"
    assert found["GRPC_PORT"] == {
        "section": "Listening",
        "name": "GRPC_PORT",
        "value": "8081",
        "default": True,
        "help": "gRPC: where Envoy asks.",
    }
