"""Rulebooks for tests, from YAML in the test itself."""

from textwrap import dedent
from typing import Any

from ratelimit_service.rules.book import RuleBook
from ratelimit_service.rules.files.parse import parse
from ratelimit_service.rules.syntax.document import Source


def book(*texts: str, **options: Any) -> RuleBook:
    """The book of these files."""
    return parse([Source(f"{number}.yaml", dedent(text).encode()) for number, text in enumerate(texts, 1)], **options)
