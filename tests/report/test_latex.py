r"""LaTeX: whatever is in a table is set as it stands, and the environments are whole.

CI has no LaTeX: but for the last test, these hold what it would trip over.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.ledger.ledger import Ledger
from capsweep.report import latex, table
from capsweep.report.formatted_table import (
    FormattedField,
    FormattedRow,
    FormattedTable,
    format_table,
)
from capsweep.report.latex import escape_latex
from capsweep.report.table import ResultTable
from capsweep.sweep.expand import Point
from capsweep.sweep.spec import Sweep

NAMED = {
    r"\textbackslash{}": "\\",
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\char34{}": '"',
    r"$\pm$": "±",
    r"$\cdot$": "·",
    "$-$": "-",
    r"$\leq$": "<=",
    r"$\geq$": ">=",
    "-{}": "-",
    **{rf"\{letter}": letter for letter in "{}&%$#_"},
    **{f"${letter}$": letter for letter in "<>|"},
    **{f"{{{letter}}}": letter for letter in "[]*`"},
    "{--}": "–",
}
PIECES = re.compile("|".join(map(re.escape, sorted(NAMED, key=len, reverse=True))))
ALL = "\\{}&%$#_~^<>|[]*`\"'-–±·"
ODD = st.text(st.sampled_from(f"{ALL}0.a \n"), max_size=12)


def test_every_letter_survives_and_none_is_a_command() -> None:
    @given(ODD | st.text(max_size=20))
    def holds(text: str) -> None:
        written = escape_latex(text)
        seen = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
        assert PIECES.sub(lambda piece: NAMED[piece[0]], written) == seen
        assert not set(PIECES.sub("", written)) & set("\\{}&%$#_~^<>|[]*`\n")

    holds()


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2.00 ± 1.00 % (3) [-0.48, 4.48]", r"2.00 $\pm$ 1.00 \% (3) {[}$-$0.48, 4.48{]}"),
        ("-1.50 p 0.24", "$-$1.50 p 0.24"),
        ("a dry-run with --seeds 3-5, 1e-05", "a dry-run with -{}-seeds 3-5, 1e-05"),
        ("cnn · – · 0", r"cnn $\cdot$ {--} $\cdot$ 0"),
        ("p >= 0.25", r"p $\geq$ 0.25"),
        ("50% of\nA_B & C", r"50\% of A\_B \& C"),
    ],
)
def test_numbers_and_words_as_a_paper_has_them(text: str, written: str) -> None:
    assert escape_latex(text) == written


@pytest.fixture
def empty(ablation: tuple[Sweep, list[Point]], tmp_path: Path) -> ResultTable:
    """The ablation before any cell is there."""
    sweep, points = ablation
    return table.build_table(sweep, points, Ledger(tmp_path))


def test_it_takes_booktabs_and_nothing_else(empty: ResultTable) -> None:
    text = latex.latex_table(empty, format_table(empty))
    assert text.startswith(
        "% \\usepackage{booktabs} in the preamble, then \\input{table}\n\\begin{table}\n"
    )
    assert re.findall(r"\\(?:top|mid|bottom)rule", text) == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
    ]
    assert r"\caption{Do routing iterations" in text
    assert r"\label{tab:ablation}" in text
    assert r"\shortstack[l]{loss\\reconstruction\\weight}" in text
    assert "0/3 seeds" in text
    commands = set(re.findall(r"(?<!\\)\\([a-z]+)", text))
    assert commands <= {
        *("usepackage", "input", "begin", "end", "centering", "footnotesize", "setlength"),
        *("tabcolsep", "caption", "label", "toprule", "midrule", "bottomrule", "shortstack"),
        *("par", "raggedright", "smallskip", "cdot", "pm", "textbf", "geq", "scriptsize"),
    }


def test_rows_are_whole_whatever_is_in_them(empty: ResultTable) -> None:
    @given(st.lists(st.tuples(ODD, ODD, ODD), min_size=1, max_size=3), st.lists(ODD, max_size=2))
    def holds(texts: list[tuple[str, str, str]], notes: list[str]) -> None:
        body = tuple(
            FormattedRow(
                (
                    FormattedField(a, "coordinate"),
                    FormattedField(b, "value", best=True),
                    FormattedField(c, "published"),
                ),
                i,
            )
            for i, (a, b, c) in enumerate(texts)
        )
        text = latex.latex_table(
            empty, FormattedTable(("a.b_c", "digits", "published"), body, tuple(notes))
        )
        inner = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:-1]
        assert len(inner) == len(texts)
        for line in inner:
            assert len(re.findall(r"(?<!\\)&", line)) == 2
            assert line.endswith(r" \\")
            assert not re.match(r"\s*[\[*]", line)  # an argument of the \\ before it
            assert re.search(r"& (\\begin\{tabular\}\[t\]\{@\{\}l@\{\}\})?\\textbf\{", line)
        bare = re.sub(r"\\[\\{}]", "", text)
        assert bare.count("{") == bare.count("}")
        beside = sum(
            bool(line.fields[1].halves[1]) for line in body
        )  # an interval, on its own line
        assert bare.count(r"\begin") == bare.count(r"\end") == 2 + beside

    holds()


def test_the_best_mean_is_bold(empty: ResultTable) -> None:
    field = FormattedField("0.50 ± 0.00 % (3)", "value", best=True, column=0)
    text = latex.latex_table(empty, FormattedTable(("digits",), (FormattedRow((field,), 0),), ()))
    assert r"\textbf{0.50 $\pm$ 0.00 \% (3)} \\" in text


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex and booktabs")
def test_latex_takes_it_and_it_fits_on_a_page(empty: ResultTable, tmp_path: Path) -> None:
    value = "2.04 ± 0.42 % (3) [0.98, 3.09]"
    difference = "-0.93 [-2.36, 0.51] p 0.22 (3)"
    fields = (
        *(FormattedField(text, "coordinate") for text in ("capsnet", "[*]&%_", "0.0005")),
        FormattedField(value, "value", best=True, column=0),
        FormattedField(difference, "difference", column=0),
        FormattedField("0.39 % (mnist)", "published"),
    )
    written = FormattedTable(
        format_table(empty).header, (FormattedRow(fields, 0), FormattedRow(fields, 1)), (ALL,)
    )
    (tmp_path / "table.tex").write_text(latex.latex_table(empty, written))
    (tmp_path / "paper.tex").write_text(
        r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{table}\end{document}"
    )
    made = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout
    assert "Overfull" not in made.stdout
