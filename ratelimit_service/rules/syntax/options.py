"""The keys of a rules file, each declared once: `reading.py` reads them, `schema.py` makes the JSON Schema of them.

A test checks that docs/rules.md and config/every-option.yaml have each of them.

To add an option: an entry in `OPTIONS`, which names the field that it sets, and that field in `rule.Rule`, or in
`model.Limit` when it changes how a limit counts. What needs more than its own value is read in `files/`.
"""

from enum import StrEnum
from typing import Any, NamedTuple

from ratelimit_service.algorithms import BUCKETS, NAMES, PLACES
from ratelimit_service.algorithms.kinds.places import MOST
from ratelimit_service.model import MAX_FIELD, RegionMode
from ratelimit_service.rules.response import HEADERS
from ratelimit_service.rules.syntax.values import (
    CEILING,
    COUNT,
    DELAY,
    DURATION,
    EXCESS,
    FLAG,
    FLOOR,
    HOLD,
    JITTER,
    JSON,
    NAME,
    QUOTA_UNIT,
    START,
    TEXT,
    TEXTS,
    UNIT,
    ZONE,
    ValueType,
    choice,
    choices,
    count,
    map_of,
    map_or_maps_of,
    maps_of,
)
from ratelimit_service.system import calendar


class MapType(StrEnum):
    """A type of map in a rules file. The value is the place in error messages."""

    FILE = "at the top of the file"
    DEFAULTS = "in defaults"
    DESCRIPTOR = "in a descriptor"
    RATE_LIMIT = "in rate_limit"
    CALENDAR = "in calendar"
    QUEUE = "in queue"
    RESERVE = "in reserve"
    REPLACES = "in an entry of replaces"
    PREFIX = "in prefix"
    OTHERWISE = "in otherwise"
    LOOKUP = "in lookup"
    POOL = "in pools"
    ELASTIC = "in elastic"


class Option(NamedTuple):
    """A key of a rules file: the maps that may have it, its type, its help text."""

    key: str
    maps: tuple[MapType, ...]
    type: ValueType
    help: str
    default: Any = None
    """The value of an absent key; None when there is no such value."""
    missing: str = ""
    """The error message when a required key is absent; empty for an optional key."""
    algorithms: tuple[str, ...] = NAMES
    """The algorithms that use it."""
    rule_field: str = ""
    """The field of Rule that has its value."""
    limit_field: str = ""
    """The field of Limit that has its value."""
    former: str = ""
    """An earlier name of the key, which is accepted in its place."""


MAX_PARTS = 1000
"""Each part of a window is a number in the counter's state, and a hit adds up all of them. A thousand parts keep the
limit to a thousandth of the window; more parts would cost time and gain nothing."""

MAX_PRIORITY = 1_000_000

