"""The counters of one descriptor, for those who look at them or reset them."""

from collections.abc import Iterator, Sequence

from ratelimit_service.model import Limit, Unit
from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.rule import Entries, Rule, counted_entries, counter_key
from ratelimit_service.stores.hit import Hit
from ratelimit_service.telemetry.tally import Tally


def limiting_rules(book: RuleBook, domain: str, entries: Entries) -> list[Rule]:
    """The rules that the descriptor matches and that have a limit, one for each of its windows."""
    first = book.match(domain, entries)
    matched = () if first is None else (first, *first.beside)
    return [rule for rule in matched if rule.limit is not None]


def looks(
    book: RuleBook, domain: str, entries: Entries, rules: Sequence[Rule], *, overriding: bool = True
) -> Iterator[Hit]:
    """A hit of cost 0 on each counter that these rules, which have limits, charge for the descriptor.

    With `overriding` also on those of limits that may be sent with a request.
    """
    for rule in (*rules, *(_overriding(book, domain, entries) if overriding else ())):
        yield Hit(rule, counter_key(rule, counted_entries(rule, entries)), 0, tally=Tally(), quota=False)


def _overriding(book: RuleBook, domain: str, entries: Entries) -> Iterator[Rule]:
    for unit in Unit:
        yield book.overriding(domain, entries, Limit(0, unit, unit.window), 0, Tally())
