"""One run of all that deploy/compose.yaml says: traffic, an outage of Redis, the end of an instance, seen at each end.

`make deploy-run` prints what is found true. A wrong line of deploy/ ends it with what was not.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
import yaml

from tests.clocks import stay_within
from tests.deploy.dashboards import filled, queries
from tests.deploy.deployed import NOT_NATIVE, Deployment, compose
from tests.envoy.proxy import Envoy
from tests.processes import Process, Reply, Service, ask, eventually
from tests.prometheus import Prometheus

Say = Callable[[str], None]

INSTANCES: Final = ("ratelimit", "ratelimit-2")
HOUR: Final = 3600
DAY: Final = 24 * HOUR

ELSEWHERE: Final = (
    *("_tls_", "_worker_", "_lease_units_held", "_region_"),  # compose sets neither TLS, workers, leases nor regions
    "_settled_cost",  # nothing settles here
    *("_domain_not_found", "_with_local_cache", "_negative_hits", "ratelimit_error", "_failure_mode_allowed"),
)
"""Parts of the names of metrics without series here; tests/deploy/test_dashboards.py has a run with all of them."""


class Run:
    """The deployment, and what is asked of it."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.services = [deployment.container(name, Service) for name in INSTANCES]
        self.envoy = deployment.container("envoy", Envoy)
        self.prometheus = deployment.container("prometheus", Prometheus)

    def get(self, path: str, **headers: str) -> Reply:
        """A request at the port that Envoy publishes; `x_user` is the header x-user."""
        port = self.deployment.published(8888)
        return ask(port, path, {name.replace("_", "-"): value for name, value in headers.items()})

    def ada(self, times: int) -> list[int]:
        """The statuses of so many requests of a user, who has five an hour."""
        return [self.get("/users", x_user="ada").status for _ in range(times)]

    def instances(self, expression: str) -> set[str]:
        """The label `instance` of each series that the expression has."""
        return {series["instance"] for series in self.prometheus.labels(expression)}

    def has_data(self, expression: str) -> bool:
        """Whether it has any series."""
        return bool(self.prometheus.labels(expression))

    def until_alert(self, name: str, state: str, instances: set[str]) -> None:
        """Wait until the alert is pending, or fires, for these instances and no other."""
        alerts = f'ALERTS{{alertname="{name}", alertstate="{state}"}}'
        self.prometheus.wait_until(lambda: self.instances(alerts) == instances, f"{alerts} for {instances}")

    def names(self) -> set[str]:
        """How Prometheus names both instances."""
        return {f"127.0.0.1:{self.deployment.port(name, 8080)}" for name in INSTANCES}

    def troubles(self) -> list[list[str]]:
        """The titles of the banners on each instance's page."""
        pages = [self.deployment.published(port) for port in (6070, 6071)]
        return [[each["what"] for each in json.loads(ask(port, "/status").body)["troubles"]] for port in pages]


def run(folder: Path, say: Say) -> None:
    """All of it. AssertionError when something is not as it should be."""
    with Deployment(folder, {}) as deployment:
        deployment.up(*(name for name in compose() if name not in NOT_NATIVE))
        seen = Run(deployment)
        for tell in (starts, limits, counts_together, loses_redis, regains_redis, loses_an_instance, draws):
            say(f"{tell.__name__.replace('_', ' ')}:")
            tell(seen, lambda text: say(f"  {text}"))


def starts(run: Run, say: Say) -> None:
    """Everything has found everything else."""
    ports = {run.deployment.port(name, 8081) for name in INSTANCES}
    run.envoy.wait_until(lambda: run.envoy.healthy_ports() == ports, "Envoy finds both healthy")
    run.prometheus.wait_until(lambda: run.instances('up{job="ratelimit"} == 1') == run.names(), "both are scraped")
    run.prometheus.wait_until(partial(run.has_data, 'up{job="envoy"} == 1'), "Envoy is scraped")
    assert run.troubles() == [[], []]
    say("Envoy finds both instances healthy, Prometheus scrapes them and Envoy, and no page has a banner")


def limits(run: Run, say: Say) -> None:
    """Envoy asks, and does as it is answered."""
    stay_within(HOUR)
    assert run.ada(6) == [200] * 5 + [429]
    refused = run.get("/users", x_user="ada").headers
    assert refused["x-envoy-ratelimited"] == "true"
    assert refused["x-ratelimit-limit"] == "5, 1000;w=3600, 5;w=3600"
    assert (refused["ratelimit-limit"], refused["ratelimit-remaining"]) == ("5", "0")
    say("the sixth request of a user has 429, with the headers of Envoy and of the service")


