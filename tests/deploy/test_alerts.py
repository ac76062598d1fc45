"""deploy/alerts.yaml: Prometheus takes it, each alert fires when it should, and all of it is documented.

The series of tests/deploy/alerts*.yaml are given to Prometheus's own promtool. deploy/alertmanager.yaml inhibits some.
"""

import re
import subprocess
from collections import defaultdict
from typing import Any, Final

import pytest
import yaml

from tests import peers
from tests.processes import ROOT

pytestmark = pytest.mark.extended

ALERTS: Final = "deploy/alerts.yaml"
CASES: Final = ("tests/deploy/alerts.yaml", "tests/deploy/alerts_of_days.yaml")


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def alerts() -> dict[str, Any]:
    """By name, in order."""
    return {rule["alert"]: rule for group in load(ALERTS)["groups"] for rule in group["rules"]}


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(peers.promtool()), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_prometheus_takes_the_alerts() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(alerts())} rules found" in checked.stdout


def test_each_case_fires_the_alerts_that_it_says() -> None:
    """Redis lost under ON_STORE_FAILURE=open among them: nothing else of the service tells of it."""
    tested = promtool("test", "rules", *CASES)

    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    fires = defaultdict(set)
    for case in [case for path in CASES for case in load(path)["tests"]]:
        for moment in case["alert_rule_test"]:
            fires[moment["alertname"]].add("exp_alerts" in moment)

    assert fires == {name: {True, False} for name in alerts()}


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_how_urgent_it_is_and_links_to_what_to_do(name: str) -> None:
    alert = alerts()[name]

    assert alert["labels"] == {"severity": alert["labels"]["severity"]}
    assert alert["labels"]["severity"] in {"page", "ticket"}
    assert alert["annotations"].keys() == {"summary", "runbook"}
    assert alert["annotations"]["runbook"] == f"docs/alerts.md#{name.lower()}"


def test_the_documents_have_the_same_alerts() -> None:
    """Each has a heading with a paragraph in docs/alerts.md, and a line in the table there."""
    text = (ROOT / "docs" / "alerts.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\w+)\n\n\S", text, re.MULTILINE)
    rows = re.findall(r"^\| \[(\w+)\]\(#(\w+)\) \| [^|]+ \| ([^|]+) \| (\w+) \|$", text, re.MULTILINE)

    assert headings == list(alerts())
    assert rows == [
        (name, name.lower(), alert.get("for", "at once"), alert["labels"]["severity"])
        for name, alert in alerts().items()
    ]


def test_an_alert_is_inhibited_by_its_cause_alone_and_by_labels_that_both_have() -> None:
    """A label that is missing on both sides is equal, too: then any instance's alert would inhibit all others'."""
    labels = {
        moment["alertname"]: fired["exp_labels"].keys()
        for path in CASES
        for case in load(path)["tests"]
        for moment in case["alert_rule_test"]
        for fired in moment.get("exp_alerts", [])
    }
    pairs = []
    for rule in load("deploy/alertmanager.yaml")["inhibit_rules"]:
        [cause] = re.findall(r"^alertname = (\w+)$", rule["source_matchers"][0])
        [effects] = re.findall(r"^alertname =~? \"?([\w|]+)\"?$", rule["target_matchers"][0])
        for effect in effects.split("|"):
            pairs.append((cause, effect))
            assert {*rule.get("equal", [])} <= labels[cause] & labels[effect]

    assert ("RatelimitStoreLost", "RatelimitSlow") in pairs
    assert {effect: cause for cause, effect in pairs if (effect, cause) in pairs} == {}
