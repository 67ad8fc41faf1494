// A user of the web UI, who has a browser with its own cookies. The class records the problems of all pages.
import assert from "node:assert/strict";

const LIMIT = 30_000;

export class Visitor {
  // Number of links and buttons that the user has activated.
  clicks = 0;
  // Problems of all pages: errors in the console, violations of the Content-Security-Policy, and requests to other hosts.
  problems = [];

  // Opens a browser with its own cookies. `script: false` disables JavaScript, and `issuer` is the origin of the OIDC
  // issuer to which the UI can redirect the browser.
  static async open(browser, url, { script = true, issuer } = {}) {
    const visitor = new Visitor();
    visitor.url = url;
    visitor.origins = [url, issuer];
    visitor.context = await browser.createBrowserContext();
    await visitor.#openPage();
    await visitor.page.setJavaScriptEnabled(script);
    return visitor;
  }

  // Opens another tab of this browser, which has the same cookies.
  async openTab() {
    const tab = Object.assign(new Visitor(), { url: this.url, origins: this.origins, context: this.context });
    await tab.#openPage();
    return tab;
  }

  async #openPage() {
    this.page = await this.context.newPage();
    this.page.setDefaultTimeout(LIMIT);
    await this.#watch();
  }

  async #watch() {
    const { page, problems, origins } = this;
    page.on("pageerror", (error) => problems.push(`error of the script: ${error.message}`));
    page.on("request", (request) => {
      const { protocol, origin } = new URL(request.url());
      if (protocol !== "data:" && !origins.includes(origin)) {
        problems.push(`request to another host: ${request.url()}`);
      }
    });
    // Chromium also reports violations of the Content-Security-Policy and failed requests in its log.
    const session = await page.createCDPSession();
    await session.send("Log.enable");
    session.on("Log.entryAdded", ({ entry }) => {
      if (entry.level === "error" || entry.source === "security") {
        problems.push(`${entry.source} ${entry.level}: ${entry.text} (${entry.url ?? page.url()})`);
      }
    });
    page.on("console", (message) => {
      if (["error", "warn"].includes(message.type())) {
        problems.push(`console ${message.type()}: ${message.text()}`);
      }
    });
  }

  // Fails if a page had a problem, except a response with the expected status.
  assertNoProblems(expectedStatus) {
    const isExpected = (problem) => expectedStatus !== undefined && problem.includes(`status of ${expectedStatus} `);
    const found = this.problems.splice(0).filter((problem) => !isExpected(problem));
    assert.deepEqual(found, []);
  }

  async goto(path) {
    const response = await this.page.goto(this.url + path);
    assert.ok(response.ok(), `${path} returned ${response.status()}`);
  }

  // Activates the link or the button with this accessible name, and waits for the next page.
  async follow(role, name) {
    this.clicks += 1;
    const element = await this.#find(`::-p-aria([name="${name}"][role="${role}"])`);
    await this.#navigate(() => element.click());
  }

  // Presses a key that opens another page.
  async pressAndWait(key) {
    await this.#navigate(() => this.page.keyboard.press(key));
  }

  async #navigate(action) {
    // Waits only for the document, because a stream of the page keeps the network busy.
    await Promise.all([this.page.waitForNavigation({ waitUntil: "domcontentloaded" }), action()]);
  }

  // Waits for an element. The wait functions of Puppeteer require JavaScript in the page, which a test can disable.
  async #find(selector) {
    let element;
    await this.until(`the element ${selector}`, async () => (element = await this.page.$(selector)) !== null);
    return element;
  }

  async type(label, text) {
    const element = await this.#find(`::-p-aria([name="${label}"])`);
    await element.focus();
    await this.page.keyboard.type(text);
  }

  async signIn(token) {
    await this.goto("/sign-in");
    await this.type("Token of the Kubernetes API", token);
    await this.follow("button", "Sign in");
    this.clicks = 0;
  }

  // Returns the visible text of the page.
  text(selector = "main") {
    return this.evaluate((selector) => document.querySelector(selector)?.innerText ?? "", selector);
  }

  // Returns whether the page has a link or a button with this accessible name.
  async has(role, name) {
    return (await this.page.$(`::-p-aria([name="${name}"][role="${role}"])`)) !== null;
  }

  // Waits until the text contains all of these texts.
  async sees(...expected) {
    await this.until(`the page to contain ${expected.join(", ")}`, async () => {
      const text = await this.text();
      return expected.every((part) => text.includes(part));
    });
  }

  // Waits for a condition. The page can reload during the wait.
  async until(what, check, limit = LIMIT) {
    const deadline = Date.now() + limit;
    while (!(await check())) {
      if (Date.now() > deadline) {
        assert.fail(`waited ${limit / 1000} s for ${what}. The page ${this.page.url()}:\n${await this.text("body")}`);
      }
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  }

  // Evaluates a function in the page. Repeats the call if the script of the UI reloads the page at the same time.
  async evaluate(call, ...parameters) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.page.evaluate(call, ...parameters);
      } catch (error) {
        if (attempt === 5 || !/context was destroyed|detached|Cannot find context|Inspected target navigated/.test(error.message)) {
          throw error;
        }
        await this.page.waitForSelector("main");
      }
    }
  }

  async close() {
    await this.context.close();
  }
}
