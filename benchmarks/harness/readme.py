"""Puts tables into README.md, between comments that mark their places."""

from __future__ import annotations

from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def replace_between(text: str, name: str, body: str) -> str:
    """`text` with `body` between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``.

    Raises:
        ValueError: the two comments are not there, once each and in this order.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end or begin in rest or end in after:
        raise ValueError(f"expected {begin} and then {end}, once each")
    return f"{before}{begin}\n{body.strip()}\n{end}{after}"


def between(text: str, name: str) -> str:
    """What stands between the two comments."""
    return text.partition(f"<!-- {name}:begin -->")[2].partition(f"<!-- {name}:end -->")[0].strip()
