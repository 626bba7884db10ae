"""Headless Chromium, for pages that a person looks at."""

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.support import ui

FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
FLAGS += "--disable-quic --disable-component-update --disable-sync --disable-dev-shm-usage"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium; skips visibly where it or its driver is absent."""
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed (Debian: chromium and chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    profile = tmp_path_factory.mktemp("profile")
    for flag in (*FLAGS.split(), f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SE_OFFLINE", "SE_AVOID_STATS"):  # nothing is fetched, and nobody told
            patch.setenv(name, "true")
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def until(browser: Any, holds: Callable[[], bool]) -> None:
    """A browser tells its page of a click after it has answered us."""
    ui.WebDriverWait(browser, 20, poll_frequency=0.05).until(lambda _: holds())
