"""A figure of the report, or why there is none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Drawn:
    """stem: of its files; section: of the page; caption: every choice, as text; alt: for those who
    do not see it.
    """

    stem: str
    section: str
    caption: str
    alt: str
    svg: bytes
    png: bytes


@dataclass(frozen=True)
class NotDrawn:
    """Which figure is not there, and why, in a sentence."""

    name: str
    why: str
