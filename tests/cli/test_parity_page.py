"""The page of ``verify --report``: a heat map that is read with and without colours."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import open_folder
from tfexport.cli.reports import save_report
from tfexport.export import ParityReport
from tfexport.export.parity import STAGES, TOKEN_STAGES, Comparison


def report(*more: Comparison, **values: Any) -> ParityReport:
    sizes = [(batch, length) for batch in (1, 8) for length in (1, 33)]
    found = [
        Comparison(stage, *size, 0.0 if stage in TOKEN_STAGES else 10.0 ** -(4 + number % 5), 9)
        for number, stage in enumerate(STAGES)
        for size in sizes
    ]
    return ParityReport("eager <b>", [*found, *more], **values)


def written(folder: Path, *more: Comparison, **values: Any) -> str:
    save_report(
        report(*more, **values), "a & b.bundle", "bundle:0|cpu:<x>", str(folder / "page.html")
    )
    return (folder / "page.html").read_text(encoding="utf-8")


def test_cells_are_warm_only_where_most_of_the_allowance_is_taken(tmp_path: Path) -> None:
    least = [Comparison("beam", 4, 9 + i, it, 9) for i, it in enumerate((5e-5, 6e-5, 8e-5, 1e-4))]
    wide = Comparison("beam", 4, 20, 3e-4, 9, noise=2e-4)
    page = written(tmp_path, *least, wide)
    heats = {text: float(heat) for heat, text in
             re.findall(r'<td style="--heat: ([\d.]+)">([^<]+)</td>', page)}  # fmt: skip
    assert heats["9 equal"] == 0
    assert {heats[f"1.0e-0{digit}"] for digit in (5, 6, 7, 8)} == {0}
    assert heats["5.0e-05"] == 0
    in_order = [heats[text] for text in ("6.0e-05", "8.0e-05", "1.0e-04")]
    assert in_order == sorted(set(in_order))
    assert heats["1.0e-04"] == 1
    assert heats["3.0e-04"] == 0, "it takes little of what this model is allowed"
    assert "✗ 1" not in page


def test_a_difference_stands_out_without_colours_too(tmp_path: Path) -> None:
    page = written(tmp_path, Comparison("beam", 2, 7, 0.5, 3), Comparison("text", 2, 7, 2.0, 3))
    assert re.findall(r'<td class="wrong">([^<]+)<', page) == ["✗ 5.0e-01", "✗ 2 rows differ"]
    assert "NOT equal" in page


@pytest.mark.parametrize(
    ("more", "said", "figures"),
    [
        ([], "equal to eager &lt;b&gt;",
         "144 greedy tokens over 4 shapes, largest difference 1.0e-04"),
        ([Comparison("beam", 2, 7, 0.5, 3)], "NOT equal to eager &lt;b&gt;",
         f"First difference in beam; 1 of {4 * len(STAGES) + 1} comparisons differ"),
    ],
    ids=["equal", "differs"],
)  # fmt: skip
def test_the_verdict_stands_first_and_all_of_the_page_agrees_with_it(
    tmp_path: Path, more: list[Comparison], said: str, figures: str
) -> None:
    page = written(tmp_path, *more, not_run="")
    assert f"<title>a &amp; b.bundle: {said}</title>" in page
    below = page.partition(f"<h1>a &amp; b.bundle: {said}</h1>\n")[2]
    verdict = re.match(r"<p><strong>(.*?)\.?</strong></p>", below)
    assert verdict is not None
    assert verdict[1].startswith(figures)
    assert "Your own forward was not run" in below, "a note below the verdict"
    assert ("✗ differs" in page) == bool(more)


def test_a_page_of_nothing_compared_says_so(tmp_path: Path) -> None:
    save_report(ParityReport("eager"), "a.bundle", "", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>a.bundle: not compared with eager</title>" in page
    assert "equal" not in page.partition("<h1>")[2].partition("<table>")[0]
    assert "✗" not in page


def test_a_difference_that_rounding_does_not_explain_is_told(tmp_path: Path) -> None:
    small = Comparison("eager modules", 2, 7, 9e-5, 3, noise=5e-6)
    assert "<p>eager modules: differs by 9e-05, 18 times what" in written(tmp_path, small)
    assert "differs by" not in written(tmp_path)


def test_names_are_text_and_nothing_is_fetched(tmp_path: Path) -> None:
    page = written(tmp_path)
    assert "eager &lt;b&gt;" in page
    assert "cpu:&lt;x&gt;" in page
    assert "a &amp; b.bundle" in page
    assert not re.search(r"<script|https?:|@import|url\(", page)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_a_browser(tmp_path: Path, scheme: str) -> None:
    written(tmp_path, Comparison("beam", 2, 7, 0.5, 3))
    with open_folder(tmp_path, "page.html") as browser:
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        size = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 360
        ground = luminance(colour(browser, "body", "background-color"))
        assert (ground > 0.5) == (scheme == "light")
        for place in ("td[style]", "td.wrong", "th", "caption", "td[style*='1.00']"):
            ink = luminance(colour(browser, place, "color"))
            below = colour(browser, place, "background-color")
            here = luminance(over(below, colour(browser, "body", "background-color")))
            contrast = (max(ink, here) + 0.05) / (min(ink, here) + 0.05)
            assert contrast >= 4.5, place


def colour(browser: Any, place: str, name: str) -> list[float]:
    """Red, green, blue and opacity, from 0 to 1, as the browser paints them."""
    code = """
        const canvas = document.createElement("canvas").getContext("2d");
        canvas.fillStyle = getComputedStyle(document.querySelector(arguments[0]))
          .getPropertyValue(arguments[1]);
        canvas.fillRect(0, 0, 1, 1);
        return Array.from(canvas.getImageData(0, 0, 1, 1).data).map(value => value / 255);
    """
    values: list[float] = browser.execute_script(code, place, name)
    return values


def over(top: list[float], below: list[float]) -> list[float]:
    return [top[i] * top[3] + below[i] * (1 - top[3]) for i in range(3)]


def luminance(rgb: list[float]) -> float:
    """As WCAG defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
