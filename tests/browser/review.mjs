// Review of a page in light and dark colors and on a narrow screen: accessibility, layout and screenshots.
import assert from "node:assert/strict";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import axe from "axe-core";

const VIEWS = [
  { view: "light", scheme: "light", width: 1280, height: 900 },
  { view: "dark", scheme: "dark", width: 1280, height: 900 },
  { view: "mobile", scheme: "light", width: 390, height: 844 },
  { view: "mobile-dark", scheme: "dark", width: 390, height: 844 },
];

// Checks the page in all views, and writes the screenshots of the page to a directory.
export async function review(visitor, directory, name) {
  await mkdir(directory, { recursive: true });
  for (const { view, scheme, width, height } of VIEWS) {
    const where = `${name}, ${view}`;
    await visitor.page.setViewport({ width, height });
    await visitor.page.emulateMediaFeatures([
      { name: "prefers-color-scheme", value: scheme },
      // Disables animations, which change the contrast of texts while axe measures the contrast.
      { name: "prefers-reduced-motion", value: "reduce" },
    ]);
    await visitor.page.screenshot({ path: join(directory, `${name}-${view}.png`), fullPage: true, captureBeyondViewport: false });
    assert.deepEqual(await visitor.evaluate(findWideElements), [], `${where}: elements wider than the screen`);
    assert.deepEqual(await findViolations(visitor), [], `${where}: violations that axe found`);
  }
  await visitor.page.setViewport({ width: VIEWS[0].width, height: VIEWS[0].height });
}

// Returns the serious and critical violations of accessibility rules.
async function findViolations(visitor) {
  // The browser evaluates the source as a debugger, which the Content-Security-Policy of the page does not limit.
  const violations = await visitor.evaluate(async (source) => {
    if (!window.axe) {
      (0, eval)(source);
    }
    return (await window.axe.run(document, { resultTypes: ["violations"] })).violations;
  }, axe.source);
  const found = violations.filter(({ impact }) => ["serious", "critical"].includes(impact) || process.env.AXE_ALL);
  return found.map(({ id, impact, nodes }) => `${impact} ${id}: ${nodes.map((node) => node.html.slice(0, 200)).join(" | ")}`);
}

// Returns elements that cause a horizontal scroll bar of the page. Runs in the page.
function findWideElements() {
  const limit = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= limit) {
    return [];
  }
  const wide = [...document.body.querySelectorAll("*")].filter((element) => element.getBoundingClientRect().right > limit + 1);
  return wide.map((element) => `${element.tagName.toLowerCase()}.${element.className}: ${element.textContent.trim().slice(0, 60)}`).slice(0, 10);
}
