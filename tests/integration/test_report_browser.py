"""Reports in a real browser. Screenshots go to the folder that ORCHESTRATOR_SCREENSHOTS names, else to pytest's own."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from orchestrator.cli.main import main

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("browser")]

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))
CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
"""Of Debian's packages `chromium` and `chromium-driver`."""
SIZES = {"wide": (1280, 900), "phone": (390, 844)}
_DRAWN_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A study with a failure, a published table, 200 trials, and names that try to break out; by name."""
    from test_report_page import HOSTILE, hostile_content

    from orchestrator.report.page.page import html

    folder = tmp_path_factory.mktemp("pages")
    sys.path.insert(0, str(ROOT / "tests"))
    import recorded

    recorded.demo(folder / "demo")
    assert main(["report", "demo", "--results", str(folder / "demo"), "-o", str(folder / "demo.html")]) == 0
    database = str(folder / "published.sqlite")
    assert main(["import", "published", "--db", database]) == 0
    for table in ("moonlight-16b", "nemotron-3-nano", "llama3-70b-sft"):
        page = str(folder / f"{table}.html")
        assert main(["report", f"published/{table}", "--db", database, "--target-gb", "36", "-o", page]) == 0
    spec = importlib.util.spec_from_file_location("report_benchmark", ROOT / "benchmarks" / "report.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    benchmark.fill(folder / "grid", trials=200, ranks=8, iterations=6)
    grid = ["report", "grid", "--results", str(folder / "grid"), "--target-gb", "0.0019"]
    assert main([*grid, "-o", str(folder / "grid.html")]) == 0
    for number, text in enumerate(HOSTILE):
        (folder / f"hostile-{number}.html").write_text(html(hostile_content(text)))
    return folder


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def screenshots(tmp_path_factory):
    folder = Path(os.environ.get("ORCHESTRATOR_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def show(browser, page: Path, *, size: str = "wide", scheme: str = "light") -> None:
    """Open a page and wait until its charts are drawn."""
    width, height = SIZES[size]
    browser.get_log("browser")
    browser.get_log("performance")
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page.as_uri())
    until = time.monotonic() + _DRAWN_WITHIN_S
    while not browser.execute_script("return document.documentElement.dataset.drawn"):
        assert time.monotonic() < until, browser.get_log("browser")
        time.sleep(0.05)


def requests(browser) -> list[str]:
    """What the page asked for beside itself and data that it holds."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [url for url in urls if not url.startswith("data:") and url != browser.current_url]


def marks(browser) -> dict[str, int]:
    """Drawn marks of each chart, axes and legends left out."""
    script = """const seen = box => box.width + box.height > 0;
        return Object.fromEntries([...document.querySelectorAll('figure[data-figure]')].map(figure => [
        figure.dataset.figure,
        [...figure.querySelectorAll('svg .mark-symbol path, svg .mark-rect path, svg .mark-line path')]
            .filter(path => !path.closest('.role-legend, .role-axis') && seen(path.getBBox()))
            .length]))"""
    return browser.execute_script(script)


def save(browser, path: Path) -> None:
    size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 6000), "scale": 1}
    made = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    path.write_bytes(base64.b64decode(made["data"]))


@pytest.mark.parametrize("name", ["demo", "moonlight-16b", "nemotron-3-nano", "llama3-70b-sft", "grid"])
def test_a_page_draws_every_chart_without_an_error_or_a_request(browser, pages, name):
    show(browser, pages / f"{name}.html")
    assert browser.get_log("browser") == []
    assert requests(browser) == []
    drawn = marks(browser)
    assert drawn
    assert all(drawn.values()), drawn


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["demo", "moonlight-16b", "grid"])
def test_a_page_fits_its_screen_in_light_and_dark(browser, pages, screenshots, name, scheme, size):
    show(browser, pages / f"{name}.html", size=size, scheme=scheme)
    save(browser, screenshots / f"{name}-{scheme}-{size}.png")
    # A phone widens its window to what does not fit, so the screen's own width is what counts.
    assert browser.execute_script("return document.documentElement.scrollWidth") <= SIZES[size][0]
    ink, paper = browser.execute_script(
        "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]"
    )
    assert (_brightness(ink) > _brightness(paper)) == (scheme == "dark")


@pytest.mark.parametrize("name", ["demo", "moonlight-16b", "grid"])
def test_names_in_the_scatter_cover_neither_each_other_nor_a_mark(browser, pages, name):
    for size in SIZES:
        show(browser, pages / f"{name}.html", size=size)
        script = """const boxes = which => [...document.querySelectorAll(
            '[data-figure="frontier-0"] svg ' + which)]
            .filter(one => !one.closest('.role-legend, .role-axis, .role-title') && getComputedStyle(one).opacity > 0)
            .map(one => { const box = one.getBoundingClientRect();
                return [one.textContent || 'mark', box.left, box.top, box.right, box.bottom]; });
            return [boxes('.mark-text text'), boxes('.mark-symbol path')]"""
        texts, symbols = browser.execute_script(script)
        assert len(texts) >= 2
        for number, text in enumerate(texts):
            covered = [other for other in texts[:number] + symbols if _overlap(text, other) > 1.5]
            assert not covered, (size, text, covered)


