"""`capsweep info` as a person sees it."""

import pytest

from capsweep import cli


def test_the_table_has_every_number_and_fits_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (30, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main(["info", "model=capsnet", "dataset=mnist"]) == 0
        output = capsys.readouterr().out
        for text in ("8,215,728", "11,520", "5,308,672", "406,405,120", "256x20x20"):
            assert text in output
        assert "…" not in output
    lines = output.splitlines()
    assert max(len(line) for line in lines[:-1]) <= 80
    assert lines[-1].startswith("FLOPs and votes per image.")
