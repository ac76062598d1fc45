"""The operator's knobs: declared once, read once, validated all together."""

from ratelimit_service.settings.settings import FLAGS, KNOBS, Group, Knob, Settings, load_settings

__all__ = ["FLAGS", "KNOBS", "Group", "Knob", "Settings", "load_settings"]