OPTIONS = (
    Option(
        "domain",
        (MapType.FILE,),
        NAME,
        "The namespace of the file's rules, which Envoy's ratelimit filter sends. Required; a file has one, and no two "
        'files the same unless MERGE_DOMAIN_CONFIG is set. "*" has the rules for all domains without a file.',
        missing="the file has no domain; it must begin with one, such as domain: shop",
    ),
    Option(
        "key",
        (MapType.DESCRIPTOR,),
        NAME,
        "The key of the entry. Required.",
        missing="a descriptor must have a key",
    ),
    Option(
        "value",
        (MapType.DESCRIPTOR,),
        TEXT,
        "The value of the entry. Without it the descriptor matches every value that no sibling matches, and each value "
        "has its own counter. A `*` matches any text, also the empty one.",
        "",
    ),
    Option(
        "hash_values",
        (MapType.DESCRIPTOR,),
        FLAG,
        "The values of this key are secrets, such as API keys, in the whole domain: counters, logs, metrics, pages and "
        "responses have a digest in place of each, made with the setting HASH_KEY. In value a digest may stand too.",
        False,
    ),
    Option(
        "values",
        (MapType.DESCRIPTOR,),
        TEXTS,
        "In place of value: the values that the descriptor matches, each with a counter of its own. One look-up finds "
        "a value, however many there are. An address matches however it is written.",
    ),
    Option(
        "values_from",
        (MapType.DESCRIPTOR,),
        NAME,
        "In place of values: the path of a data file with a line for each value. It is loaded again when it changes. A "
        "name after the value, with a comma between them, is ignored.",
    ),
    Option(
        "cidr",
        (MapType.DESCRIPTOR,),
        TEXTS,
        "In place of value: the networks whose addresses the descriptor matches, such as 10.0.0.0/8 or 2001:db8::/32. "
        "Of several networks at a level with an address, the longest prefix wins.",
    ),
    Option(
        "regex",
        (MapType.DESCRIPTOR,),
        NAME,
        "In place of value: a regular expression, in the syntax of RE2, that the whole value must match. A dot matches "
        "any character but the end of a line.",
    ),
    Option(
        "not",
        (MapType.DESCRIPTOR,),
        FLAG,
        "Match the values that value, values, cidr or regex beside it does not.",
        False,
    ),
    Option(
        "prefix",
        (MapType.DESCRIPTOR,),
        map_of("prefix"),
        "Count addresses by prefix, so that a client cannot escape its limit with another address of its network.",
        former="group",
    ),
    Option(
        "ipv4",
        (MapType.PREFIX,),
        count(1, 32),
        "The length of the prefix by which IPv4 addresses are counted.",
        32,
    ),
    Option(
        "ipv6",
        (MapType.PREFIX,),
        count(1, 128),
        "The length of the prefix by which IPv6 addresses are counted; most customers have a /64 or more.",
        128,
    ),
    Option(
        "priority",
        (MapType.DESCRIPTOR,),
        count(-MAX_PRIORITY, MAX_PRIORITY),
        "Of the descriptors of a level that match, the one with the highest priority is taken, before everything else.",
        0,
    ),
    Option(
        "label",
        (MapType.DESCRIPTOR,),
        NAME,
        "What the level is called after its key, in metrics and in the keys of shared counters, in place of what "
        "stands in values or cidr. With it, a changed list keeps its metrics and its shared counter.",
    ),
    Option(
        "rate_limit",
        (MapType.DESCRIPTOR, MapType.OTHERWISE),
        map_of("rate_limit"),
        "The limit for requests whose last entry matches this descriptor. Without it they are not limited.",
    ),
    Option(
        "rate_limits",
        (MapType.DESCRIPTOR, MapType.OTHERWISE),
        maps_of("rate_limit"),
        "Several limits for the same requests, in place of rate_limit. They are decided together: a hit that one of "
        "them denies is not charged to the others.",
    ),
    Option(
        "charge",
        (MapType.FILE,),
        choice(("each", "together")),
        "together: if one of these limits denies its hit, the request is charged to none of them. each: every limit is "
        "charged by itself, as in Envoy. At the top of the file it applies to all its descriptors.",
    ),
    Option(
        "charge",
        (MapType.DESCRIPTOR, MapType.OTHERWISE),
        choice(("each", "together", "first")),
        "each and together: as at the top of the file. first: in the order of rate_limits the first one that has room "
        "is charged, and no other; a request is refused when none has.",
    ),
    Option(
        "settle",
        (MapType.FILE,),
        NAME,
        "A key: a descriptor whose last entry has it says what a request has cost, such as tokens or bytes, when that "
        "is known. It is charged in full to the counter of the descriptor without that entry, also above the limit.",
    ),
    Option(
        "headers",
        (MapType.FILE,),
        choices(HEADERS),
        "The headers of the domain's responses about its limits. ratelimit: RateLimit-Limit, RateLimit-Remaining and "
        "RateLimit-Reset, as envoyproxy/ratelimit sends them; x_ratelimit: the same with X- and the windows, as Envoy "
        "writes them; ietf: RateLimit-Policy and RateLimit of the IETF's draft. An empty list: none. Without it, the "
        "settings RESPONSE_HEADERS and LIMIT_RESPONSE_HEADERS_ENABLED apply.",
    ),
    Option(
        "retry_after",
        (MapType.FILE,),
        FLAG,
        "Send Retry-After when a request is refused, unless waiting does not help. Without it, the setting "
        "RESPONSE_RETRY_AFTER applies.",
    ),
    Option(
        "retry_after_jitter",
        (MapType.FILE,),
        JITTER,
        "The most by which the waits in a refusal are lengthened at random, so that refused callers do not come back "
        "all at once: a share of the wait, such as 10%, or a time, such as 5s. 0%: not at all. Without it, "
        "the setting RESPONSE_RETRY_AFTER_JITTER applies.",
    ),
    Option(
        "problem_body",
        (MapType.FILE,),
        FLAG,
        "Send a body of application/problem+json (RFC 9457) when a request is refused, always the same one. Without "
        "it, the setting RESPONSE_PROBLEM_BODY applies.",
    ),
    Option(
        "rule_metadata",
        (MapType.FILE,),
        FLAG,
        "Send Envoy the rule that refused a request, or that it exceeds by a soft limit, and the limit of a list "
        "with charge: first that was charged, as dynamic metadata: refused_by, soft_limit, charged_to. Without "
        "it, the setting RESPONSE_RULE_METADATA applies.",
    ),
    Option(
        "defaults",
        (MapType.FILE,),
        map_of("defaults"),
        "Default values for the limits of the file. A default that a limit's algorithm does not use is ignored.",
    ),
    Option(
        "otherwise",
        (MapType.FILE,),
        map_of("otherwise"),
        "The limit for requests that no descriptor fits. A descriptor with neither rate_limit nor descriptors is an "
        "exemption from it.",
        former="default",
    ),
    Option(
        "lookup",
        (MapType.FILE,),
        map_or_maps_of("lookup"),
        "Turns entries with a key into others before they are matched, by a data file, such as API keys into tiers. "
        "The counter is still that of the original entry. A list has several, for different keys.",
        [],
    ),
    Option(
        "from",
        (MapType.LOOKUP,),
        NAME,
        "The data file: a line value,name for each value. Relative to the folder of the rules file. Required.",
        missing="a lookup must have from, the path of a file with lines value,name",
    ),
    Option(
        "key",
        (MapType.LOOKUP,),
        NAME,
        "The key of the entries whose values are looked up. Required.",
        missing="a lookup must have the key of the entries whose values are looked up",
    ),
    Option(
        "as",
        (MapType.LOOKUP,),
        NAME,
        "The key of the entry that is matched instead; its value is the name in the file. Required.",
        missing="a lookup must have as, the key of the entry that is matched instead",
    ),
    Option(
        "hash_values",
        (MapType.LOOKUP,),
        FLAG,
        "The values of this key are secrets in the whole domain, as by hash_values of a descriptor. The file has "
        "values, or digests of values.",
        False,
    ),
    Option(
        "else",
        (MapType.LOOKUP,),
        NAME,
        "The name for values that the file does not have. Without it their entries stay as they are.",
    ),
    Option(
        "pools",
        (MapType.FILE,),
        map_or_maps_of("pool"),
        "Rates that limits with elastic share: what some leave idle, others borrow.",
        [],
    ),
    Option(
        "name",
        (MapType.POOL,),
        NAME,
        "The name of the pool, for elastic of its members. Required.",
        missing="a pool must have a name, for elastic of its members",
    ),
    Option(
        "unit",
        (MapType.POOL,),
        UNIT,
        'The window of the pool, such as second or "5 seconds"; its members have the same one. Required.',
        missing="a pool must have a unit, the one of its members, such as unit: second",
    ),
    Option(
        "requests_per_unit",
        (MapType.POOL,),
        count(1),
        "The number of requests that all members together should send in one window. Required.",
        missing="a pool must have requests_per_unit, what all members together should send",
    ),
    Option(
        "burst",
        (MapType.POOL,),
        count(1),
        "What the pool allows at once after a pause. Without it a tenth of requests_per_unit, at least 1.",
    ),
    Option(
        "reserve",
        (MapType.POOL,),
        COUNT,
        "The part of the burst that loans leave free. Without it 0, or half the burst if a member is strict.",
    ),
    Option(
        "descriptors",
        (MapType.FILE, MapType.DESCRIPTOR),
        maps_of("descriptor"),
        "The descriptors of this level; below a descriptor, those for the next entry.",
        [],
    ),
    Option(
        "unit",
        (MapType.RATE_LIMIT,),
        UNIT,
        'The length of the window, such as minute, 90s or "5 minutes". A month is 30 days and a year 365; fixed '
        "windows are counted from 1970-01-01 in UTC, so that days begin at midnight and weeks on Thursday. Required "
        "unless unlimited, allow, deny, concurrency or calendar.",
    ),
    Option(
        "unit_multiplier",
        (MapType.RATE_LIMIT,),
        count(1, MAX_FIELD),
        "The number of units in the window, if unit contains no number.",
    ),
    Option(
        "requests_per_unit",
        (MapType.RATE_LIMIT,),
        COUNT,
        "The number of requests allowed in one window; 0 denies all. Required unless unlimited, allow, deny "
        "or concurrency.",
    ),
    Option(
        "concurrency",
        (MapType.RATE_LIMIT,),
        count(0, MOST),
        "In place of requests_per_unit and unit: the number of requests that may be under way at once. Each takes a "
        "place, and gives it back when it ends, by a request for the same descriptor with is_negative_hits.",
    ),
    Option(
        "hold",
        (MapType.RATE_LIMIT,),
        HOLD,
        'The time after which a place that nothing gave back is free again, such as 60s or "5 minutes": more than the '
        "longest request takes. Required with concurrency.",
        algorithms=(PLACES,),
    ),
    Option(
        "place",
        (MapType.RATE_LIMIT,),
        NAME,
        "The key of the entry that names the request which holds the place, such as request_id: of this descriptor or "
        "of one above it, which has no value. Its values share the counter. Required with concurrency.",
        algorithms=(PLACES,),
    ),
    Option(
        "algorithm",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        choice(NAMES),
        "The algorithm that counts.",
        "fixed_window",
    ),
    Option(
        "burst",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        count(1),
        "The capacity of the bucket; without it requests_per_unit.",
        algorithms=BUCKETS,
        limit_field="burst",
    ),
    Option(
        "queue",
        (MapType.RATE_LIMIT,),
        map_of("queue"),
        "In place of refusing, answer later, one after the other at the limit's rate. The capacity is max_delay; it "
        "takes the place of burst.",
        algorithms=("leaky_bucket",),
    ),
    Option(
        "max_delay",
        (MapType.QUEUE,),
        DELAY,
        'The longest time that a request may wait for its turn, up to a minute, such as 200ms or "2 seconds"; one that '
        "would wait longer, or beyond its caller's deadline, is refused at once. Envoy's filter needs a timeout that "
        "is at least 50 ms longer. Required.",
        missing="queue has no max_delay; write one, such as queue: {max_delay: 200ms}",
    ),
    Option(
        "reserve",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        map_of("reserve"),
        "A request is charged what it may cost, under its id; settled by that id, the rest goes back, or the overrun "
        "is charged. The file needs settle.",
        algorithms=("fixed_window", "sliding_window", "sub_windows", *BUCKETS),
    ),
    Option(
        "id",
        (MapType.RESERVE,),
        NAME,
        "The key of the entry that names the request, such as request_id: of this descriptor or of one above it, which "
        "has no value. Its values share the counter. Required.",
        missing="reserve has no id, the key of the entry that names each request, such as id: request_id",
    ),
    Option(
        "hold",
        (MapType.RESERVE,),
        HOLD,
        'The time for which an id can be settled, such as "5 minutes": more than the longest request takes. One that '
        "is not settled stays charged. Required.",
        missing="reserve has no hold; write more than the longest request takes, such as hold: 5 minutes",
    ),
    Option(
        "estimate",
        (MapType.RESERVE,),
        count(1),
        "What a request reserves that does not say its cost. Without it such a request reserves 1.",
    ),
    Option(
        "at_most",
        (MapType.RESERVE,),
        EXCESS,
        "The most that a request reserves, whatever cost it says: a number, or a share of the limit, or of the burst "
        "if that is less.",
        "50%",
    ),
    Option(
        "parts",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        count(2, MAX_PARTS),
        "The number of parts of the window: with more parts, room returns sooner and a counter is larger.",
        10,
        algorithms=("sub_windows",),
        limit_field="parts",
    ),
    Option(
        "anchor",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        choice(("calendar", "first_request")),
        "When a window begins: calendar: aligned to 1970-01-01 in UTC; first_request: with the first request.",
        "calendar",
        algorithms=("fixed_window",),
    ),
    Option(
        "calendar",
        (MapType.RATE_LIMIT,),
        map_of("calendar"),
        "Windows of a calendar in place of unit: days, weeks, months, quarters or years of a time zone.",
        algorithms=("fixed_window",),
    ),
    Option(
        "unit",
        (MapType.CALENDAR,),
        choice(calendar.UNITS),
        "The window: a day, week, month, quarter or year of the calendar. Required.",
        missing="calendar has no unit; write one, such as unit: month",
    ),
    Option(
        "start",
        (MapType.CALENDAR,),
        START,
        'When a window begins: of a day the time, such as "06:00"; of a month the day, 1 to 31; of a quarter or a year '
        'month and day, such as "04-06". A month without that day begins on its last one. Without it a day begins at '
        "midnight, the others on the first.",
    ),
    Option(
        "week",
        (MapType.CALENDAR,),
        choice(calendar.WEEKDAYS),
        "The day on which a week begins.",
        "monday",
    ),
    Option(
        "zone",
        (MapType.CALENDAR,),
        ZONE,
        "The time zone whose clocks say when a window begins, by its IANA name, such as Europe/Berlin.",
        "UTC",
    ),
    Option(
        "count_refused",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        FLAG,
        "Charge denied hits too. Without it true for a fixed_window, as in Envoy, and false for others.",
    ),
    Option(
        "exceed",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        EXCESS,
        "The amount above the limit that is still allowed, with a metric of its own: a number, or a share such as 10%.",
        0,
    ),
    Option(
        "elastic",
        (MapType.RATE_LIMIT,),
        map_of("elastic"),
        "The limit may be exceeded, out of what the other members of a pool leave idle. It is counted by sub_windows.",
        algorithms=("sub_windows",),
    ),
    Option(
        "pool",
        (MapType.ELASTIC,),
        NAME,
        "The name of a pool of the domain. All that the limit allows is charged to it too. Required.",
        missing="elastic must have the name of a pool, such as elastic: {pool: checkout, ceiling: 200%}",
    ),
    Option(
        "ceiling",
        (MapType.ELASTIC,),
        CEILING,
        "How many are allowed in one window at most, with what is borrowed: a number, or a share of requests_per_unit "
        "such as 250%. Required.",
        missing="elastic must have a ceiling, how many are allowed with what is borrowed, such as ceiling: 200%",
    ),
    Option(
        "strict",
        (MapType.ELASTIC,),
        FLAG,
        "What is within the limit waits for the pool too, so that the pool is not exceeded. Without it the limit is a "
        "right: it is allowed whatever the pool has.",
        False,
    ),
    Option(
        "block_for",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        DURATION,
        'The time for which a denial blocks the counter, such as 15m or "15 minutes": it denies every hit until then, '
        "and charges none.",
    ),
    Option(
        "block_up_to",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        DURATION,
        "The longest block. Each is twice as long as the one before it, until the counter was not blocked for as long "
        "as the last block lasted. Without it all are as long as block_for.",
    ),
    Option(
        "on_store_failure",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        choice(("error", "open", "closed", "local")),
        "The answer while Redis is unavailable: error: UNAVAILABLE, open: allow, closed: deny, local: count in this "
        "process, with its share of the limit. Without it, the setting ON_STORE_FAILURE applies.",
        rule_field="on_store_failure",
    ),
    Option(
        "lease",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        choice(("auto", "off")),
        "auto: a process may charge some units of a hot counter in Redis in advance, and allow requests without Redis "
        "until they are used up, or for a tenth of the window. All together allow no more than the limit. Without it, "
        "the setting LEASES applies.",
    ),
    Option(
        "regions",
        (MapType.RATE_LIMIT,),
        choice(RegionMode),
        "How the regions that the setting REGIONS names share the limit. leased: each leases what it spends from the "
        "home Redis; central: all count there; split: each has an equal part; synced: each counts by itself, and "
        "learns there what the others have counted. Without it each has the whole limit.",
    ),
    Option(
        "floor",
        (MapType.RATE_LIMIT,),
        FLOOR,
        "The share of the limit, such as 10%, that each region keeps for itself even when it is cut off from the home "
        "Redis. Only with regions: leased.",
    ),
    Option(
        "quota_unit",
        (MapType.RATE_LIMIT, MapType.DEFAULTS),
        QUOTA_UNIT,
        "What the limit counts, if requests are sent with what they cost, a word such as tokens: the qu of the header "
        "RateLimit-Policy. It does not change how the limit counts.",
        "requests",
        rule_field="quota_unit",
    ),
    Option(
        "unlimited",
        (MapType.RATE_LIMIT,),
        FLAG,
        "No limit: requests are allowed, and counted in the metrics.",
        False,
    ),
    Option(
        "allow",
        (MapType.RATE_LIMIT,),
        FLAG,
        "The same as unlimited: requests are allowed, and counted in the metrics. It says nothing about the other "
        "descriptors of a request.",
        False,
    ),
    Option(
        "deny",
        (MapType.RATE_LIMIT,),
        FLAG,
        "Requests are always denied, and counted in the metrics, without a counter and without a time to come back.",
        False,
        rule_field="deny",
    ),
    Option(
        "for",
        (MapType.RATE_LIMIT,),
        DURATION,
        "The time that a request which `deny` refuses is told to wait, such as 1h, in Retry-After and in "
        "duration_until_reset. Only with deny: of a limit it follows from the counter.",
        rule_field="retry_after",
        former="retry_after",
    ),
    Option(
        "name",
        (MapType.RATE_LIMIT,),
        TEXT,
        "A name of the limit, for `replaces` of other limits. Responses have it too.",
        "",
        rule_field="name",
    ),
    Option(
        "name",
        (MapType.REPLACES,),
        NAME,
        "The name of the limit that is replaced.",
        missing="an entry of replaces must have the name of a limit",
    ),
    Option(
        "replaces",
        (MapType.RATE_LIMIT,),
        maps_of("replaces"),
        "The limits that do not apply to a request to which this one applies.",
        [],
    ),
    Option(
        "shadow_mode",
        (MapType.DESCRIPTOR, MapType.OTHERWISE),
        FLAG,
        "Try the limit: it is counted and reported, but denies nothing.",
        False,
        rule_field="shadow",
    ),
    Option(
        "quota_mode",
        (MapType.DESCRIPTOR, MapType.OTHERWISE),
        FLAG,
        "The limit is a quota: a request is refused when all its quotas are used up.",
        False,
        rule_field="quota",
    ),
    Option(
        "detailed_metric",
        (MapType.DESCRIPTOR, MapType.OTHERWISE),
        FLAG,
        "The rule's metrics have the request's values at all levels. Not inherited.",
        False,
        rule_field="detailed",
    ),
    Option(
        "value_to_metric",
        (MapType.DESCRIPTOR,),
        FLAG,
        "Metrics of this rule and of those below have the request's value at this level, unless the rule has a value "
        "without a `*`.",
        False,
    ),
    Option(
        "share_threshold",
        (MapType.DESCRIPTOR,),
        FLAG,
        "All values that the descriptor matches by a `*`, values, cidr, regex or not share one counter, instead of one "
        "each.",
        False,
    ),
    Option(
        "share_threshold",
        (MapType.OTHERWISE,),
        FLAG,
        "All requests that no descriptor fits share one counter. Without it each list of entries has its own.",
        False,
    ),
    Option(
        "metadata",
        (MapType.DESCRIPTOR, MapType.OTHERWISE),
        JSON,
        "Any JSON object; Envoy receives it as dynamic metadata with the limit's response.",
        rule_field="metadata",
    ),
)


BY_MAP = {where: {option.key: option for option in OPTIONS if where in option.maps} for where in MapType}

WITHOUT_LIMIT = ("unlimited", "allow", "deny")
"""The keys that take the place of a limit."""

COMPARED = ("value", "values", "values_from", "cidr", "regex")
"""The keys that say what values are compared with. A descriptor has one of them, or none; `not` inverts each."""

LIMITING = tuple(
    key for key in BY_MAP[MapType.RATE_LIMIT] if key not in WITHOUT_LIMIT and key not in ("name", "replaces", "for")
)
"""The keys that say how much is allowed; a rule without a limit has none of them."""

OF_PLACES = ("concurrency", "hold", "place", "on_store_failure", "regions")
"""The keys of these that a limit of places may have."""
