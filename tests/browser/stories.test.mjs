// User stories of the web UI in Chromium. tests/e2e/browser/mod.rs creates the Stacks, and starts this program with the
// namespace of the Stacks and the tokens of the users in environment variables.
import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { start } from "./chromium.mjs";
import { forward } from "./forward.mjs";
import { review } from "./review.mjs";
import { Visitor } from "./visitor.mjs";

const { UI_NAMESPACE: namespace } = process.env;
const directory = process.env.UI_SCREENSHOTS ?? "../../target/test-report/screenshots";
const tokens = { viewer: process.env.VIEWER_TOKEN, editor: process.env.EDITOR_TOKEN, approver: process.env.APPROVER_TOKEN };
const list = `/?namespace=${namespace}`;
// Maximum number of clicks for an everyday task, starting from the list.
const MAX_CLICKS = 3;

let browser, url, end;
const users = {};
before(async () => {
  ({ url, end } = await forward());
  browser = await start();
  for (const [name, token] of Object.entries(tokens)) {
    users[name] = await Visitor.open(browser, url);
    await users[name].signIn(token);
  }
});
afterEach(() => Object.values(users).forEach((user) => user.assertNoProblems()));
after(async () => {
  await browser?.close();
  end?.();
});

// Opens the list as a user, and resets the number of clicks.
async function atList(name) {
  const user = users[name];
  await user.goto(list);
  user.clicks = 0;
  return user;
}

function assertFewClicks(user) {
  assert.ok(user.clicks <= MAX_CLICKS, `the task needs ${user.clicks} clicks from the list`);
}

test("a user signs in with a token, and a wrong token is announced", async () => {
  const user = await Visitor.open(browser, url);
  await user.goto(`/stacks/${namespace}/web`);
  await user.sees("Sign in");
  await review(user, directory, "sign-in");
  await user.type("Token of the Kubernetes API", "wrong");
  await user.follow("button", "Sign in");
  const alert = await user.text("[role=alert]");
  assert.match(alert, /rejected the token/);
  user.assertNoProblems(401);
  await review(user, directory, "sign-in-failed");
  await user.type("Token of the Kubernetes API", tokens.viewer);
  await user.follow("button", "Sign in");
  assert.equal(new URL(user.page.url()).pathname, `/stacks/${namespace}/web`, "the user returns to the requested page");
  assert.match(await user.text("header"), /viewer/);
  user.assertNoProblems();
  await user.close();
});

test("a user searches and filters the list with the keyboard only", async () => {
  const user = await atList("viewer");
  await user.sees("5 Stacks");
  await review(user, directory, "list");
  const { keyboard } = user.page;
  await user.goto("/");
  await keyboard.press("Tab");
  await assertFocus(user, "Skip to content");
  await keyboard.press("Enter");
  await tabTo(user, "Search");
  await keyboard.type("no such name");
  await tabTo(user, "Namespace");
  await keyboard.type(namespace);
  await tabTo(user, "State");
  await keyboard.type("Suspended");
  await tabTo(user, "Filter");
  await user.pressAndWait("Enter");
  await user.sees("No Stack matches");
  await review(user, directory, "list-empty");
  await tabTo(user, "Clear");
  await user.pressAndWait("Enter");
  await user.goto(list);
  await tabTo(user, "State");
  await keyboard.type("Suspended");
  await tabTo(user, "Filter");
  await user.pressAndWait("Enter");
  await user.sees("1 Stack", "reports");
  await tabTo(user, "reports");
  await user.pressAndWait("Enter");
  await user.sees("reports Suspended");
});

// Presses Tab until the element with this name has the focus. Checks that each focused element shows its focus.
async function tabTo(user, name) {
  for (let count = 0; count < 40; count += 1) {
    await user.page.keyboard.press("Tab");
    const focused = await focus(user);
    assert.ok(focused.isVisible, `the focus on ${focused.name} is not visible`);
    if (focused.name.startsWith(name)) {
      return;
    }
  }
  assert.fail(`Tab does not reach ${name}`);
}

async function assertFocus(user, name) {
  const focused = await focus(user);
  assert.deepEqual({ name: focused.name, isVisible: focused.isVisible }, { name, isVisible: true });
}

function focus(user) {
  return user.evaluate(() => {
    const element = document.activeElement;
    const label = element.labels?.[0]?.firstChild.textContent ?? element.ariaLabel ?? element.textContent;
    const box = element.getBoundingClientRect();
    const hasOutline = getComputedStyle(element).outlineStyle !== "none";
    return { name: label.trim(), isVisible: hasOutline && box.width > 0 && box.right > 0 };
  });
}

test("the page of a Stack shows its state, outputs and history", async () => {
  const user = await atList("viewer");
  await user.follow("link", "web");
  await user.sees("web Ready", "The last run has succeeded", "greeting", "hello", "Conditions", "History");
  assert.doesNotMatch(await user.text(), /s3cret/, "a secret output is hidden");
  await review(user, directory, "stack");
  assertFewClicks(user);
});

test("a user finds out why a Stack does not run", async () => {
  const user = await atList("viewer");
  await user.follow("link", "shop");
  await user.sees("shop Waiting", "The Stack waits for other Stacks", "network", "Requires");
  await review(user, directory, "waiting");
  // The graph leads to the cause.
  await user.follow("link", `${namespace}/network`);
  await user.sees("network Waiting", "requires an approval", "Plan");
  assertFewClicks(user);
  await (await atList("viewer")).follow("link", "billing");
  await user.sees("billing", "The last run has failed");
  await review(user, directory, "failed");
  assertFewClicks(user);
});