def counts_together(run: Run, say: Say) -> None:
    """One Redis has the counters of both."""
    stay_within(HOUR)
    ports = [run.deployment.port(name, 8080) for name in INSTANCES] * 3
    body = json.dumps({"domain": "web", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]})
    assert [ask(port, "/json", method="POST", body=body).status for port in ports] == [200] * 5 + [429]
    port = run.deployment.published(8081)
    load = [sys.executable, "-m", "ratelimit_service", "load", f"127.0.0.1:{port}", "web", "remote_address={key}"]
    done = subprocess.run([*load, "--calls", "100", "--json"], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["allowed"] == 100
    say("asked in turn by POST /json, they allow five in all; the port that is published for gRPC answers 100 calls")
    seen = 'ratelimit_requests_total{domain="web", outcome="allowed"} > 0'
    run.prometheus.wait_until(lambda: run.instances(seen) == run.names(), f"both have {seen}")
    say("Prometheus has requests that each has allowed")


def loses_redis(run: Run, say: Say) -> None:
    """ON_STORE_FAILURE=open: everything passes, and everything says so."""
    run.until_alert("RatelimitStoreLost", "firing", set())
    run.deployment.container("redis", Process).kill()
    assert run.ada(10) == [200] * 10
    say("without Redis, the user who was refused has 200")
    lost = f"Redis at 127.0.0.1:{run.deployment.port('redis', 6379)} is lost"
    eventually(lambda: run.troubles() == [[lost], [lost]], "both pages have the banner")
    say(f"both pages have the banner: {lost}")
    run.until_alert("RatelimitStoreLost", "firing", run.names())
    run.until_alert("RatelimitAnswersByPolicy", "pending", run.names())
    say("RatelimitStoreLost fires for both, RatelimitAnswersByPolicy is pending")


def regains_redis(run: Run, say: Say) -> None:
    """A new one, with nothing in it."""
    run.deployment.restart("redis")
    eventually(lambda: run.troubles() == [[], []], "the banners are gone")
    run.until_alert("RatelimitStoreLost", "firing", set())
    stay_within(HOUR)
    assert run.ada(6) == [200] * 5 + [429]
    say("with a new Redis, banners and alert are gone, and the user has five again, not more")


def loses_an_instance(run: Run, say: Say) -> None:
    """The other one answers."""
    first, second = run.services
    stay_within(DAY, 120)
    assert [run.get("/tokens", x_tokens="50").status for _ in run.services] == [200, 200]
    second.kill()
    run.envoy.wait_until(lambda: run.envoy.healthy_ports() == {first.grpc_port}, "Envoy finds the first one healthy")
    assert [run.get("/tokens", x_tokens="1").status for _ in range(3)] == [429] * 3
    say("with one instance dead, the other one knows that both have spent the day's hundred tokens")
    dead = {f"127.0.0.1:{run.deployment.port(INSTANCES[1], 8080)}"}
    run.until_alert("RatelimitDown", "pending", dead)
    run.deployment.restart(INSTANCES[1])
    run.envoy.wait_until(lambda: len(run.envoy.healthy_ports()) == 2, "Envoy finds both healthy")
    run.until_alert("RatelimitDown", "pending", set())
    say("RatelimitDown is pending for it, until it is back")


def draws(run: Run, say: Say) -> None:
    """What Grafana would ask, where its provisioning says that Prometheus is."""
    provisioning = next(
        each for each in compose()["grafana"]["volumes"] if each["target"] == "/etc/grafana/provisioning"
    )
    read = Path(provisioning["source"], "datasources", "prometheus.yaml").read_text(encoding="utf-8")
    (source,) = run.deployment.rewritten("grafana", yaml.safe_load(read))["datasources"]
    assert source["url"] == f"http://127.0.0.1:{run.prometheus.port}"
    wanted = [query for query in queries() if not any(part in query for part in ELSEWHERE)]
    for query in wanted:
        run.prometheus.wait_until(partial(run.has_data, filled(query)), f"{query} has data")
    say(f"{len(wanted)} of the {len(queries())} queries of the dashboards have data there")


def main() -> None:
    """Say each thing that is true; the logs of all containers, where one is not."""
    logs = StringIO()
    try:
        with TemporaryDirectory() as folder, redirect_stdout(logs):
            run(Path(folder), lambda text: print(text, file=sys.stderr, flush=True))
    except (pytest.skip.Exception, pytest.fail.Exception) as missing:
        sys.exit(str(missing))
    except BaseException:
        print(logs.getvalue())
        raise


if __name__ == "__main__":
    main()
