r"""A table for a paper: LaTeX with booktabs, and nothing else to install."""

import re

from capsweep.report.lines import Field, Written
from capsweep.report.table import Table

# [ and * in braces: after \\ and \midrule LaTeX would take them as an argument of those.
SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<=": r"$\leq$",
    ">=": r"$\geq$",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    '"': r"\char34{}",
    "`": "{`}",
    "–": "{--}",
    "±": r"$\pm$",
    "·": r"$\cdot$",
}
# A minus sign stands before a number, a hyphen between words; two hyphens are no dash.
MINUS, HYPHEN = r"(?<![\w.)-])-(?=\.?\d)", r"-(?=-)"
FOUND = re.compile("|".join([MINUS, HYPHEN, *map(re.escape, SPECIAL)]))


def latex(table: Table, written: Written) -> str:
    """A table environment: the question as its caption, notes below in small print.

    Best means are bold, ± and minus signs are set as mathematics.
    """
    sweep = table.sweep
    head = [_header(name) for name in written.header]
    return "\n".join(
        [
            r"% \usepackage{booktabs} in the preamble, then \input{" + _stem(table) + "}",
            r"\begin{table}",
            r"  \centering\footnotesize\setlength{\tabcolsep}{4pt}",
            rf"  \caption{{{escaped(sweep.question)}}}",
            rf"  \label{{tab:{re.sub('[^A-Za-z0-9]+', '-', sweep.name)}}}",
            rf"  \begin{{tabular}}{{{'l' * len(head)}}}",
            r"    \toprule",
            _row(head),
            r"    \midrule",
            *(_row([_field(field) for field in line.fields]) for line in written.lines),
            r"    \bottomrule",
            r"  \end{tabular}",
            *(rf"  \par\smallskip {escaped(note)}" for note in written.notes),
            r"\end{table}",
            "",
        ]
    )


def escaped(text: str) -> str:
    """Text that LaTeX sets as it stands, on one line; what cannot be seen is left out."""
    line = " ".join(text.split())
    return FOUND.sub(_set, "".join(letter for letter in line if letter.isprintable()))


def _set(match: re.Match[str]) -> str:
    if match[0] != "-":
        return SPECIAL[match[0]]
    return "-{}" if match.string[match.end()] == "-" else "$-$"


def _stem(table: Table) -> str:
    return table.sweep.table_file.removesuffix(".md")


def _header(name: str) -> str:
    """A key as words, one below the other: `routing.num_iters` is long beside its numbers."""
    words = r"\\".join(escaped(part.replace("_", " ")) for part in name.split("."))
    return words if "." not in name else rf"\shortstack[l]{{{words}}}"


def _row(fields: list[str]) -> str:
    return f"    {' & '.join(fields)} \\\\"


def _field(field: Field) -> str:
    text = escaped(field.text)
    return rf"\textbf{{{text}}}" if field.best else text
