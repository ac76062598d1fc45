"""Each recipe of docs/recipes.md does what it says: its commands, and then a real Envoy with its half.

One service has the rules of all recipes, one Envoy a listener for each half. The commands of a recipe use up a limit;
Envoy then asks about the same counter, so a request is refused only if its descriptors are those of the commands.
"""

import http.client
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.clocks import stay_within
from tests.deploy.test_console import RECIPES, Shell, Typed, commands, masked, path_with_ratelimit
from tests.envoy.proxy import Envoy, Json, bootstrap, start_envoy
from tests.processes import ROOT, Reply, ask, start_service

pytestmark = pytest.mark.extended

_PAID: Final = {"x-user": "ada", "x-plan": "premium"}
_CLOSED: Final = 0
"""In place of a status: the connection is closed without an answer."""
_GRPC: Final = {"x-user": "ada", "content-type": "application/grpc"}


class Asked(NamedTuple):
    """A request to one of a recipe's Envoys, after its commands, and the status that it gets."""

    headers: dict[str, str]
    status: int
    envoy: int = 0
    path: str = "/"


def by_address(client: str, status: int, **more: Any) -> Asked:
    return Asked({"x-forwarded-for": client}, status, **more)


ASKED: Final = {
    "Login by address": [by_address("203.0.113.7", 429), by_address("203.0.113.8", 200)],
    "Failed logins": [by_address("203.0.113.7", 429), by_address("203.0.113.8", 200)],
    "API tiers": [Asked({"x-api-key": "k-unknown"}, 429), Asked({"x-api-key": "k-7f3a91"}, 200), Asked({}, 200)],
    "Per tenant and in all": [Asked({"x-tenant": "acme"}, 429), Asked({"x-tenant": "other"}, 200)],
    "Shares that lend": [
        Asked({"x-team": "red"}, 429),
        Asked({"x-team": "blue"}, 429),
        Asked({"x-team": "green"}, 200),
    ],
    "Soft launch": [Asked({"x-user": "ada"}, 200)],
    "IPv6 by network": [
        by_address("2001:db8:1:2::abc", 429),
        by_address("2001:db8:1:3::1", 200),
        by_address("2001:db8:1:2::abc", 429, envoy=1),
        by_address("2001:db8:1:3::1", 200, envoy=1),
    ],
    "Ban": [by_address("203.0.113.7", 429), by_address("203.0.113.8", 200)],
    "Monthly quota": [Asked({"x-customer": "acme"}, 429), Asked({"x-customer": "other"}, 200)],
    "Several windows": [Asked({"x-user": "ada"}, 429), Asked({"x-user": "eve"}, 200)],
    "Premium override": [
        Asked({"x-user": "ada"}, 429),
        Asked(_PAID, 200),
        Asked({"x-user": "bob"}, 429),
        Asked({"x-user": "bob"}, 200, envoy=1),
    ],
    "Requests at once": [Asked({}, 429)],
    "gRPC": [
        Asked(_GRPC, 200, path="/shop.v1.Search/Query"),
        Asked({"x-user": "eve"}, 200, path="/shop.v1.Search/Query"),
    ],
    "Even pace": [Asked({}, 429)],
    "TCP": [Asked({}, _CLOSED)],
}
"""For each recipe what is then sent through Envoy."""


def without_times(text: str) -> str:
    """Also without those of headers, which are numbers alone."""
    return re.sub(r"(Retry-After: |;t=)\d+", r"\1…", masked(text))


@dataclass
class Recipe:
    """What stands below a heading."""

    typed: list[Typed]
    rules: str = ""
    files: dict[str, str] = field(default_factory=dict)
    envoys: list[Json] = field(default_factory=list)

    @property
    def domain(self) -> str:
        """Of its rules, and of the filter in its Envoys."""
        return str(yaml.safe_load(self.rules)["domain"])


