"""Why nothing limits a descriptor, in words: for the debug log, and for callers that ask.

Cheap, because it runs where calls are answered; `hints.py` looks further, for `ratelimit explain`.
"""

from typing import Final

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.hints import in_another_order
from ratelimit_service.rules.report import quoted
from ratelimit_service.rules.rule import Entries

_MOST_TRIED: Final = 50
"""Entries tried to find another order: enough for four."""


def why_unlimited(book: RuleBook, domain: str, entries: Entries) -> str:
    """Where the walk through the book ended, for entries that nothing limits in a request."""
    if domain not in book.domains:
        return f"domain {quoted(domain)} has no rules"
    nodes = book.walk(domain, entries)
    last, count = nodes[-1], len(nodes) - 1
    here = f"the descriptor at {last.place}" if count else f"domain {quoted(domain)}"
    if count == len(entries) and last.rule is not None:
        return f"another limit of the request replaces the rule at {last.rule.place}"
    if count < len(entries):
        why = f"entry {count + 1} of {len(entries)}, {in_words(entries[count : count + 1])}, fits nothing below {here}"
    else:
        why = f"{here} has no limit"
    other = in_another_order(nodes[0], entries, _MOST_TRIED)
    if other is not None:
        order, rule = other
        return f"{why}; in the order {in_words(order)} the rule at {rule.place} applies"
    if count < len(entries) and last.rule is not None:
        further = len(entries) - count
        return f"{why}: the rule there ends {'1 entry' if further == 1 else f'{further} entries'} earlier"
    return f"{why}, and the rules below it need further entries" if count == len(entries) and last.children else why


def in_words(entries: Entries) -> str:
    """`user="ada" path="/cart"`: shortened, and without anything that a terminal would obey."""
    return " ".join(f"{quoted(key)[1:-1]}={quoted(value)}" for key, value in entries)
