"""The page as a person sees it: in Chromium."""

from pathlib import Path
from typing import Any

import pytest
from browsers import until
from reported_cells import evaluate, finish, rows, small_sweep

from capsweep.ledger.ledger import Ledger
from capsweep.report import page, table


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a sweep with finished cells and pictures."""
    folder = tmp_path_factory.mktemp("ledger")
    sweep, points = small_sweep(folder)
    for place, point in enumerate(points[:5]):
        made = rows([0.4 / (1 + place), 0.2 / (1 + place), 0.1 / (1 + place)])
        kept = finish(folder, point, 0.01 * (1 + place), made)
        evaluate(kept, "reconstructions", "Inputs above, drawn below.")
    ledger = Ledger(folder)
    answer = table.build_table(sweep, points, ledger)
    return page.write_page(answer, ledger, folder / "report").as_uri()


def test_a_number_opens_its_cells_and_a_picture_its_own(browser: Any, address: str) -> None:
    browser.get(address)
    assert browser.get_log("browser") == []
    details = browser.find_element("id", "cells-1-0")
    assert details.get_attribute("open") is None
    browser.find_element("css selector", "#table a[href='#cells-1-0']").click()
    until(browser, lambda: details.get_attribute("open") is not None)
    inner = browser.find_element("id", "cells-0-0-0")
    assert not inner.find_element("tag name", "dl").is_displayed()
    browser.find_element("css selector", "figcaption a[href='#cells-0-0-0']").click()
    until(browser, lambda: inner.find_element("tag name", "dl").is_displayed())
    assert "c0ffee" in inner.text
    place = "const y = arguments[0].getBoundingClientRect().top; return 0 <= y && y < innerHeight"
    until(browser, lambda: browser.execute_script(place, inner))


@pytest.mark.parametrize("width", [1300, 390])
def test_the_answer_its_picture_and_the_table_follow_one_another_and_fit(
    browser: Any, address: str, width: int
) -> None:
    size = {"width": width, "height": 2000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(address)
    names = (".answer", "#figure-table img", "#table table")
    sentence, picture, table = (browser.find_element("css selector", name) for name in names)
    assert sentence.text.startswith("Against cnn with 1 to 2 seeds: capsnet · 1: ")
    assert sentence.location["y"] < picture.location["y"] < table.location["y"] < 2000
    shown = browser.execute_script("return arguments[0].naturalWidth", picture)
    letters = 9 * picture.size["width"] / (shown / 200 * 72)  # pixels; drawn with 9 points
    assert letters > 9
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_the_page_of_a_running_sweep_reloads_itself_until_the_sweep_ends(
    browser: Any, tmp_path: Path
) -> None:
    sweep, points = small_sweep(tmp_path)
    ledger = Ledger(tmp_path)
    for place, is_live in enumerate((True, True, False)):
        finish(tmp_path, points[place], 0.01)
        answer = table.build_table(sweep, points, ledger)
        path = page.write_page(answer, ledger, tmp_path / "report", is_live)
        path.write_text(path.read_text().replace('data-seconds="15"', 'data-seconds="0.2"'))
        if not place:
            browser.get(path.as_uri())
        until(browser, lambda done=place + 1: f"{done} stale" in browser.page_source)
    assert not browser.find_elements("css selector", ".running")
