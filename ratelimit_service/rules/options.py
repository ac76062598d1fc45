"""Every key of a rules file, declared once: the parser, its hints, the JSON Schema and the reference come from here.

To add an option: an entry here, a field in `rule.py`, and the line in `parse.py` that passes the one to the other; or,
when it is about how a limit counts, a field of `Limit` and the line in `limits.py`.
"""

from enum import StrEnum
from typing import Any, NamedTuple

from ratelimit_service.algorithms import NAMES
from ratelimit_service.rules.kinds import (
    COUNT,
    EXCESS,
    FLAG,
    JSON,
    NAME,
    TEXT,
    UNIT,
    Kind,
    choice,
    count,
    map_of,
    maps_of,
)


class Block(StrEnum):
    """A kind of map in a rules file; its value is how a message says that something stands there."""

    FILE = "at the top of the file"
    DEFAULTS = "in defaults"
    DESCRIPTOR = "in a descriptor"
    RATE_LIMIT = "in rate_limit"
    REPLACES = "in an entry of replaces"


class Option(NamedTuple):
    """A key, where it may stand, and what it means."""

    key: str
    blocks: tuple[Block, ...]
    kind: Kind
    help: str
    default: Any = None
    """What its absence means; None when there is no such value."""
    missing: str = ""
    """What to say when it is absent, if it must not be."""
    algorithms: tuple[str, ...] = NAMES
    """Those for which it has a meaning."""


MOST_PARTS = 1000
"""Of a window cut into parts: each is a number in the counter's state, and a hit adds them all up. With a thousand the
limit is kept to a thousandth of the window; more would cost and bring nothing."""

