r"""A table for a paper: LaTeX with booktabs, and nothing else to install."""

import re

from capsweep.report.formatted_table import FormattedField, FormattedTable
from capsweep.report.table import ResultTable

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


def latex_table(table: ResultTable, written: FormattedTable) -> str:
    """A table environment: the question as its caption, notes below in small print.

    Best means are bold, ± and minus signs are set as mathematics.
    """
    sweep = table.sweep
    head = [_latex_header(name) for name in written.header]
    return "\n".join(
        [
            r"% \usepackage{booktabs} in the preamble, then \input{" + _label_stem(table) + "}",
            r"\begin{table}",
            r"  \centering\footnotesize\setlength{\tabcolsep}{3.5pt}",
            rf"  \caption{{{escape_latex(sweep.question)}}}",
            rf"  \label{{tab:{re.sub('[^A-Za-z0-9]+', '-', sweep.name)}}}",
            rf"  \begin{{tabular}}{{@{{}}{'l' * len(head)}@{{}}}}",
            r"    \toprule",
            _latex_row(head),
            r"    \midrule",
            *(_latex_row([_latex_field(field) for field in line.fields]) for line in written.lines),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"  \par\raggedright",
            *(rf"  \par\smallskip {escape_latex(note)}" for note in written.notes),
            r"\end{table}",
            "",
        ]
    )


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it stands, on one line; what cannot be seen is left out."""
    line = " ".join(text.split())
    return FOUND.sub(_escape_match, "".join(letter for letter in line if letter.isprintable()))


def _escape_match(match: re.Match[str]) -> str:
    if match[0] != "-":
        return SPECIAL[match[0]]
    return "-{}" if match.string[match.end()] == "-" else "$-$"


def _label_stem(table: ResultTable) -> str:
    return table.sweep.table_file.removesuffix(".md")


def _latex_header(name: str) -> str:
    """A key as words, one below the other: `routing.num_iters` is long beside its numbers."""
    words = r"\\".join(escape_latex(part.replace("_", " ")) for part in name.split("."))
    return words if "." not in name else rf"\shortstack[l]{{{words}}}"


def _latex_row(fields: list[str]) -> str:
    return f"    {' & '.join(fields)} \\\\"


def _latex_field(field: FormattedField) -> str:
    """The interval below its number: side by side they are wider than a page."""
    number, beside = map(escape_latex, field.halves)
    number = rf"\textbf{{{number}}}" if field.best else number
    if not beside:
        return number
    return rf"\begin{{tabular}}[t]{{@{{}}l@{{}}}}{number}\\\scriptsize {beside}\end{{tabular}}"
