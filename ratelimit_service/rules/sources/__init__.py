"""The sources that rules come from. To add a source: its module, and one case here."""

from collections.abc import Sequence

from ratelimit_service.rules.sources.files import RulesFiles
from ratelimit_service.rules.sources.source import RuleSource
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.rules.syntax.document import Document
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import SourceKind
from ratelimit_service.system.clock import SECOND

__all__ = ["RuleSource", "open_document", "open_sources"]


def open_sources(settings: Settings) -> Sequence[RuleSource]:
    """The sources that the settings name."""
    return [RulesFiles(settings.rules_path, poll_seconds=settings.rules_poll_interval / SECOND)]


def open_document(kind: str, source: str, name: str, text: bytes) -> Document:
    """A document that another process has sent."""
    match kind:
        case YamlText.kind:
            return YamlText(name, text, SourceKind(source))
        case unknown:
            raise KeyError(unknown)
