// A report in a real browser: no errors, no requests, readable when narrow, usable by keyboard, light and dark.
//
//   node check.mjs CHROMIUM PAGE.html SCREENSHOT_FOLDER SECTION,SECTION,...
//
// needs playwright-core; prints one line a check and ends with 1 if one failed. The sections are the ids that the page has
// to have, all of them and in this order.
import { basename } from "node:path";
import { chromium } from "playwright-core";

const [browserPath, page, folder, sections] = process.argv.slice(2);
const checks = [];
const check = (name, passed) => checks.push([name, passed]);

/// What the page shows, measured by the browser.
function measure() {
  const channel = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (colour) => {
    const [red, green, blue] = colour.match(/[\d.]+/g).map((text) => channel(Number(text) / 255));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (element) => {
    const colour = getComputedStyle(element).backgroundColor;
    return /, 0\)$/.test(colour) && element.parentElement ? behind(element.parentElement) : colour;
  };
  const contrast = (element, colour) => {
    const [bright, dark] = [luminance(colour), luminance(behind(element))].sort((a, b) => b - a);
    return (bright + 0.05) / (dark + 0.05);
  };
  const texts = [...document.querySelectorAll("body *")].filter((element) =>
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim() !== "") &&
    element.closest("svg") === null);
  const charts = [...document.querySelectorAll("svg")];
  const inside = (box) => box.left >= 0 && box.right <= window.innerWidth + 0.5;
  return {
    background: getComputedStyle(document.body).backgroundColor,
    sections: [...document.querySelectorAll("section > h2")].map((heading) => heading.id),
    overflow: document.documentElement.scrollWidth - window.innerWidth,
    charts: charts.length,
    namedCharts: charts.filter((chart) => chart.getAttribute("role") === "img" && chart.getAttribute("aria-label")).length,
    visibleCharts: charts.filter((chart) => {
      const box = chart.getBoundingClientRect();
      const bars = [...chart.querySelectorAll("rect")].some((bar) => bar.getBoundingClientRect().width >= 1);
      return inside(box) && box.width >= 200 && box.height >= 8 && bars;
    }).length,
    barContrast: Math.min(...[...document.querySelectorAll("rect.bar")].map((bar) => contrast(bar, getComputedStyle(bar).fill))),
    textContrast: Math.min(...texts.map((element) => contrast(element, getComputedStyle(element).color))),
    smallestText: Math.min(...texts.map((element) => Number.parseFloat(getComputedStyle(element).fontSize))),
    outside: texts.filter((element) => element.closest(".scroll") === null && !inside(element.getBoundingClientRect()))
      .map((element) => element.textContent.trim().slice(0, 40)),
    narrowestCell: Math.min(...[...document.querySelectorAll("td")].map((cell) => cell.getBoundingClientRect().width)),
    tallestRow: Math.max(...[...document.querySelectorAll("tr")].map((row) => row.getBoundingClientRect().height)),
    emptyCells: [...document.querySelectorAll("thead th")].filter((cell) => cell.textContent.trim() === "").length,
    scripts: document.scripts.length,
  };
}

const browser = await chromium.launch({
  executablePath: browserPath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"],
});
for (const [name, viewport, colorScheme] of [
  ["wide", { width: 1100, height: 1400 }, "light"],
  ["wide-dark", { width: 1100, height: 1400 }, "dark"],
  ["narrow", { width: 360, height: 800 }, "light"],
  ["narrow-dark", { width: 360, height: 800 }, "dark"],
]) {
  const context = await browser.newContext({ viewport, colorScheme, offline: true });
  const tab = await context.newPage();
  const complaints = [];
  const requests = [];
  tab.on("console", (message) => complaints.push(message.text()));
  tab.on("pageerror", (error) => complaints.push(String(error)));
  tab.on("request", (request) => requests.push(request.url()));
  await tab.goto(`file://${page}`);
  check(`${name}: nothing on the console (${complaints})`, complaints.length === 0);
  const outside = requests.filter((url) => url !== `file://${page}` && !url.startsWith("data:"));
  check(`${name}: nothing is fetched (${outside})`, outside.length === 0);
  check(`${name}: has a title`, (await tab.title()).startsWith("metashift report"));
  const seen = await tab.evaluate(measure);
  check(`${name}: sections ${seen.sections}`, `${seen.sections}` === sections);
  check(`${name}: no script`, seen.scripts === 0);
  check(`${name}: does not scroll sideways (${seen.overflow})`, seen.overflow <= 0);
  check(`${name}: no text sticks out (${seen.outside})`, seen.outside.length === 0);
  check(`${name}: ${seen.namedCharts} of ${seen.charts} charts have names`, seen.charts > 0 && seen.charts === seen.namedCharts);
  check(`${name}: ${seen.visibleCharts} of ${seen.charts} charts show something`, seen.charts === seen.visibleCharts);
  check(`${name}: bars stand out, ${seen.barContrast.toFixed(1)}`, seen.barContrast >= 3);
  check(`${name}: text stands out, ${seen.textContrast.toFixed(1)}`, seen.textContrast >= 4.5);
  check(`${name}: text is at least 12 pixels, ${seen.smallestText}`, seen.smallestText >= 12);
  check(`${name}: cells are wide enough, ${seen.narrowestCell}`, seen.narrowestCell >= 30);
  check(`${name}: rows are not taller than a screen, ${seen.tallestRow}`, seen.tallestRow < 600);
  check(`${name}: every column has a name`, seen.emptyCells === 0);
  check(`${name}: ${seen.background}`, (seen.background === "rgb(255, 255, 255)") === (colorScheme === "light"));
  const regions = await tab.locator("[role=region]").count();
  const reached = new Set();
  let outlined = 0;
  for (let n = 0; n < regions + 2; n += 1) {
    await tab.keyboard.press("Tab");
    const [label, outline] = await tab.evaluate(() => {
      const focused = document.activeElement;
      return [focused?.getAttribute("aria-label"), focused ? getComputedStyle(focused).outlineStyle : "none"];
    });
    if (label && !reached.has(label)) {
      reached.add(label);
      outlined += outline === "none" ? 0 : 1;
    }
  }
  check(`${name}: ${reached.size} of ${regions} tables are reached by keyboard`, reached.size === regions && regions > 0);
  check(`${name}: ${outlined} of ${regions} show that they are`, outlined === regions);
  await tab.evaluate(() => document.activeElement?.blur());
  await tab.screenshot({ path: `${folder}/${basename(page, ".html")}-${name}.png`, fullPage: true });
  await context.close();
}
await browser.close();

const failed = checks.filter(([, passed]) => !passed);
for (const [name, passed] of checks) {
  console.log(`${passed ? "passed" : "FAILED"}  ${name}`);
}
console.log(`${basename(page)}: ${checks.length - failed.length} passed, ${failed.length} failed`);
process.exit(failed.length === 0 && checks.length > 0 ? 0 : 1);