test("a user reads the output of a failed run of the past", async () => {
  const user = await atList("viewer");
  await user.follow("link", "web");
  const failed = await user.page.waitForSelector("::-p-xpath(//section[h2='History']//tr[contains(., 'Failed')]//a)");
  await user.follow("link", await failed.evaluate((link) => link.textContent));
  await user.sees("Failed", "Output");
  assert.match(await user.text("pre.log"), /error/);
  await review(user, directory, "failed-run");
  assertFewClicks(user);
});

test("the fleet page leads to the Stacks that need attention", async () => {
  const user = await atList("viewer");
  await user.follow("link", "Fleet");
  await user.sees("Needs attention", `${namespace}/billing`);
  await review(user, directory, "fleet");
  await user.follow("link", `${namespace}/billing`);
  await user.sees("billing", "The last run has failed");
  assertFewClicks(user);
});

test("pages that a user has left do not use the limit of open streams", async () => {
  const user = users.viewer;
  for (let count = 0; count < 10; count += 1) {
    await user.goto(`/stacks/${namespace}/web`);
  }
});

test("a page whose live updates are interrupted shows a notice and tries again", async () => {
  const user = await Visitor.open(browser, url);
  await user.signIn(tokens.viewer);
  const { page } = user;
  await page.setRequestInterception(true);
  let isRefused = true;
  page.on("request", (request) => {
    const isStream = new URL(request.url()).pathname.endsWith("/live");
    return isStream && isRefused ? request.respond({ status: 429 }) : request.continue();
  });
  const notice = () => user.text("[role=status]#live-state");
  await user.goto(`/stacks/${namespace}/web`);
  await user.until("the notice", async () => (await notice()).includes("Live updates are interrupted, retrying."));
  await review(user, directory, "interrupted");
  isRefused = false;
  await user.until("the end of the notice", async () => (await notice()) === "", 60_000);
  user.assertNoProblems(429);
  await user.close();
});

test("a sign-out ends the live updates in another tab", async () => {
  const user = await Visitor.open(browser, url);
  await user.signIn(tokens.viewer);
  await user.goto(`/stacks/${namespace}/web`);
  const tab = await user.openTab();
  await tab.goto("/");
  await tab.follow("button", "Sign out");
  await tab.sees("Sign in");
  await user.page.bringToFront();
  const notice = () => user.text("[role=status]#live-state");
  await user.until("the notice", async () => (await notice()).includes("Your session has ended"));
  await review(user, directory, "signed-out");
  await user.follow("link", "Sign in again");
  await user.sees("Token of the Kubernetes API");
  user.assertNoProblems();
  tab.assertNoProblems();
  await user.close();
});

test("a viewer sees no actions", async () => {
  const user = await atList("viewer");
  await user.follow("link", "network");
  await user.sees("network Waiting", "You have no permission to approve or reject this plan.");
  assert.equal(await user.evaluate(() => document.querySelectorAll("main button").length), 0);
  await review(user, directory, "no-permission");
});

test("an editor suspends and resumes a Stack", async () => {
  const user = await atList("editor");
  await user.follow("link", "web");
  await user.follow("button", "Suspend");
  await user.sees("web Suspended");
  await review(user, directory, "suspended");
  assertFewClicks(user);
  await (await atList("editor")).follow("link", "web");
  await user.follow("button", "Resume");
  // The page follows the Stack.
  await user.sees("web Ready");
  assertFewClicks(user);
});

test("the output of an open run appears on the page, and an editor cancels the run", async () => {
  const user = await atList("editor");
  await user.follow("link", "reports");
  await user.follow("button", "Resume");
  const lines = () => user.evaluate(() => document.querySelector("#run-log")?.textContent.split("\n").length ?? 0);
  await user.until("the output of the run", async () => (await lines()) > 3, 120_000);
  await user.evaluate(() => (document.body.dataset.mark = "same page"));
  const before = await lines();
  await user.until("more output", async () => (await lines()) > before);
  assert.equal(await user.evaluate(() => document.body.dataset.mark), "same page", "the output appears without a reload");
  await user.sees("reports Running", "testing:index:Step");
  await review(user, directory, "run");
  await user.follow("button", "Cancel the run");
  await user.until("the run to end", async () => (await user.text()).includes("canceled the last run"), 60_000);
  assertFewClicks(user);
});

test("an approver reviews a plan and approves it", async () => {
  const user = await atList("approver");
  await user.follow("link", "network");
  await user.sees("network Waiting", "Changes", "create", "router");
  await review(user, directory, "plan");
  await user.type("Reason for the approval (optional)", "reviewed in the browser");
  await user.follow("button", "Approve this plan");
  await user.until("the plan to be applied", async () => (await user.text()).includes("network Ready"), 120_000);
  await user.sees("2 create");
  assertFewClicks(user);
});

test("all pages work without JavaScript", async () => {
  const user = await Visitor.open(browser, url, { script: false });
  await user.signIn(tokens.editor);
  await user.goto("/");
  await user.type("Namespace", namespace);
  await user.type("Search", "web");
  await user.follow("button", "Filter");
  await user.sees("1 Stack");
  await user.follow("link", "web");
  await user.follow("button", "Suspend");
  await user.sees("The Stack is suspended");
  await user.follow("button", "Resume");
  await user.sees("The Stack is resumed");
  await user.follow("link", "Fleet");
  await user.sees("Namespaces");
  await user.follow("button", "Sign out");
  await user.sees("Sign in");
  user.assertNoProblems();
  await user.close();
});

test("after a sign-out, the session has ended", async () => {
  const user = await atList("viewer");
  await user.follow("button", "Sign out");
  await user.sees("Sign in");
  await user.goto(list);
  assert.equal(new URL(user.page.url()).pathname, "/sign-in");
  assert.deepEqual(await user.context.cookies(), []);
});
