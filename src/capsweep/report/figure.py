"""A figure of the report, or why there is none."""

from dataclasses import dataclass
from typing import Literal

from capsweep.report.canvas import Files

Section = Literal["curves", "cost", "schedules"]


@dataclass(frozen=True)
class Drawn:
    """stem: of its files; section: of the page; caption: every choice, as text; alt: for those who
    do not see it.
    """

    stem: str
    section: Section
    caption: str
    alt: str
    files: Files


@dataclass(frozen=True)
class NotDrawn:
    """The section in which a figure is not, and why, in a sentence."""

    section: Section
    why: str
