"""A page that people write and commands renew: between two markers, and nowhere else."""

import re
from pathlib import Path

from capsweep.errors import UserError


def section_markers(name: str) -> tuple[str, str]:
    """The lines between which a command writes; comments, which no reader sees."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def replace_section(page: str, name: str, section: str, where: Path) -> str:
    """`page` with what stands between the markers replaced; section: whole lines.

    Raises UserError unless there is one pair of them.
    """
    begin, end = section_markers(name)
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise UserError(f"{where}: needs the lines {begin} and {end}, once each, in this order")
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{section}{end}", page)


def read(where: Path) -> str | None:
    """The page, its line ends as they are; None when it is not there.

    Raises UserError for one that cannot be read.
    """
    try:
        return where.read_bytes().decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{where} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text ({error}); save it as that") from error
