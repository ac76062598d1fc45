"""Dynamic metadata for Envoy's filters and access logs: the request, metadata of rules, and the rule that decided."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from google.protobuf.struct_pb2 import Struct

from ratelimit_service.limiter.verdict import Verdict
from ratelimit_service.model import Descriptor, Request
from ratelimit_service.rules.response import levels_text
from ratelimit_service.rules.rule import FIRST, Entries, Rule
from ratelimit_service.stores.hit import NO_LIMIT, Hit

MAX_TEXT_LENGTH: Final = 256
"""Characters of each text about a rule; a name or a path of a rules file may be longer than a line of an access log."""


DECIDED: Final = ("refused_by", "soft_limit", "charged_to")
"""The names of what `rule_metadata` says: the rule that refused a request, or whose soft limit it exceeds; and what was
charged of a list with `charge: first`."""

REFUSED_BY, SOFT_LIMIT, CHARGED_TO = DECIDED

Shown = Callable[[str, Entries], Entries]
"""The entries of a request for a domain as they may be shown."""


def dynamic_metadata(verdict: Verdict, request: Request, shown: Shown) -> Struct:
    """The request, and the `metadata` of the rules that were not over their limit."""
    described: dict[str, Any] = {
        "domain": request.domain,
        "descriptors": [
            _describe(descriptor, shown(request.domain, descriptor.entries)) for descriptor in request.descriptors
        ],
    }
    if request.hits_addend:
        described["hitsAddend"] = request.hits_addend
    metadata: dict[str, Any] = {}
    for hit in verdict.hits:
        if hit is not None and hit.limit is not NO_LIMIT and hit.rule.metadata and not hit.over:
            _merge(metadata, hit.rule.metadata)
    if metadata:
        described["metadata"] = metadata
    if verdict.response is not None and verdict.response.rule_metadata:
        described.update(rule_metadata(deciding_rules(verdict)))
    message = Struct()
    message.update(described)
    return message


def deciding_rules(verdict: Verdict) -> Sequence[tuple[str, Rule]]:
    """The rules that decided, each with the name of its metadata.

    The one that refused the request, or whose soft limit it exceeds; and of lists with `charge: first` those charged.
    """
    hit = exceeding_hit(verdict) if verdict.allowed else refusing_hit(verdict)
    found = [] if hit is None else [(SOFT_LIMIT if verdict.allowed else REFUSED_BY, hit.rule)]
    if verdict.allowed:
        firsts = [hit for hit in verdict.hits if hit is not None and hit.rule.together == FIRST]
        found += [(CHARGED_TO, hit.rule) for hit in firsts if not hit.over]
    return found


def rule_metadata(found: Iterable[tuple[str, Rule]]) -> dict[str, Any]:
    """The metadata about rules: the name in metrics, the `name`, and where it stands in the rules files.

    Of what was charged the `name` alone, of several lists with a comma between them.
    """
    metadata: dict[str, Any] = {}
    for key, rule in found:
        if key == CHARGED_TO:
            metadata[key] = f"{metadata[key]}, {_shortened(rule.name)}" if key in metadata else _shortened(rule.name)
            continue
        described = {"domain": rule.domain, "rule": levels_text(rule), "name": rule.name}
        if rule.place is not None:
            described["place"] = rule.place.short
        metadata[key] = {name: _shortened(text) for name, text in described.items() if text}
    return metadata


def refusing_hit(verdict: Verdict) -> Hit | None:
    """The hit that the response reports of a refused request: the last one denied, quotas only if there is no other."""
    found: Hit | None = None
    for hit in verdict.hits:
        if hit is not None and hit.over and (found is None or found.quota or not hit.quota):
            found = hit
    return found


def exceeding_hit(verdict: Verdict) -> Hit | None:
    """The hit that is furthest above its limit, as its `exceed` option allows; None if no hit is."""
    found: Hit | None = None
    most = 0
    for hit in verdict.limits:
        if hit is None or not hit.decision.allowed or not hit.decision.over or hit.rule.shadow:
            continue
        above = hit.exceeds_by
        if above > most and hit.limit.tells_excess:
            found, most = hit, above
    return found


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 1]}…"


def _describe(descriptor: Descriptor, shown: Entries) -> dict[str, Any]:
    described: dict[str, Any] = {"entries": [f"{key}={value}" for key, value in shown]}
    limit = descriptor.override
    if limit is not None:
        requests = f"requests_per_unit:{limit.requests} " if limit.requests else ""
        described["limit"] = f"{requests}unit:{limit.unit.name}"
    if descriptor.hits_addend is not None:
        described["hitsAddend"] = descriptor.hits_addend
    return described


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add keys that are missing, in nested maps too. `more` belongs to a rule and is not changed."""
    for key, value in more.items():
        if isinstance(value, Mapping):
            mine = into.setdefault(key, {})
            if isinstance(mine, dict):
                _merge(mine, value)
        else:
            into.setdefault(key, value)
