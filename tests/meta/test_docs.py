"""The site that `make docs` builds, and what its pages promise."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trained_cells
from browsers import until

from capsweep.config import compose

REPOSITORY = Path(__file__).resolve().parents[2]
PHONE = 390  # pixels across
PAGES = ("index", "docs/claims", "docs/how-to/run-a-sweep", "docs/routings", "sweeps/ablation")
PAGES += ("reference/model/routing/dynamic",)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site, built strictly: a dead link or an unknown anchor is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_a_page_fetches_nothing_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    fetched = re.compile(r"<(?:script|img|iframe|link)[^>]+(?:src|href)=[\"']?(https?://[^\"' >]+)")
    assert {path.name: urls for path in pages if (urls := fetched.findall(path.read_text()))} == {}


def test_the_reference_has_every_module_that_users_import(site: Path) -> None:
    page = (site / "reference/model/routing/dynamic.html").read_text()
    assert 'id="capsweep.model.routing.dynamic.reference"' in page
    for name in ("model", "data", "shards", "statistics"):
        for path in (REPOSITORY / "src/capsweep" / name).rglob("[!_]*.py"):
            module = path.relative_to(REPOSITORY / "src/capsweep").with_suffix(".html")
            assert (site / "reference" / module).exists(), module


def test_pages_fit_on_a_phone_and_find_what_is_searched(browser: Any, site: Path) -> None:
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=site, **quiet) as server:
        try:
            address = re.findall(r"http://\S+/", server.stdout.readline())[0]
            browser.set_window_size(PHONE, 800)
            for name in PAGES:
                browser.get(f"{address}{name}.html")
                assert browser.execute_script("return document.body.scrollWidth") <= PHONE, name
                assert browser.get_log("browser") == []
            browser.get(f"{address}index.html?q=squash")
            found = "return document.querySelectorAll('.md-search-result__item').length"
            until(browser, lambda: browser.execute_script(found) > 0)
        finally:
            server.terminate()


def test_the_page_for_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["routing.num_iters=1"], ["model=cnn_small", "loss=cross_entropy"]):
        quick = ("experiment=digits", "epochs=1", "limit_batches=2", "logger=csv")
        trained_cells.train(compose.cell([*quick, *words]))
    page = (REPOSITORY / "docs/how-to/use-from-python.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 6
    command = [sys.executable, "-W", "error::UserWarning", "-c", "\n".join(blocks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[32, 10, 16]" in done.stdout
    assert "cnn_small" in done.stdout


def test_numbers_of_the_readme_stand_in_the_answer_that_their_sentence_links() -> None:
    _, _, findings = (REPOSITORY / "README.md").read_text().partition("\n## What is known\n")
    items = [item for item in findings.partition("\n## ")[0].split("\n- ")[1:] if item]
    assert len(items) >= 3
    for item in items:
        links = re.findall(r"\]\(((?:sweeps|docs)/\w+\.md)", item)
        assert links, item
        linked = " ".join((REPOSITORY / link).read_text() for link in links)
        for number in re.findall(r"\d+\.\d+|\d+,\d{3}", item):
            assert number in linked, (number, links)
