"""How the curves of all figures are told apart: by all eyes, and on paper without colours."""

from dataclasses import dataclass

# Okabe and Ito 2008, without the yellow, which white paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")  # as many as have no factor in common with the colours
MARKERS = "osD^vPX*<>"


@dataclass(frozen=True)
class Style:
    """A colour, line and marker of matplotlib's."""

    colour: str
    line: str
    marker: str


def choose_style(index: int) -> Style:
    """Return the style of the curve at a place among those that are drawn; 28 differ."""
    return Style(
        COLOURS[index % len(COLOURS)], LINES[index % len(LINES)], MARKERS[index % len(MARKERS)]
    )
