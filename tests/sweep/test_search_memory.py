"""What a search remembers in an object store, over HTTP: seen from anywhere, never lost."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from s3_objects import S3Server

from capsweep.errors import UserError
from capsweep.storage.stores import Store, StoreError, open_store
from capsweep.sweep import choices, journal, study
from capsweep.sweep.spec import Sweep

SEARCH = """\
question: Which rate?
kind: search
base: [experiment=digits]
seeds: [0]
search: {metric: val/error, trials: 4, sampler: random}
arms: {capsnet: {space: {optim.optimizer.lr: "interval(0.001, 0.01)", batch_size: [8, 16]}}}
"""
JOURNAL = "bucket/x/searches/find.journal"


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A search that is never run: its trials are told what they measured."""
    file = tmp_path / "find.yaml"
    file.write_text(SEARCH)
    return choices.load_sweep(str(file), choices.Choices())


@pytest.fixture
def memory(store: S3Server) -> Store:
    """As `places.storage` in the store opens it."""
    return open_store(store.url("bucket/x"), "places.storage")


def try_one(sweep: Sweep, found: "study.optuna.Study", value: float) -> None:
    """A trial from beginning to end."""
    trial = found.ask(study.distributions(sweep))
    found.tell(trial.number, value)


def test_a_search_goes_on_from_another_machine(sweep: Sweep, memory: Store, tmp_path: Path) -> None:
    first = study.open_study(sweep, memory)
    for value in (0.3, 0.1):
        try_one(sweep, first, value)
    second = study.open_study(sweep, memory)
    assert [trial.values for trial in second.trials] == [[0.3], [0.1]]
    try_one(sweep, second, 0.2)
    seen = study.remembered(sweep, memory)
    assert [(trial.number, trial.value) for trial in seen.complete] == [
        (1, 0.1),
        (2, 0.2),
        (0, 0.3),
    ]
    assert seen.complete[0].settings == study.plain(first.trials[1].params)


def test_its_journal_is_the_one_that_a_folder_has(
    sweep: Sweep, memory: Store, store: S3Server, tmp_path: Path
) -> None:
    try_one(sweep, study.open_study(sweep, memory), 0.3)
    folder = open_store(tmp_path / "storage")
    folder.write("searches/find.journal", store.objects[JOURNAL])
    assert study.remembered(sweep, folder) == study.remembered(sweep, memory)
    try_one(sweep, study.open_study(sweep, folder), 0.1)
    store.put(JOURNAL, (tmp_path / "storage" / "searches" / "find.journal").read_bytes())
    assert study.remembered(sweep, memory).seen == 2


@pytest.mark.parametrize("trials", [0, 1])
def test_what_is_only_reported_is_not_written(
    trials: int, sweep: Sweep, memory: Store, store: S3Server
) -> None:
    for _ in range(trials):
        try_one(sweep, study.open_study(sweep, memory), 0.3)
    store.readers.add("test-key")
    before = dict(store.objects)
    assert study.remembered(sweep, memory).seen == trials
    assert store.objects == before


@pytest.mark.slow
def test_a_store_that_refuses_for_a_while_is_asked_again(
    sweep: Sweep, memory: Store, store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = study.open_study(sweep, memory)
    store.refuses = 503
    monkeypatch.setattr(journal.time, "sleep", lambda pause: setattr(store, "refuses", None))
    try_one(sweep, found, 0.3)
    assert study.remembered(sweep, memory).seen == 1


def test_a_trial_that_cannot_be_remembered_ends_the_search_and_is_not_half_there(
    sweep: Sweep, memory: Store, store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.0)
    monkeypatch.setattr(journal, "PAUSE", 0.0)
    found = study.open_study(sweep, memory)
    trial = found.ask(study.distributions(sweep))
    store.refuses = 403
    with pytest.raises(StoreError, match=r"^places\.storage=s3://bucket/x: .*AWS_"):
        found.tell(trial.number, 0.3)
    store.refuses = None
    assert found.trials[0].value is None
    found.tell(trial.number, 0.3)
    assert study.remembered(sweep, memory).complete[0].value == 0.3


def test_two_drivers_do_not_forget_what_the_other_saw(
    sweep: Sweep, memory: Store, store: S3Server
) -> None:
    first, second = study.open_study(sweep, memory), study.open_study(sweep, memory)
    try_one(sweep, second, 0.3)
    with pytest.raises(
        UserError, match=r"^places\.storage=s3://bucket/x: searches/find\.journal: "
    ):
        try_one(sweep, first, 0.1)
    assert study.remembered(sweep, memory).seen == 1


def test_a_damaged_journal_is_named_with_its_cure(
    sweep: Sweep, memory: Store, store: S3Server
) -> None:
    try_one(sweep, study.open_study(sweep, memory), 0.3)
    store.put(JOURNAL, store.objects[JOURNAL][:-5])
    with pytest.raises(UserError, match=r"find\.journal: is damaged .*; remove it: .* the ledger$"):
        study.open_study(sweep, memory)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]\n",
        b"null\n",
        b"3\n[1]\n",
        b'{"op_code": 99}\n',
        b'{"op_code": 0}\n',
        b'{"op_code": 4, "trial_id": "x", "worker_id": 3}\n',
        b"\x00\xff\xfe\n",
        b"[" * 100_000 + b"\n",
    ],
)
@pytest.mark.parametrize("keeps", [True, False])
def test_a_damaged_journal_on_a_disk_is_named_too(
    sweep: Sweep, tmp_path: Path, line: bytes, keeps: bool
) -> None:
    memory = open_store(tmp_path, "places.storage")
    try_one(sweep, study.open_study(sweep, memory), 0.3)
    file = tmp_path / "searches" / "find.journal"
    whole = file.read_bytes()
    for content in (line, line + whole) if keeps else (whole + line + whole,):
        file.write_bytes(content)
        for read in (study.open_study, study.remembered):
            with suppress(UserError):  # of a line that changes nothing there is nothing to tell
                read(sweep, memory)


def test_a_journal_that_is_a_folder_is_named(sweep: Sweep, tmp_path: Path) -> None:
    file = tmp_path / "searches" / "find.journal"
    file.mkdir(parents=True)
    for read in (study.open_study, study.remembered):
        with pytest.raises(UserError, match=r"find\.journal is "):
            read(sweep, open_store(tmp_path, "places.storage"))


def test_a_changed_space_is_another_study(sweep: Sweep, memory: Store, store: S3Server) -> None:
    try_one(sweep, study.open_study(sweep, memory), 0.3)
    wider = SEARCH.replace("[8, 16]", "[8, 16, 32]")
    sweep.path.write_text(wider)
    other = choices.load_sweep(str(sweep.path), choices.Choices())
    assert study.remembered(other, memory).seen == 0
    try_one(other, study.open_study(other, memory), 0.1)
    assert study.remembered(sweep, memory).seen == 1
    names = [json.loads(line).get("study_name") for line in store.objects[JOURNAL].splitlines()]
    assert len({name for name in names if name}) == 2
