// Starts headless Chromium.
import { existsSync } from "node:fs";
import { delimiter, join } from "node:path";
import puppeteer from "puppeteer-core";

const NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

// Returns the path of the browser: the value of CHROMIUM or, by default, the first browser on the PATH.
function path() {
  const directories = (process.env.PATH ?? "").split(delimiter);
  const found = NAMES.flatMap((name) => directories.map((directory) => join(directory, name))).find(existsSync);
  const path = process.env.CHROMIUM || found;
  if (!path) {
    throw new Error("Chromium is not installed: run tests/cluster/cluster browser, or set CHROMIUM to the path of a browser");
  }
  return path;
}

// Starts Chromium with additional arguments.
export function start(additional = []) {
  // Disables the sandbox, which Chromium does not support as root. The tests open only pages of the controller and of the
  // OIDC issuer of the test cluster.
  const sandbox = process.getuid() === 0 ? ["--no-sandbox"] : [];
  return puppeteer.launch({
    executablePath: path(),
    args: [...sandbox, "--disable-dev-shm-usage", "--disable-background-networking", "--lang=en", ...additional],
  });
}
