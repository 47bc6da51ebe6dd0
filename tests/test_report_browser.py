"""The report in a real browser: nothing is fetched, tables sort by click and by key, and copying fills the clipboard.

Needs chromium, chromedriver and selenium; skipped, with the reason, where one is missing.
"""

from __future__ import annotations

import csv
import io
import json
import shutil

import handmade
import pytest

import drafterzoo

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    program, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no chromium and chromedriver here (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)) as started:
        yield started


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """The browser with a report of two decoded sections and one of diagnoses open."""
    root = tmp_path_factory.mktemp("report")
    handmade.write(root / "runs" / "a")
    handmade.write(root / "runs" / "b", None, handmade.conditions(run__batch_size=2))
    handmade.write_diagnosis(root / "runs" / "c", "good")
    handmade.write_diagnosis(root / "runs" / "d", "good+pr", again=True)
    written = drafterzoo.report(root / "runs", root / "out", definition="vllm")
    browser.get("data:,")
    browser.get_log("performance")  # the browser's own start page
    browser.get(written.page.as_uri())
    return browser


def column(page, table, index):
    script = (
        "return [...document.getElementById(arguments[0]).tBodies[0].rows].map(r => r.cells[arguments[1]].innerText)"
    )
    return page.execute_script(script, table, index)


def head(page, table, index):
    return page.find_elements("css selector", f"#{table} thead th")[index]


def pasted(page, kind, table="leaderboard-1"):
    """What the clipboard holds after a click on a table's button: pasted, as a reader would, into a field."""
    from selenium.webdriver.common.keys import Keys

    page.find_element("css selector", f"[data-table={table}] [data-copy={kind}]").click()
    said = page.find_element("css selector", f"[data-table={table}] .told")
    for _ in range(50):
        if said.text:
            break
        page.execute_async_script("setTimeout(arguments[0], 20)")
    assert said.text == "Copied."
    page.execute_script(
        "const a = document.createElement('textarea'); a.id = 'paste'; document.body.append(a); a.focus()"
    )
    field = page.find_element("id", "paste")
    field.send_keys(Keys.CONTROL, "v")
    text = field.get_property("value")
    page.execute_script("document.getElementById('paste').remove()")
    return text


def test_nothing_is_fetched_and_nothing_fails(page):
    sent = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"]
    assert asked and all(address.startswith(("file:", "data:")) for address in asked)
    assert sum(address.startswith("file:") for address in asked) == 1
    assert not [entry for entry in page.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    script = "return [...document.images].every(image => image.complete && image.naturalWidth > 0)"
    assert page.execute_script(script)


def test_tables_sort_by_click_and_by_key(page):
    from selenium.webdriver.common.keys import Keys

    table = "leaderboard-1"
    assert column(page, table, 0) == ["plain", "good", "poor"]
    head(page, table, 2).find_element("tag name", "button").click()  # τ: numbers begin with the largest
    assert column(page, table, 0) == ["good", "plain", "poor"]
    assert head(page, table, 2).get_attribute("aria-sort") == "descending"
    button = head(page, table, 0).find_element("tag name", "button")
    button.send_keys(Keys.ENTER)  # words begin with a
    assert (
        column(page, table, 0) == ["plain", "good", "poor"] and head(page, table, 2).get_attribute("aria-sort") is None
    )
    button.send_keys(Keys.SPACE)
    assert column(page, table, 0) == ["poor", "good", "plain"]
    assert head(page, table, 0).get_attribute("aria-sort") == "descending"
    head(page, table, 4).find_element("tag name", "button").click()
    assert column(page, table, 4) == ["3.25", "1.00", "-"]  # what has no number stays last
    head(page, table, 4).find_element("tag name", "button").click()
    assert column(page, table, 4) == ["1.00", "3.25", "-"]


def test_tables_are_copied_as_markdown_and_csv(page):
    head(page, "leaderboard-1", 2).find_element("tag name", "button").click()
    first, rule, best, *_ = pasted(page, "markdown").splitlines()
    assert first.startswith("| drafter | budget | τ with bonus [95 %] | τ macro | τ by vLLM ‡ |")
    assert rule.startswith("| --- | --- | ---: | ---: |") and best.startswith("| good | chain:3 | 2.40 [")
    rows = list(csv.DictReader(io.StringIO(pasted(page, "csv"))))
    assert [row["drafter"] for row in rows] == column(page, "leaderboard-1", 0)
    good = next(row for row in rows if row["drafter"] == "good")
    assert float(good["tau"]) == 2.4 and float(good["tau_low"]) <= 2.4 <= float(good["tau_high"])
    assert float(good["speedup"]) == pytest.approx(4 / 3, abs=1e-5) and good["texts"] == "3"


@pytest.mark.parametrize("width", [1280, 375, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_any_width_and_follows_the_reader_s_scheme(page, width, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for details in page.find_elements("tag name", "details"):
        page.execute_script("arguments[0].open = true", details)
    assert page.execute_script("return document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    script = "return [...document.querySelectorAll('.scroll')].some(box => box.scrollWidth > box.clientWidth)"
    assert page.execute_script(script) or width > 500  # wide tables scroll inside their box
    dark = page.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    assert dark == (scheme == "dark")
    shown = page.execute_script("return document.images[0].currentSrc")
    wanted = page.find_element("css selector", "picture source" if dark else "picture img")
    assert shown == wanted.get_attribute("srcset" if dark else "src")


def test_it_can_be_read_without_seeing_it(page):
    script = """
        const named = (e) => e.getAttribute("aria-label") || e.innerText.trim();
        return [
            [...document.images].every((e) => e.alt.length > 40),
            [...document.querySelectorAll("button")].every(named),
            [...document.querySelectorAll("[aria-labelledby]")].every(
                (e) => document.getElementById(e.getAttribute("aria-labelledby"))),
            [...document.querySelectorAll("thead th")].every((e) => e.scope === "col"),
            [...document.querySelectorAll("tbody tr")].every((e) => e.cells[0].scope === "row"),
            new Set([...document.querySelectorAll("[id]")].map((e) => e.id)).size
                === document.querySelectorAll("[id]").length,
        ]"""
    assert page.execute_script(script) == [True] * 6
