"""Why nothing limits a descriptor, in words: for the debug log, and for callers that ask."""

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.report import quoted
from ratelimit_service.rules.rule import Entries


def why_unlimited(book: RuleBook, domain: str, entries: Entries) -> str:
    """Where the walk through the book ended, for entries that nothing limits in a request."""
    if domain not in book.domains:
        return f"domain {quoted(domain)} has no rules"
    rule = book.match(domain, entries)
    if rule is not None:
        return f"another limit of the request replaces the rule at {rule.place}"
    node, count = book.walk(domain, entries)
    here = f"the descriptor at {node.place}" if count else f"domain {quoted(domain)}"
    if count == len(entries):
        if node.children:
            return f"{here} has no limit, and the rules below it need further entries"
        return f"{here} has no limit"
    key, value = entries[count]
    entry = f"entry {count + 1} of {len(entries)}, {quoted(key)[1:-1]}={quoted(value)}"
    if node.rule is None:
        return f"{entry}, fits nothing below {here}"
    further = len(entries) - count
    earlier = "1 entry" if further == 1 else f"{further} entries"
    return f"{entry}, fits nothing below {here}: the rule there ends {earlier} earlier"
