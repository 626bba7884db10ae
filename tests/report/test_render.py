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

PIECES = re.compile("|".join(map(re.escape, ["$-$", "{--}", *render.SPECIAL.values(), "-{}"])))
LETTERS = "–" + "".join(map(chr, render.SPECIAL))
ODD = st.text(st.sampled_from(f"{LETTERS}=-0.a \n"), max_size=12)
OUT_OF_MEMORY = 'OutOfMemoryError: "3 GiB", too; much'


@given(ODD)
def test_no_letter_is_a_command(text: str) -> None:
    rest = PIECES.sub("", escape_latex(text))
    assert not set(rest) & set(f"{LETTERS}\n")
    assert "--" not in escape_latex(text).replace("{--}", "")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2.00 ± 1.00 % (3) [-0.48, 4.48]", r"2.00 $\pm$ 1.00 \% (3) {[}$-$0.48, 4.48{]}"),
        ("-1.50 p 0.24", "$-$1.50 p 0.24"),
        ("a dry-run of seeds 3-5, 1e-05", "a dry-run of seeds 3-5, 1e-05"),
        ("\\ ~ ^", r"\textbackslash{} \textasciitilde{} \textasciicircum{}"),
        ("--again 3 – --- -1", "-{}-again 3 {--} -{}-{}- $-$1"),
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


def test_a_table_is_whole_whatever_is_in_it(empty: ResultTable) -> None:
    fields = [[FormattedField(text, "value", best=True) for text in ("[1 & 2]", "2 [3, 4]")]]
    text = render.render_latex(empty, FormattedTable(("a.b_c", "digits"), fields, ["a note"]))
    assert text.startswith("% \\usepackage{booktabs} in the preamble, then \\input{table}\n")
    rules = [r"\toprule", r"\midrule", r"\bottomrule"]
    assert re.findall(r"\\(?:top|mid|bottom)rule", text) == rules
    for part in (
        r"\caption{Do routing iterations",
        r"\label{tab:ablation-ROUTING-3}",
        r"    a.b\_c & digits \\",
        r"    \textbf{{[}1 \& 2{]}} & \textbf{2} {\scriptsize {[}3, 4{]}} \\",
        r"\par\smallskip a note",
    ):
        assert part in text
    bare = re.sub(r"\\[\\{}]", "", text)
    assert bare.count("{") == bare.count("}")


@pytest.fixture
def answer(ablation) -> ResultTable:
    """A full row, a full row of equal values, and one of which a seed failed."""
    ablation.fill(0.1, 0.2, 1 / 3, 0.05, 0.05, 0.05, 0.1, 0.2)
    ablation.ledger.note_failure(ablation.points[8].cell.signature, OUT_OF_MEMORY)
    return ablation.build()


def test_a_row_of_the_csv_is_a_field_of_the_table_in_full_precision(answer: ResultTable) -> None:
    text = render.render_csv(answer)
    first, equal, partial = csv.DictReader(io.StringIO(text))
    group, compared = answer.rows[0].values[0], answer.rows[1].values[0]
    assert (first["arm"], first["routing.num_iters"], first["dataset"]) == ("cnn", "", "digits")
    assert json.loads(first["values"]) == {str(s): v for s, v in group.by_seed.items()}
    assert list(json.loads(first["cells"]).values()) == [
        cell.signature for cell in group.cells.values()
    ]
    assert (first["n"], first["wanted"], first["stale"], partial["n"]) == ("3", "3", "3", "2")
    assert (float(first["mean"]), float(first["std"])) == (group.summary.mean, group.summary.std)
    assert (float(first["interval_low"]), float(first["interval_high"])) == group.summary.interval
    assert float(equal["difference"]) == compared.difference.mean
    low, high = float(equal["difference_low"]), float(equal["difference_high"])
    assert ((low, high), float(equal["p"])) == (compared.difference.interval, compared.p)
    assert [row["best"] for row in (first, equal, partial)] == ["false", "true", "false"]
    assert equal["interval_low"] == equal["interval_high"] == ""  # equal values have none
    assert first["difference"] == first["p"] == ""  # the baseline
    assert json.loads(partial["causes"]) == [OUT_OF_MEMORY]
    assert partial["mean"] == partial["std"] == ""
    (number,) = json.loads(first["published"])
    assert (number["model"], number["differs"]) == ("baseline_mnist", "model,dataset")
    trained = [first[key] for key in ("dataset", "model", "epochs", "batch_size", "seeds")]
    assert trained == ["digits", "cnn_small", "7", "32", "[0, 1, 2]"]
    assert first["limit_batches"] == ""


def test_json_has_the_same_records_and_what_they_are_about(answer: ResultTable) -> None:
    content = json.loads(render.render_json(answer, format_table(answer)))
    assert (content["sweep"], content["metric"]) == ("ablation", "test/error")
    assert content["baseline"]["arm"] == "cnn"
    assert content["notes"] == list(format_table(answer).notes)
    assert content["fields"] == json.loads(json.dumps(render.table_records(answer)))
