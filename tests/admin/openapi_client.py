"""Tells the whole story of rules by a client that was generated from the description; run in a process of its own.

    PYTHONPATH=PEERS:GENERATED python openapi_client.py URL TOKEN

Every response must be one that the description has, of its schema.
"""

import json
import re
import sys
from typing import Any

import httpx
import jsonschema
import openapi_spec_validator
from rules_client import AuthenticatedClient, models
from rules_client.api.default import (
    check_rules,
    delete_rules,
    diff_rules,
    get_rules,
    get_version,
    list_rules,
    list_versions,
    put_rules,
    roll_back_rules,
)

url, token = sys.argv[1:]
described: Any = httpx.get(f"{url}/openapi.json").json()
openapi_spec_validator.validate(described)
seen: set[tuple[str, str]] = set()


def check(response: httpx.Response) -> None:
    """The response is as described."""
    response.read()
    path = response.request.url.raw_path.decode().partition("?")[0]
    template = next(each for each in described["paths"] if re.fullmatch(re.sub(r"{\w+}", "[^/]+", each), path))
    operation = described["paths"][template][response.request.method.lower()]
    found = operation["responses"][str(response.status_code)]
    seen.add((operation["operationId"], str(response.status_code)))
    if "content" in found:
        schema = found["content"][response.headers["content-type"].partition(";")[0]]["schema"]
        jsonschema.validate(response.json(), schema | {"components": described["components"]})
    for header in found.get("headers", ()):
        assert header in response.headers, header


def limit(requests: int, unit: str = "hour") -> Any:
    """The rules of the domain `blog`."""
    rule = {"key": "user", "rate_limit": {"unit": unit, "requests_per_unit": requests}}
    return models.PutRulesJsonBody.from_dict({"domain": "blog", "descriptors": [rule]})


def etag(response: Any) -> str:
    """Of a response, which must be a good one."""
    assert response.status_code in {200, 201}, response.content
    found: str = response.headers["etag"]
    return found


hooks = {"event_hooks": {"response": [check]}}
client = AuthenticatedClient(base_url=url, token=token, httpx_args=hooks, raise_on_unexpected_status=True)
ask: Any = {"client": client}
check_body, diff_body = models.CheckRulesJsonBody, models.DiffRulesJsonBody

first = etag(put_rules.sync_detailed("blog", body=limit(5), if_none_match="*", why="a start", **ask))
lost = put_rules.sync_detailed("blog", body=limit(6), if_none_match="*", **ask)
assert (lost.status_code, f'"{lost.parsed.version}"') == (412, first)
found = check_rules.sync("blog", body=check_body.from_dict(limit(6).to_dict()), **ask)
assert (found.errors, found.domains) == ([], 2)
found = check_rules.sync("blog", body=check_body.from_dict(limit(6, "age").to_dict()), **ask)
assert found.errors[0].pointer == "/descriptors/0/rate_limit/unit"
compared = diff_rules.sync("blog", body=diff_body.from_dict(limit(6).to_dict()), **ask)
assert len(compared.changes) == 1
second = etag(put_rules.sync_detailed("blog", body=limit(6), if_match=first, who="ci", **ask))
wrong = put_rules.sync_detailed("blog", body=limit(6, "age"), if_match=second, **ask)
assert (wrong.status_code, wrong.parsed.errors[0].file) == (422, "api:blog")
assert put_rules.sync_detailed("blog", body=limit(7), **ask).status_code == 428
assert put_rules.sync_detailed("shop", body=limit(7), if_none_match="*", **ask).status_code == 409
third = etag(roll_back_rules.sync_detailed("blog", to="1", if_match=second, **ask))
assert json.loads(get_rules.sync("blog", **ask)) == limit(5).to_dict()
assert get_rules.sync_detailed("blog", if_none_match=third, **ask).status_code == 304
assert json.loads(get_version.sync("blog", "2", **ask)) == limit(6).to_dict()
fourth = etag(delete_rules.sync_detailed("blog", if_match=third, **ask))
assert get_rules.sync_detailed("blog", **ask).status_code == 404
assert [f'"{each.version}"' for each in list_versions.sync("blog", **ask).versions] == [fourth, third, second, first]
assert list_rules.sync(**ask).store
stranger = AuthenticatedClient(base_url=url, token="x" * 32, httpx_args=hooks)
assert put_rules.sync_detailed("blog", body=limit(5), if_none_match="*", client=stranger).status_code == 401
print(json.dumps(sorted(seen)))