def recipes() -> dict[str, Recipe]:
    """All of the document, by heading."""
    found: dict[str, Recipe] = {}
    for section in re.split(r"^## ", (ROOT / RECIPES).read_text("utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        recipe = found[heading] = Recipe(commands(text))
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            if block.startswith("domain:"):
                recipe.rules = block
            elif language == "yaml":
                recipe.envoys.append(yaml.safe_load(block))
            elif not language:
                recipe.files[block.partition("\n")[0].removeprefix("# ")] = block
    return found


def listener(name: str, recipe: Recipe, half: Json, grpc_port: int) -> Json:
    """With this half of the recipe; clusters are the test's own, and there is time for a busy machine."""
    patient = {"timeout": "60s", "failure_mode_deny": True}
    filters = {each["name"]: each for each in half.get("http_filters", ())}
    options = filters.pop("envoy.filters.http.ratelimit", {"typed_config": {"domain": recipe.domain}})["typed_config"]
    made = {"match": {"prefix": "/"}, "route": {**half.get("route", {}), "cluster": "echo"}}
    made["typed_per_filter_config"] = half.get("typed_per_filter_config", {})
    configuration = bootstrap([grpc_port], [made], filter_options=options | patient, filters_before=[*filters.values()])
    listener: Json = configuration["static_resources"]["listeners"][0]
    if "filters" in half:
        limit, proxy = half["filters"]
        limit["typed_config"] |= patient
        proxy["typed_config"]["cluster"] = "echo"
        listener["filter_chains"][0]["filters"] = [limit, proxy]
    return listener | {"name": name}


def envoys(grpc_port: int) -> Json:
    """One Envoy with a listener for each half of each recipe. What stands behind refuses logins at /failed."""
    configuration = bootstrap([grpc_port], [])
    behind = configuration["static_resources"]["listeners"][1]
    hosts = behind["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
    hosts[0]["routes"].insert(0, {"match": {"prefix": "/failed"}, "direct_response": {"status": 401}})
    configuration["static_resources"]["listeners"] += [
        listener(f"{recipe.domain}-{number}", recipe, half, grpc_port)
        for recipe in recipes().values()
        for number, half in enumerate(recipe.envoys)
    ]
    return configuration


@dataclass
class Place:
    """A shell, beside a service and an Envoy that have all recipes."""

    shell: Shell
    envoy: Envoy

    def printed(self, command: str) -> str:
        """What a command prints, with the port that the document names."""
        return self.shell.run(command).stdout.replace(f"localhost:{self.shell.service.debug_port}", "localhost:6070")

    def send(self, recipe: Recipe, asked: Asked) -> Reply:
        """A request through one of the recipe's Envoys."""
        try:
            return ask(self.envoy.port_of(f"{recipe.domain}-{asked.envoy}"), asked.path, asked.headers)
        except (http.client.RemoteDisconnected, ConnectionResetError):
            return Reply(_CLOSED, {}, "")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "rules").mkdir()
    for recipe in recipes().values():
        (folder / "rules" / f"{recipe.domain}.yaml").write_text(recipe.rules, encoding="utf-8")
        for name, text in recipe.files.items():
            (folder / "rules" / name).write_text(text, encoding="utf-8")
    path = path_with_ratelimit(folder)
    with start_service(folder, folder / "rules", {"RULES_PATH": "rules"}) as service:
        environ = {
            "RULES_PATH": "rules",
            "DEBUG_PORT": str(service.debug_port),
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "USER": "ada",
        }
        with start_envoy(folder / "envoy", envoys(service.grpc_port)) as envoy:
            yield Place(Shell(folder, service, environ), envoy)


def test_the_rules_of_all_recipes_load_without_a_warning(place: Place) -> None:
    done = place.shell.run("ratelimit check rules")

    assert re.match(r"\d+ rules in 15 domains are good\n", done.stdout)
    assert "warning" not in done.stdout


@pytest.mark.parametrize("heading", ASKED)
def test_a_recipe_does_what_it_says(place: Place, heading: str) -> None:
    recipe = recipes()[heading]
    stay_within(60)
    for typed in recipe.typed:
        assert without_times(place.printed(typed.command)) == without_times(typed.shown), typed.command
    for asked in ASKED[heading]:
        assert place.send(recipe, asked).status == asked.status, asked


def test_every_recipe_is_run_with_its_envoy() -> None:
    headings = {heading for heading, recipe in recipes().items() if recipe.typed and recipe.envoys}

    assert headings == set(recipes()) == set(ASKED)


def test_the_fifth_failed_login_blocks_and_none_that_succeeds(place: Place) -> None:
    recipe = recipes()["Failed logins"]
    good, failed = by_address("203.0.113.9", 200), by_address("203.0.113.9", 401, path="/failed")
    stay_within(600)
    for status in (200, 200, 200, 200, 200, 200):
        assert place.send(recipe, good).status == status
    for status in (401, 401, 401, 401, 401):
        assert place.send(recipe, failed).status == status

    place.envoy.wait_until(lambda: place.send(recipe, good).status == 429, "the address is blocked")


def test_a_refused_grpc_call_ends_with_resource_exhausted(place: Place) -> None:
    recipe = recipes()["gRPC"]
    asked = Asked({"x-user": "bob", "content-type": "application/grpc"}, 200, path="/shop.v1.Search/Query")
    ends = [place.send(recipe, asked).headers.get("grpc-status") for _ in range(6)]

    assert ends == ["2"] * 5 + ["8"]
