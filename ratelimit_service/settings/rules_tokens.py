"""Reads RULES_TOKENS: who may change the rules of which domains, each by a token of their own."""

import re
from typing import Final, NamedTuple

MIN_TOKEN_LENGTH: Final = 32
"""Characters: 128 bits in hex, too many to try."""
MAX_TOKENS: Final = 1000

_SEPARATOR: Final = re.compile(r"[;\n]")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,49}")
_TOKEN: Final = re.compile(rf"[!-9<-~]{{{MIN_TOKEN_LENGTH},}}")
"""Visible ASCII, without the separators `:` and `;`."""
_ANY: Final = "*"


class RulesToken(NamedTuple):
    """A token, and the domains whose rules its owner may change."""

    name: str
    token: str
    domains: tuple[str, ...]
    """`*` is every domain; `team-a/*` is every one that begins with `team-a/`."""

    def may_change(self, domain: str) -> bool:
        """Whether it may change the rules of this domain."""
        return any(domain.startswith(each[:-1]) if each.endswith(_ANY) else domain == each for each in self.domains)


def read_rules_tokens(text: str) -> tuple[RulesToken, ...]:
    """The tokens of `NAME:TOKEN:DOMAIN,DOMAIN`, separated by `;` or line breaks. ValueError, which quotes no token."""
    found: list[RulesToken] = []
    entries = (entry.strip() for entry in _SEPARATOR.split(text))
    for number, entry in enumerate((entry for entry in entries if entry and not entry.startswith("#")), 1):
        name, _, rest = entry.partition(":")
        token, colon, listed = rest.partition(":")
        domains = tuple(dict.fromkeys(domain.strip() for domain in listed.split(",")))
        wrong = f"has a wrong entry, number {number}:"
        if not colon or not all(domains):
            raise ValueError(f"{wrong} it is not NAME:TOKEN:DOMAIN,DOMAIN")
        if not _NAME.fullmatch(name):
            raise ValueError(f"{wrong} its name is not of letters, digits and . _ @ -, 50 at most")
        if not _TOKEN.fullmatch(token):
            raise ValueError(
                f"{wrong} its token does not have {MIN_TOKEN_LENGTH} characters or more of visible ASCII without : and"
                " ; - `openssl rand -hex 32` makes a good one"
            )
        if any(token == other.token for other in found):
            raise ValueError(f"{wrong} another one has the same token")
        found.append(RulesToken(name, token, domains))
    if len(found) > MAX_TOKENS:
        raise ValueError(f"has more than {MAX_TOKENS} tokens")
    return tuple(found)
