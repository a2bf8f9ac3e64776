"""A real browser for tests of pages: Debian's chromium, driven by selenium."""

import shutil
from importlib.util import find_spec

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
NEEDS_BROWSER = pytest.mark.skipif(
    not (CHROMIUM and DRIVER and find_spec("selenium")),
    reason="needs chromium, chromedriver (Debian: chromium, chromium-driver) and selenium",
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1300,1000"),
)


def start(profile):
    """Return a browser with a fresh profile folder; the caller quits it."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


def hover(browser, place):
    """Move the pointer to a place in the window, by way of the page's corner."""
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    actions = ActionBuilder(browser, duration=0)
    actions.pointer_action.move_to_location(2, 2)
    actions.pointer_action.move_to_location(round(place["x"]), round(place["y"]))
    actions.perform()


def drag(browser, place, across):
    """Press at a place, move sideways, and let go."""
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    actions = ActionBuilder(browser, duration=0)
    actions.pointer_action.move_to_location(round(place["x"]), round(place["y"]))
    actions.pointer_action.pointer_down()
    actions.pointer_action.move_to_location(round(place["x"]) + across, round(place["y"]))
    actions.pointer_action.pointer_up()
    actions.perform()
