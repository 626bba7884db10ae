"""The plan as a table: a line per place of the grid, seeds together."""

from collections import Counter

from rich import box
from rich.table import Table as RichTable

from capsweep.sweep.plan import Plan


def terminal(planned: Plan) -> RichTable:
    """Place, seeds, parameters, and how many cells are in which state."""
    table = RichTable(box=box.SIMPLE_HEAD)
    for name in ("cells", "seeds", "parameters", "state"):
        table.add_column(name, overflow="fold")
    states: dict[str, Counter[str]] = {}
    seeds: dict[str, list[str]] = {}
    parameters: dict[str, int] = {}
    for cell in planned.cells:
        for point in cell.points:
            same = point is not cell.points[0]
            state = f"same as {cell.points[0].title}" if same else cell.entry.status
            states.setdefault(point.title, Counter())[state] += 1
            seeds.setdefault(point.title, []).append(str(point.seed))
            parameters[point.title] = cell.size.parameters
    for title, counts in states.items():
        state = ", ".join(f"{count} {name}" for name, count in counts.items())
        table.add_row(title, ",".join(seeds[title]), f"{parameters[title]:,}", state)
    return table
