"""Where the series of several seeds can be compared."""

from collections.abc import Mapping, Sequence


def common_places(series: Sequence[Mapping[int, float]]) -> list[int]:
    """The epochs or steps that all have, in order: the mean over those that happen to be left
    would jump where one ends.
    """
    return sorted(set.intersection(*(set(one) for one in series))) if series else []
