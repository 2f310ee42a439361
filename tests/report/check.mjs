// The report in a real browser: no errors, no requests, readable when narrow, usable by keyboard, light and dark.
//
//   node check.mjs CHROMIUM PAGE.html SCREENSHOT_FOLDER
//
// needs playwright-core; prints one line a check and ends with the first that fails.
import { chromium } from "playwright-core";

const [browserPath, page, folder] = process.argv.slice(2);
const checks = [];
const check = (name, passed) => checks.push([name, passed]);

const browser = await chromium.launch({
  executablePath: browserPath,
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"],
});
for (const [name, viewport, colorScheme] of [
  ["wide", { width: 1100, height: 1400 }, "light"],
  ["narrow", { width: 360, height: 800 }, "light"],
  ["dark", { width: 1100, height: 1400 }, "dark"],
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
  const outside = requests.filter((url) => !url.startsWith("file://") && !url.startsWith("data:"));
  check(`${name}: nothing is fetched (${outside})`, outside.length === 0);
  check(`${name}: has a title`, (await tab.title()).startsWith("metashift report"));
  const overflow = await tab.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  check(`${name}: does not scroll sideways (${overflow})`, overflow <= 0);
  const charts = await tab.locator("svg[role=img][aria-label]").count();
  check(`${name}: charts have names (${charts})`, charts > 0 && charts === (await tab.locator("svg").count()));
  const background = await tab.evaluate(() => getComputedStyle(document.body).backgroundColor);
  check(`${name}: ${background}`, (background === "rgb(255, 255, 255)") === (colorScheme === "light"));
  const regions = await tab.locator("[role=region]").count();
  const reached = new Set();
  for (let n = 0; n < regions + 2; n += 1) {
    await tab.keyboard.press("Tab");
    reached.add(await tab.evaluate(() => document.activeElement?.getAttribute("aria-label")));
  }
  reached.delete(null);
  check(`${name}: ${reached.size} of ${regions} tables are reached by keyboard`, reached.size === regions && regions > 0);
  await tab.screenshot({ path: `${folder}/report-${name}.png`, fullPage: true });
  await context.close();
}
await browser.close();

const failed = checks.filter(([, passed]) => !passed);
for (const [name, passed] of checks) {
  console.log(`${passed ? "passed" : "FAILED"}  ${name}`);
}
console.log(`${checks.length - failed.length} passed, ${failed.length} failed`);
process.exit(failed.length === 0 && checks.length > 0 ? 0 : 1);