@pytest.mark.parametrize("name", ["demo", "moonlight-16b", "grid"])
def test_no_table_is_cut_on_a_screen_or_on_paper(browser, pages, name):
    cut = """return [...document.querySelectorAll('.scroll')].filter(one => one.offsetParent
        && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== 'auto').length"""
    wide = "return document.querySelector('#tradeoff .group > .scroll').scrollWidth"
    for size in SIZES:
        show(browser, pages / f"{name}.html", size=size)
        assert browser.execute_script(cut) == 0
    show(browser, pages / f"{name}.html")
    assert browser.execute_script(wide) <= SIZES["wide"][0], "the guide's table fits a laptop"
    paper = {"width": 720, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", paper)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth") <= paper["width"]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_two_hundred_trials_are_under_two_megabytes(pages):
    assert (pages / "grid.html").stat().st_size < 2_000_000


def test_filters_hide_rows_and_marks(browser, pages):
    show(browser, pages / "grid.html")
    before = marks(browser)["frontier-0"]
    browser.find_element(By.ID, "query").send_keys("shared_experts")
    _settled(browser)
    rows = browser.find_elements(By.CSS_SELECTOR, "#tradeoff tr[data-name]")
    shown = [row for row in rows if row.is_displayed()]
    assert 0 < len(shown) < len(rows)
    assert all("shared_experts" in row.get_attribute("data-name") for row in shown)
    assert 0 < marks(browser)["frontier-0"] < before
    assert browser.find_element(By.ID, "count").text == f"{len(shown)} of 200 candidates"
    Select(browser.find_element(By.ID, "kind")).select_by_value("out of memory")
    _settled(browser)
    shown = [row for row in rows if row.is_displayed()]
    assert shown
    assert {row.get_attribute("data-kind") for row in shown} == {"out of memory"}


def test_hover_tells_a_marks_figures(browser, pages):
    show(browser, pages / "moonlight-16b.html")
    tooltip = browser.find_element(By.ID, "tooltip")
    assert not tooltip.is_displayed()
    mark = browser.find_element(By.CSS_SELECTOR, '[data-figure="frontier-0"] .mark-symbol path')
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", mark)
    webdriver.ActionChains(browser).move_to_element(mark).perform()
    assert tooltip.is_displayed()
    assert "candidate" in tooltip.text
    assert "step (ms)" in tooltip.text


def test_another_candidate_shows_its_own_memory_and_settings(browser, pages):
    show(browser, pages / "grid.html")
    heat = browser.find_element(By.CSS_SELECTOR, '[data-figure="heat"]')
    before = heat.find_element(By.CSS_SELECTOR, "tbody").get_attribute("textContent")
    chooser = Select(browser.find_element(By.ID, "candidate"))
    chooser.select_by_index(37)
    _settled(browser)
    assert browser.find_element(By.ID, "candidate-place").text.startswith(chooser.first_selected_option.text)
    assert heat.find_element(By.CSS_SELECTOR, "tbody").get_attribute("textContent") != before
    assert marks(browser)["heat"] > 0
    modules = browser.find_element(By.CSS_SELECTOR, "#settings tbody tr:nth-child(2)").text
    assert all(label in modules for label in chooser.first_selected_option.text.split(", "))
    assert browser.get_log("browser") == []


def test_a_page_is_readable_by_keyboard_and_on_paper(browser, pages):
    show(browser, pages / "demo.html", scheme="dark")
    webdriver.ActionChains(browser).send_keys("\ue004").perform()
    assert browser.execute_script("return document.activeElement.className") == "skip"
    unreachable = browser.execute_script(
        "return [...document.querySelectorAll('.scroll, pre')].filter(one => one.tabIndex !== 0).length"
    )
    assert unreachable == 0
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(pdf["data"]).startswith(b"%PDF")
    assert browser.execute_script("return document.querySelectorAll('details:not(.data):not([open])').length") > 0
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script("return document.querySelectorAll('details:not(.data):not([open])').length") == 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    ink = browser.execute_script("return getComputedStyle(document.body).color")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert _brightness(ink) < 100


def test_hostile_names_and_lines_do_nothing(browser, pages):
    found = sorted(pages.glob("hostile-*.html"))
    assert len(found) > 10
    for page in found:
        show(browser, page)
        browser.find_element(By.ID, "query").send_keys("x")
        options = Select(browser.find_element(By.ID, "candidate"))
        options.select_by_index(len(options.options) - 1)
        _settled(browser)
        assert browser.execute_script("return window.pwned") is None, page
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == [], page
        assert requests(browser) == [], page


def _settled(browser) -> None:
    """Let the charts take in what changed."""
    browser.execute_async_script("const done = arguments[0]; setTimeout(() => requestAnimationFrame(done), 300)")


def _overlap(one: list, other: list) -> float:
    """Pixels by which two boxes cover each other, in the direction in which it is less."""
    return min(min(one[3], other[3]) - max(one[1], other[1]), min(one[4], other[4]) - max(one[2], other[2]))


def _brightness(colour: str) -> int:
    return sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
