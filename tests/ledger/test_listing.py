"""Cells as a person knows them: listed, chosen by their settings, found by the first letters."""

import json

import pytest

from capsweep import cli
from capsweep.config.cell import Cell
from capsweep.errors import ConfigError, UserError
from capsweep.ledger import listing
from capsweep.ledger.ledger import Ledger, folder_of

SWEPT = {"tracking": {"group": "ablation", "job_type": "cnn", "name": "cnn · seed 7"}}


def write_provenance(ledger: Ledger, cell: Cell, **made: object) -> None:
    content = json.dumps({"started": "2026-01-02T03:04:05+00:00", **made}).encode()
    ledger.store.write(f"{folder_of(cell.signature)}/provenance.json", content)


def test_a_cell_says_its_sweep_and_its_place(ledger: Ledger, finish) -> None:
    cell = finish(ledger, "model=cnn_small", "limit_batches=2", "seed=7")
    write_provenance(ledger, cell, **SWEPT, science=cell.science)
    ledger.store.remove(f"{folder_of(cell.signature)}/config.yaml")  # it need not be read
    (listed,) = listing.list_cells(ledger, [cell.signature])
    assert [listed.value_of(key) for key in ("sweep", "arm")] == ["ablation", "cnn"]
    assert listed.place == "cnn"
    assert listed.date is not None
    assert listed.date.isoformat() == "2026-01-02T03:04:05+00:00"
    settings = [listed.value_of(key) for key in ("model", "seed", "dataset")]
    assert settings == ["cnn_small", 7, cell.config["dataset"]["name"]]
    assert listed.entry.status == "stale"  # nobody recorded its code


def test_cells_are_chosen_by_their_settings(ledger: Ledger, finish) -> None:
    words = [["seed=1"], ["seed=2", "model=cnn_small"], ["seed=3", "loss.reconstruction.weight=0"]]
    cells = [finish(ledger, *overrides) for overrides in words]
    write_provenance(ledger, cells[1], **SWEPT, science=cells[1].science)
    listed = listing.list_cells(ledger, [cell.signature for cell in cells])

    def choose(*texts: str) -> list[int]:
        return [cell.value_of("seed") for cell in listing.select_cells(listed, texts)]

    assert choose("seed=1,2") == [1, 2]
    assert choose("model=cnn_small") == choose("routing=null") == [2]
    assert choose("seed=1,3", "loss.reconstruction.weight=0") == [3]
    assert choose("limit_batches=null", "seed=3") == [3]
    assert choose("sweep=ablation", "arm=cnn") == [2]
    for text, error in {
        "seed=9": "seed=9: no cell has this value; the cells have 1, 2, 3",
        "seed=null": "seed=null: no cell has this value; the cells have 1",
        "limit_batches=2": "limit_batches=2: no cell has this value; the cells have null",
        "weight=0": r"did you mean loss\.reconstruction\.weight",
    }.items():
        with pytest.raises(ConfigError, match=error):
            choose(text)


def test_a_cell_is_shown_as_it_is_listed_also_by_its_first_letters(
    ledger: Ledger, finish, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(*words: str) -> tuple[str, str]:
        assert cli.main(["ledger", *words, f"LEDGER={ledger.store.root}"]) == 0
        return capsys.readouterr()

    assert read("ls") == ("", f"there is no cell in {ledger.store.root}\n")
    names = [finish(ledger, f"seed={seed}").signature for seed in range(3)]
    assert read("ls", "zz") == ("", f"there is no such cell in {ledger.store.root}\n")
    rows = json.loads(read("ls", names[0][:6], names[1], "seed=0,2", "--json")[0])
    assert [(row["signature"], row["status"]) for row in rows] == [(names[0], "stale")]
    assert json.loads(read("show", names[0], "--json")[0])["status"] == "stale"


def test_a_signature_is_found_by_its_first_letters(ledger: Ledger, finish) -> None:
    cell = finish(ledger, "seed=1")
    name = cell.signature
    assert ledger.list_signatures() == [name]
    for letters in (1, 2, 6, 16):
        assert listing.find_signature(ledger, name[:letters]) == name
    for absent in ("ffffff", "", f"{name}0"):
        with pytest.raises(UserError, match=f"'{absent}': no cell in"):
            listing.find_signature(ledger, absent)


def test_an_ambiguous_prefix_names_cells_and_what_they_are(ledger: Ledger, finish) -> None:
    cells = [finish(ledger, f"seed={seed}") for seed in range(40)]
    letter = cells[0].signature[0]
    same = sorted(cell.signature for cell in cells if cell.signature[0] == letter)
    with pytest.raises(UserError) as raised:
        listing.find_signature(ledger, letter)
    first, *lines = str(raised.value).splitlines()
    assert first == f"{letter}: {len(same)} cells begin with this; type more letters"
    assert lines[0].startswith(f"  {same[0]}  not recorded · seed ")
    assert len(lines) == min(len(same), 6)