OPTIONS = (
    Option(
        "domain",
        (Block.FILE,),
        NAME,
        "The namespace of the file's rules, which Envoy's ratelimit filter sends. Required; a file has one, and no two "
        "files the same unless MERGE_DOMAIN_CONFIG is set.",
        missing="the file has no domain; it must begin with one, such as domain: shop",
    ),
    Option(
        "key",
        (Block.DESCRIPTOR,),
        NAME,
        "The key of the entry. Required.",
        missing="a descriptor must have a key",
    ),
    Option(
        "value",
        (Block.DESCRIPTOR,),
        TEXT,
        "The value of the entry. Without it any value fits that no sibling fits better, and each has its own counter. "
        "A `*` in it stands for any text, also for none.",
        "",
    ),
    Option(
        "rate_limit",
        (Block.DESCRIPTOR,),
        map_of("rate_limit"),
        "The limit of requests whose last entry is this one. Without it they are not limited.",
    ),
    Option(
        "rate_limits",
        (Block.DESCRIPTOR,),
        maps_of("rate_limit"),
        "Several limits of the same requests, in place of rate_limit, decided together: what one of them refuses is "
        "not charged to the others.",
    ),
    Option(
        "charge",
        (Block.FILE, Block.DESCRIPTOR),
        choice(("each", "together")),
        "together: a request that one descriptor refuses is charged to none of the others that say so. each: every "
        "limit is charged by itself, as in Envoy. At the top of the file for all its descriptors.",
    ),
    Option(
        "defaults",
        (Block.FILE,),
        map_of("defaults"),
        "What the file's limits have unless they say otherwise. What has no meaning for a limit's algorithm is passed "
        "over.",
    ),
    Option(
        "descriptors",
        (Block.FILE, Block.DESCRIPTOR),
        maps_of("descriptor"),
        "What may be asked about at this level. Below a descriptor: what its next entry may be.",
        [],
    ),
    Option(
        "unit",
        (Block.RATE_LIMIT,),
        UNIT,
        'The length of the window, such as minute or "5 minutes". A month is 30 days and a year 365; fixed windows are '
        "counted from 1970-01-01 in UTC, so that days begin at midnight and weeks on Thursday. Required unless "
        "unlimited.",
    ),
    Option(
        "unit_multiplier",
        (Block.RATE_LIMIT,),
        count(1),
        "How many units the window is long, where unit has no number in it.",
    ),
    Option(
        "requests_per_unit",
        (Block.RATE_LIMIT,),
        COUNT,
        "How many requests fit into one window; 0 refuses all. Required unless unlimited.",
    ),
    Option(
        "algorithm",
        (Block.RATE_LIMIT, Block.DEFAULTS),
        choice(NAMES),
        "The way of counting.",
        "fixed_window",
    ),
    Option(
        "burst",
        (Block.RATE_LIMIT, Block.DEFAULTS),
        count(1),
        "How many a bucket holds; without it as many as requests_per_unit.",
        algorithms=("token_bucket", "leaky_bucket"),
    ),
    Option(
        "parts",
        (Block.RATE_LIMIT, Block.DEFAULTS),
        count(2, MOST_PARTS),
        "Into how many parts the window is cut: the more, the sooner room comes back, and the larger the counter.",
        10,
        algorithms=("sub_windows",),
    ),
    Option(
        "anchor",
        (Block.RATE_LIMIT, Block.DEFAULTS),
        choice(("calendar", "first_request")),
        "When the window begins: with the calendar in UTC, or with the first request that finds none.",
        "calendar",
        algorithms=("fixed_window",),
    ),
    Option(
        "count_refused",
        (Block.RATE_LIMIT, Block.DEFAULTS),
        FLAG,
        "A refused request is charged too. Without it true for fixed_window, as in Envoy, and false for the others.",
    ),
    Option(
        "exceed",
        (Block.RATE_LIMIT, Block.DEFAULTS),
        EXCESS,
        "How much above the limit is let through, and counted apart: a number, or a share such as 10%.",
        0,
    ),
    Option(
        "on_store_failure",
        (Block.RATE_LIMIT, Block.DEFAULTS),
        choice(("error", "open", "closed", "local")),
        "What is answered while Redis cannot be asked: error: UNAVAILABLE, open: allowed, closed: refused, local: "
        "counted in this process, with its share of the limit. Without it, what ON_STORE_FAILURE says.",
    ),
    Option(
        "unlimited",
        (Block.RATE_LIMIT,),
        FLAG,
        "No limit: the requests are let through and counted in the metrics.",
        False,
    ),
    Option(
        "name",
        (Block.RATE_LIMIT,),
        TEXT,
        "A name for the limit, for `replaces` of others. It is in the answers, too.",
        "",
    ),
    Option(
        "name",
        (Block.REPLACES,),
        NAME,
        "The name of the limit that is replaced.",
        missing="an entry of replaces must have the name of a limit",
    ),
    Option(
        "replaces",
        (Block.RATE_LIMIT,),
        maps_of("replaces"),
        "The limits that do not apply in a request in which this one does.",
        [],
    ),
    Option(
        "shadow_mode",
        (Block.DESCRIPTOR,),
        FLAG,
        "Try the limit: it is counted and reported, and refuses nothing.",
        False,
    ),
    Option(
        "quota_mode",
        (Block.DESCRIPTOR,),
        FLAG,
        "The limit is a quota: a request is refused when every quota it has is used up.",
        False,
    ),
    Option(
        "detailed_metric",
        (Block.DESCRIPTOR,),
        FLAG,
        "The rule's metrics have the values of the request at all levels. Not inherited.",
        False,
    ),
    Option(
        "value_to_metric",
        (Block.DESCRIPTOR,),
        FLAG,
        "Metrics of the rules here and below have the request's value at this level, where the rule has none or a `*`.",
        False,
    ),
    Option(
        "share_threshold",
        (Block.DESCRIPTOR,),
        FLAG,
        "All values that fit the `*` share one counter, instead of one each.",
        False,
    ),
    Option(
        "metadata",
        (Block.DESCRIPTOR,),
        JSON,
        "Anything JSON can say: Envoy gets it as dynamic metadata with the limit's answer.",
    ),
)

BY_BLOCK = {block: {option.key: option for option in OPTIONS if block in option.blocks} for block in Block}
