r"""The table for papers and for programs: LaTeX sets whatever is in it as it stands, CSV and JSON
round nothing.

CI has no LaTeX: but for one test, these hold what it would trip over.
"""

import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsweep.report import render
from capsweep.report.formatted_table import FormattedField, FormattedTable, format_table
from capsweep.report.render import escape_latex
from capsweep.report.table import ResultTable

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
OUT_OF_MEMORY = 'OutOfMemoryError: "3 GiB", too; much'


@given(ODD | st.text(max_size=20))
def test_every_letter_survives_and_none_is_a_command(text: str) -> None:
    written = escape_latex(text)
    seen = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    assert PIECES.sub(lambda piece: NAMED[piece[0]], written) == seen
    assert not set(PIECES.sub("", written)) & set("\\{}&%$#_~^<>|[]*`\n")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2.00 ± 1.00 % (3) [-0.48, 4.48]", r"2.00 $\pm$ 1.00 \% (3) {[}$-$0.48, 4.48{]}"),
        ("-1.50 p 0.24", "$-$1.50 p 0.24"),
        ("a dry-run with --seeds 3-5, 1e-05", "a dry-run with -{}-seeds 3-5, 1e-05"),
        ("p >= 0.25", r"p $\geq$ 0.25"),
        ("50% of\nA_B & C", r"50\% of A\_B \& C"),
    ],
)
def test_numbers_and_words_as_a_paper_has_them(text: str, written: str) -> None:
    assert escape_latex(text) == written


@pytest.fixture
def empty(ablation) -> ResultTable:
    """The ablation before any cell is there."""
    return ablation.build()


def test_it_takes_booktabs_and_nothing_else(empty: ResultTable) -> None:
    text = render.render_latex(empty, format_table(empty))
    begin = "% \\usepackage{booktabs} in the preamble, then \\input{table}\n\\begin{table}\n"
    assert text.startswith(begin)
    rules = [r"\toprule", r"\midrule", r"\bottomrule"]
    assert re.findall(r"\\(?:top|mid|bottom)rule", text) == rules
    for part in (
        r"\caption{Do routing iterations",
        r"\label{tab:ablation}",
        r"\shortstack[l]{loss\\reconstruction\\weight}",
        "0/3 seeds",
    ):
        assert part in text
    assert set(re.findall(r"(?<!\\)\\([a-z]+)", text)) <= {
        *("usepackage", "input", "begin", "end", "centering", "footnotesize", "setlength"),
        *("tabcolsep", "caption", "label", "toprule", "midrule", "bottomrule", "shortstack"),
        *("par", "raggedright", "smallskip", "cdot", "pm", "textbf", "geq", "scriptsize"),
    }


def test_rows_are_whole_whatever_is_in_them(empty: ResultTable) -> None:
    @given(st.lists(st.tuples(ODD, ODD, ODD), min_size=1, max_size=3), st.lists(ODD, max_size=2))
    def holds(texts: list[tuple[str, str, str]], notes: list[str]) -> None:
        body = [
            [
                FormattedField(a, "coordinate"),
                FormattedField(b, "value", best=True),
                FormattedField(c, "published"),
            ]
            for a, b, c in texts
        ]
        formatted = FormattedTable(("a.b_c", "digits", "published"), body, notes)
        text = render.render_latex(empty, formatted)
        inner = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:-1]
        assert len(inner) == len(texts)
        for line in inner:
            assert len(re.findall(r"(?<!\\)&", line)) == 2
            assert line.endswith(r" \\")
            assert not re.match(r"\s*[\[*]", line)  # an argument of the \\ before it
            assert re.search(r"& (\\begin\{tabular\}\[t\]\{@\{\}l@\{\}\})?\\textbf\{", line)
        bare = re.sub(r"\\[\\{}]", "", text)
        assert bare.count("{") == bare.count("}")
        beside = sum(bool(row[1].halves[1]) for row in body)  # an interval, on its own line
        assert bare.count(r"\begin") == bare.count(r"\end") == 2 + beside

    holds()


@pytest.fixture
def answer(ablation) -> ResultTable:
    """A full row, a full row of equal values, and one of which a seed failed."""
    ablation.fill(0.1, 0.2, 1 / 3, 0.05, 0.05, 0.05, 0.1, 0.2)
    ablation.ledger.note_failure(ablation.points[8].cell.signature, OUT_OF_MEMORY)
    return ablation.build()


def test_a_row_of_the_csv_is_a_field_of_the_table_in_full_precision(answer: ResultTable) -> None:
    text = render.render_csv(answer, format_table(answer))
    rows = list(csv.DictReader(io.StringIO(text)))
    for row, ours in zip(rows, answer.rows, strict=True):
        group = ours.values[0]
        places = [row["arm"], row["routing.num_iters"], row["loss.reconstruction.weight"]]
        assert places == ["" if c is None else str(c) for c in ours.coordinates]
        assert (row["dataset"], row["n"], row["wanted"]) == ("digits", str(len(group.by_seed)), "3")
        by_seed = dict(pair.split("=") for pair in row["values"].split())
        assert {int(seed): float(number) for seed, number in by_seed.items()} == group.by_seed
        assert row["cells"].split() == list(group.cells.values())
        assert row["stale"] == str(group.stale) == row["n"]  # nobody recorded whose code made them
    first, equal, partial = rows
    summary, compared = answer.rows[0].values[0].summary, answer.rows[1].values[0]
    assert (float(first["mean"]), float(first["std"])) == (summary.mean, summary.std)
    assert (float(first["interval_low"]), float(first["interval_high"])) == summary.interval
    assert float(equal["difference"]) == compared.difference.mean
    low, high = float(equal["difference_low"]), float(equal["difference_high"])
    assert ((low, high), float(equal["p"])) == (compared.difference.interval, compared.p)
    assert [row["best"] for row in rows] == ["false", "true", "false"]
    assert equal["interval_low"] == equal["interval_high"] == ""  # equal values have none
    assert first["difference"] == first["p"] == ""  # the baseline
    assert (partial["causes"], partial["mean"], partial["std"]) == (OUT_OF_MEMORY, "", "")
    assert first["published"] == "value=0.0039 dataset=mnist"


def test_json_has_the_same_records_and_what_they_are_about(answer: ResultTable) -> None:
    content = json.loads(render.render_json(answer, format_table(answer)))
    assert (content["sweep"], content["metric"]) == ("ablation", "test/error")
    assert content["question"].startswith("Do routing iterations")
    assert content["baseline"]["arm"] == "cnn"
    assert content["notes"] == list(format_table(answer).notes)
    first, _, partial = content["fields"]
    assert first["values"] == {"0": 0.1, "1": 0.2, "2": 1 / 3}
    assert first["mean"] == answer.rows[0].values[0].summary.mean
    assert (partial["causes"], partial["mean"]) == ([OUT_OF_MEMORY], None)
    assert first["published"] == [{"value": 0.0039, "dataset": "mnist"}]
