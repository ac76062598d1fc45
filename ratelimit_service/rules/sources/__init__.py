"""The sources that rules come from. To add a source: its module, and one case here."""

import os
from collections.abc import Sequence
from pathlib import Path

from ratelimit_service.rules.sources.files import RulesFiles
from ratelimit_service.rules.sources.json_text import JsonText
from ratelimit_service.rules.sources.source import RuleSource
from ratelimit_service.rules.sources.stored import StoredRules
from ratelimit_service.rules.sources.yaml_text import YamlText
from ratelimit_service.rules.syntax.document import Document
from ratelimit_service.rules.versions import RuleStore
from ratelimit_service.settings import Settings
from ratelimit_service.settings.fields import ConfigType, SourceKind
from ratelimit_service.system.clock import SECOND

__all__ = ["RuleSource", "open_document", "open_sources"]


def open_sources(settings: Settings, store: RuleStore | None = None) -> Sequence[RuleSource]:
    """The sources that the settings name; `store` keeps the rules of the API, if it may change any."""
    return [_open_first(settings), *([] if store is None else [StoredRules(store)])]


def _open_first(settings: Settings) -> RuleSource:
    """The source of CONFIG_TYPE."""
    if settings.config_type is ConfigType.GRPC_XDS_SOTW:
        # grpcio looks at this once, when it is loaded. With its handlers for forks, which a process of Python does not
        # need that only forks to execute a program, one worker in twenty died by SIGSEGV while a stream was busy.
        os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
        from ratelimit_service.rules.sources.xds.dial import ControlPlane
        from ratelimit_service.rules.sources.xds.source import XdsRules

        kept = Path(settings.xds_snapshot_file) if settings.xds_snapshot_file else None
        return XdsRules(ControlPlane.of(settings), kept=kept)
    return RulesFiles(settings.rules_path, poll_seconds=settings.rules_poll_interval / SECOND)


def open_document(kind: str, source: str, name: str, text: bytes) -> Document:
    """A document that another process has sent."""
    match kind:
        case YamlText.kind:
            return YamlText(name, text, SourceKind(source))
        case JsonText.kind:
            return JsonText(name, text, SourceKind(source))
        case "xds":  # that of XdsResource
            from ratelimit_service.rules.sources.xds.resource import XdsResource

            return XdsResource(name, text)
        case unknown:
            raise KeyError(unknown)
