"""Rulebooks for tests, from YAML in the test itself."""

import re
from textwrap import dedent, indent
from typing import Any

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.reading.parse import parse
from ratelimit_service.rules.rule import Entries, counted_entries, counter_key
from ratelimit_service.rules.sources.yaml_text import YamlText


def book(*texts: str, **options: Any) -> RuleBook:
    """The book of these files."""
    return parse([YamlText(f"{number}.yaml", dedent(text).encode()) for number, text in enumerate(texts, 1)], **options)


def whole(block: str) -> str:
    """A block of a document as a whole file: what it leaves out is put around it."""
    if block.startswith("rate_limit"):
        block = f"- key: user\n{indent(block, '  ')}"
    if block.startswith("- "):
        block = f"descriptors:\n{indent(block, '  ')}"
    if "descriptors:" not in block:
        one, other = "{unit: minute, requests_per_unit: 60}", "{unit: minute, requests_per_unit: 1}"
        block += f"descriptors: [{{key: user, rate_limit: {one}}}, {{key: ip, rate_limit: {other}}}]\n"
    return block if re.search("^domain:", block, re.MULTILINE) else f"domain: shop\n{block}"


def matched(rules: RuleBook, domain: str, entries: Entries) -> tuple[str, str] | None:
    """The path of the rule that applies, and the key of its counter without the ending."""
    rule = rules.match(domain, entries)
    if rule is None:
        return None
    return ".".join(rule.path), counter_key(rule, counted_entries(rule, entries)).rpartition("|")[0]
