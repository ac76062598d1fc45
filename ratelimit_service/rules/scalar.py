"""What a plain scalar of YAML means to the people who have rules files: as Go's yaml.v2 reads it, which is YAML 1.1.

`yes` is a boolean, `0o17` and `017` are fifteen, `1_000` is a thousand, `08` is a float, a date is text. What stands in
quotes is always text and never comes here.
"""

import math
import re
from decimal import Decimal

Value = str | bool | int | float | None

_WORDS: dict[str, Value] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}

_NUMERIC = frozenset("+-.0123456789")
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[bB]([01]+)|0[oO]?([0-7]+)|([1-9][0-9]*|0))")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_BASES = (16, 2, 8, 10)

_LONGEST_INTEGER = 70
"""The sign, `0b` and 64 digits, and some; Python refuses to make integers of very many digits."""


def resolve(text: str) -> Value:
    """The value of a scalar that stands without quotes and without a tag."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC:
        return text
    plain = text.replace("_", "") if text[0] != "." else text
    if len(plain) <= _LONGEST_INTEGER and (match := _INTEGER.fullmatch(plain)):
        sign, *digits = match.groups()
        number = next(int(part, base) for part, base in zip(digits, _BASES, strict=True) if part)
        number = -number if sign == "-" else number
        # Go reads what fits into 64 bits; what is larger it takes for a float, or else for text.
        if -(2**63) <= number < (2**63 if sign else 2**64):
            return number
    if _FLOAT.fullmatch(plain) and math.isfinite(real := float(plain)):
        return real
    return text


def printed(value: Value) -> str:
    """The value as Go prints it with `%v`: `1.50` is `1.5`, `1e3` is `1000`, `1e6` is `1e+06`, null is `<nil>`."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case float():
            return _printed_float(value)
    return str(value)


def _printed_float(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:+f}".replace("inf", "Inf")
    mantissa, _, exponent = f"{Decimal(repr(value)).normalize():e}".partition("e")
    power = int(exponent)
    # The bounds of Go's strconv for the shortest text that is read as this float.
    if value and not -4 <= power < 6:
        return f"{mantissa}e{power:+03d}"
    return f"{Decimal(repr(value)).normalize():f}"
