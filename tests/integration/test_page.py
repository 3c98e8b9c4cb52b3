# SPDX-License-Identifier: Apache-2.0
"""The agent's page in headless Chromium: on a phone and on wide screens, light and dark."""

import json
import re
import shutil
import subprocess

import pytest

from amp_nova.agent.publish.page import render
from tests.unit.agent.publish.test_page import view
from tests.unit.lab.builders import guest

WIDTHS = (320, 390, 768, 1280, 1920)
CONTRAST_LEAST = 4.5
"""WCAG 2.1, success criterion 1.4.3, for text of normal size."""
HARNESS = """<!doctype html><body><pre id="result"></pre><script>
const page = %s, widths = %s, found = [];
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const light = c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
function background(view, element) {
  for (; element; element = element.parentElement) {
    const colour = rgb(view.getComputedStyle(element).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
}
function measure(frame, width) {
  const view = frame.contentWindow, html = view.document.documentElement;
  const all = [...html.querySelectorAll("body *")];
  const over = all.filter(e => !e.closest("svg, .scroll, li")
    && e.getBoundingClientRect().right > width + 1);
  const texts = all.filter(e => !e.closest("svg")
    && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  const contrasts = texts.map(e => {
    const a = luminance(rgb(view.getComputedStyle(e).color));
    const b = luminance(background(view, e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  });
  const charts = all.filter(e => e.matches("svg[role=img]"));
  const least = Math.min(...contrasts);
  return {
    width, scroll: html.scrollWidth, over: over.map(e => e.className || e.tagName),
    contrast: least, faintest: texts[contrasts.indexOf(least)].textContent,
    charts: charts.map(e => e.getBoundingClientRect().width),
    columns: new Set([...html.querySelectorAll("td")]
      .map(e => e.getBoundingClientRect().left)).size,
    page: view.getComputedStyle(view.document.body).backgroundColor,
  };
}
let left = widths.length;
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style = `border: 0; width: ${width}px; height: 3000px`;
  frame.srcdoc = page;
  frame.onload = () => {
    found.push(measure(frame, width));
    if (--left === 0) document.getElementById("result").textContent = JSON.stringify(found);
  };
  document.body.append(frame);
}
</script></body>"""


@pytest.fixture(scope="module")
def text():
    """A page with all that it can show: long names, shortfalls, both units, many changes."""
    long = "a-rather-long-name-of-an-instance-that-somebody-chose-2026"
    over_booked = [guest(f"web-{i}", pref_core="0.9") for i in range(6)]
    counted = guest("counted", ips="0.5G")
    return render(view(*over_booked, guest(long, pref_core="0.4"), counted, guest("batch")))


def measured(tmp_path, text, scheme):
    """What the browser measures in every width."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("chromium is not installed")
    # As a string of a script, "</script>" must not end it.
    quoted = json.dumps(text).replace("</", "<\\/")
    # The page reloads itself; while it is measured it must not.
    quoted = re.sub(r"<meta http-equiv=\\\"refresh\\\"[^>]*>", "", quoted)
    (tmp_path / "harness.html").write_text(HARNESS % (quoted, json.dumps(WIDTHS)))
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path}/profile",
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
            "--virtual-time-budget=10000",
            "--window-size=2000,3000",
            "--dump-dom",
            (tmp_path / "harness.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    result = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.S)[1]
    assert result, done.stderr
    return {found["width"]: found for found in json.loads(result.replace("&amp;", "&"))}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_every_screen_and_can_be_read(tmp_path, text, scheme):
    """Nothing sticks out, charts are as wide as their cards, and no text is faint.

    The page is dark where the browser is.
    """
    found = measured(tmp_path, text, scheme)

    assert set(found) == set(WIDTHS)
    for width, seen in found.items():
        assert seen["scroll"] <= width, seen["over"]
        assert seen["over"] == []
        assert seen["contrast"] >= CONTRAST_LEAST, (width, seen["faintest"])
        assert min(seen["charts"]) > 150
    assert [found[w]["columns"] for w in (390, 1280)] == [1, 5]
    brightness = sum(map(int, re.findall(r"\d+", found[1280]["page"])[:3]))
    assert brightness < 150 if scheme == "dark" else brightness > 600
