"""One service and one Envoy for all stories that only ask: each story asks about names of its own."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.envoy.proxy import Envoy, bootstrap, by, http_filter, route, start_envoy
from tests.processes import Service, start_service

# By the year: no window ends while the tests run, as one by the day would at midnight UTC.
RULES: Final = """
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
    descriptors:
      - {key: page, value: checkout, rate_limit: {unit: year, requests_per_unit: 1}}
      - {key: page, value: blog}
  - {key: closed, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: file, value: "each/*", rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: file, value: "all/*.pdf", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: tenant, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: vip, rate_limit: {unlimited: true}}
  - {key: denied, rate_limit: {deny: true}}
  - {key: login, rate_limit: {unit: year, requests_per_unit: 2, block_for: 2 years}}
  - {key: guest, rate_limit: {unit: year, requests_per_unit: 1, name: guests}}
  - {key: member, rate_limit: {unit: year, requests_per_unit: 3, replaces: [{name: guests}]}}
  - key: small
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
    metadata: {bucket: small, colour: {light: grey}}
  - key: large
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 2}
    metadata: {bucket: large, colour: {dark: black}}
"""

_METADATA: Final = [
    {
        "header": {"key": "x-metadata", "value": "%DYNAMIC_METADATA(envoy.filters.http.ratelimit)%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
]
"""What the service sent as dynamic metadata, so that whoever asked can see it."""


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, transport: str) -> Iterator[Service]:
    """The service, with all answers it can give, on each transport: Envoy must not notice which."""
    environ = {"TRANSPORT": transport, "LIMIT_RESPONSE_HEADERS_ENABLED": "true", "RESPONSE_DYNAMIC_METADATA": "true"}
    with start_service(tmp_path_factory.mktemp("service"), RULES, environ) as service:
        yield service


@pytest.fixture(scope="session")
def envoy(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    """Envoy in front of it; a route asks about headers of the request, each named as the key with an x- before."""
    override = {
        "dynamic_metadata": {"metadata_key": {"key": "tenant", "path": [{"key": "limit"}]}},
    }
    tenant_limit = http_filter(
        "tenant_limit",
        "filters.http.set_metadata.v3.Config",
        {"metadata": [{"metadata_namespace": "tenant", "value": {"limit": {"requests_per_unit": 2, "unit": "YEAR"}}}]},
        disabled=True,
    )
    with_tenant_limit = {
        "tenant_limit": {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}}
    }
    routes = [
        route("/user", by(("user", "x-user"))),
        route("/page", by(("user", "x-user"), ("page", "x-page"))),
        route("/both", by(("user", "x-user")), by(("user", "x-user"), ("page", "x-page"))),
        route("/closed", by(("closed", "=always"))),
        route("/login", by(("login", "x-user"))),
        route("/denied", by(("denied", "=always")), by(("user", "x-user"))),
        route("/trial", by(("trial", "x-user"))),
        route("/file", by(("file", "x-file"))),
        # Costs stand in the filter's part of a route: Envoy passes over those of the route's own rate_limits.
        route(
            "/tokens", per_route={"rate_limits": [by(("tokens", "x-user"), hits_addend={"format": "%REQ(x-tokens)%"})]}
        ),
        route("/three", per_route={"rate_limits": [by(("tokens", "x-user"), hits_addend={"number": 3})]}),
        route("/look", per_route={"rate_limits": [by(("tokens", "x-user"), hits_addend={"number": 0})]}),
        route("/tenant", by(("tenant", "x-user"), limit=override)),
        route("/acme", by(("tenant", "x-user"), limit=override), typed_per_filter_config=with_tenant_limit),
        route("/vip", by(("vip", "x-user"))),
        route("/guest", by(("guest", "x-user"))),
        route("/member", by(("guest", "x-user")), by(("member", "x-user"))),
        route("/quota", by(("small", "x-user")), by(("large", "x-user")), response_headers_to_add=_METADATA),
        route("/unknown-key", by(("nobody", "x-user")), response_headers_to_add=_METADATA),
        route("/unknown-domain", by(("user", "x-user")), per_route={"domain": "elsewhere"}),
    ]
    folder = tmp_path_factory.mktemp("envoy")
    options = {"enable_x_ratelimit_headers": "DRAFT_VERSION_03", "failure_mode_deny": True}
    configuration = bootstrap([service.grpc_port], routes, filter_options=options, filters_before=[tenant_limit])
    with start_envoy(folder, configuration) as envoy:
        yield envoy
