// User stories of the sign-in at an OIDC issuer, which is Dex, in Chromium. tests/e2e/browser/oidc.rs creates the Stacks
// `web` and `vault` in two namespaces, and starts this program with the names of the namespaces in environment
// variables. `tests/cluster/cluster exec` sets the variables of the issuer.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { start } from "./chromium.mjs";
import { forward } from "./forward.mjs";
import { review } from "./review.mjs";
import { browserArguments, encrypt } from "./tls.mjs";
import { Visitor } from "./visitor.mjs";

const { UI_NAMESPACE: namespace, OTHER_NAMESPACE: other } = process.env;
const { OIDC_ISSUER, OIDC_UI_URL: url, OIDC_USER: email, OIDC_PASSWORD: password, OIDC_USER_IN_CLUSTER: name } = process.env;
const directory = process.env.UI_SCREENSHOTS ?? "../../target/test-report/screenshots";
const file = (name) => join(process.env.OIDC_FILES, name);
const issuer = new URL(OIDC_ISSUER).origin;
const callback = "/sign-in/oidc/callback";
const web = `/stacks/${namespace}/web`;
const vault = `/stacks/${other}/vault`;
// Name of the link that starts the sign-in.
const SIGN_IN = "Sign in with single sign-on";
// Lifetime of ID tokens in the story of their expiry. It must be longer than a sign-in.
const SHORT = "20s";

let browser, jane, usedCallback;
const ends = [];
before(async () => {
  await setLifetime("1h");
  const forwarded = await forward();
  ends.push(forwarded.end);
  const proxy = await encrypt(forwarded.url, { certificate: file("ui.crt"), key: file("ui.key") });
  ends.push(proxy.end);
  browser = await start(await browserArguments(new URL(url).hostname, proxy.port, [file("ui.crt"), file("dex.crt")]));
});
after(async () => {
  await browser?.close();
  ends.forEach((end) => end());
});

// Sets the lifetime of the ID tokens that the issuer issues from now on.
async function setLifetime(lifetime) {
  const response = await fetch(`${issuer}/control/id-tokens?lifetime=${lifetime}`, { method: "PUT" });
  assert.ok(response.ok, `the issuer returned ${response.status}: ${await response.text()}`);
}

function open() {
  return Visitor.open(browser, url, { issuer });
}

// Follows the link on the sign-in page to the form of the issuer.
async function openForm(user) {
  await user.follow("link", SIGN_IN);
  await user.until("the form of the issuer", async () => (await user.page.$("#login")) !== null);
  assert.equal(new URL(user.page.url()).origin, issuer);
}

// Signs in at the issuer, starting from the sign-in page. Returns the callback URL to which the issuer has redirected the
// browser.
async function signIn(user) {
  let found;
  user.page.on("request", (request) => {
    if (request.url().startsWith(url + callback)) {
      found = request.url();
    }
  });
  await openForm(user);
  await submitForm(user);
  return found;
}

async function submitForm(user) {
  await user.page.type("#login", email);
  await user.page.type("#password", password);
  await user.follow("button", "Login");
  await user.follow("button", "Grant Access");
  await user.until("the user to be signed in", async () => (await user.text("header")).includes(name));
}

// Opens a page that the UI refuses, and returns the message.
async function openRefused(user, path) {
  const response = await user.page.goto(url + path);
  assert.equal(response.status(), 403, path);
  const message = await user.text("[role=alert]");
  user.assertNoProblems(403);
  return message;
}

test("a user signs in at the issuer, and returns to the requested page", async () => {
  jane = await open();
  await jane.goto(web);
  await jane.sees(SIGN_IN);
  await review(jane, directory, "sign-in-oidc");
  usedCallback = await signIn(jane);
  await jane.sees("web Ready");
  assert.equal(jane.page.url(), url + web, "the URL does not contain the code");
  jane.assertNoProblems();
});

test("the user sees and changes only what the API server permits", async () => {
  await jane.goto("/");
  await jane.sees(namespace);
  assert.ok(!(await jane.text()).includes(other), "the list contains no Stack of the other namespace");
  await jane.goto(`/?namespace=${other}`);
  await jane.sees("No Stack matches");
  await jane.goto(`/?namespace=${namespace}`);
  await jane.sees("1 Stack", "web");
  await review(jane, directory, "oidc-list");
  await jane.follow("link", "web");
  await jane.follow("button", "Suspend");
  await jane.sees("web Suspended");
  jane.assertNoProblems();
  assert.match(await openRefused(jane, vault), new RegExp(`"${name}" cannot get resource`));
  await review(jane, directory, "oidc-forbidden");
  assert.ok(!(await jane.has("button", "Resume")), "the page offers no actions");
  assert.equal(await jane.evaluate(post, `${vault}/actions/resume`), 403, "the UI refuses an action without a button");
  jane.assertNoProblems(403);
});

// Sends an action with the form token of the page. Runs in the page.
async function post(path) {
  const body = new URLSearchParams(new FormData(document.querySelector("form.user")));
  const response = await fetch(path, { method: "POST", body, redirect: "manual" });
  return response.status;
}

test("a callback URL is valid once, and only in the browser that has started the sign-in", async () => {
  const used = usedCallback.slice(url.length);
  assert.match(await openRefused(jane, used), /has expired/);
  await review(jane, directory, "oidc-refused");
  const stranger = await open();
  assert.match(await openRefused(stranger, used), /has expired/);
  await stranger.goto("/sign-in");
  await openForm(stranger);
  const cookies = (await stranger.context.cookies()).map(({ name }) => name);
  assert.equal(cookies.length, 1, "the browser has started a sign-in");
  assert.match(cookies[0], /^__Host-pulumi-ui-oidc-/);
  assert.match(await openRefused(stranger, `${callback}?code=guessed&state=wrong`), /has expired/);
  await stranger.goto("/");
  await stranger.sees(SIGN_IN);
  stranger.assertNoProblems();
  await stranger.close();
});

test("sign-ins in two tabs are independent", async () => {
  const user = await open();
  await user.goto(web);
  await openForm(user);
  const tab = await user.openTab();
  await tab.goto("/fleet");
  await signIn(tab);
  assert.equal(tab.page.url(), `${url}/fleet`);
  await user.page.bringToFront();
  await submitForm(user);
  assert.equal(user.page.url(), url + web);
  user.assertNoProblems();
  tab.assertNoProblems();
  await user.close();
});

test("after a sign-out, the user must sign in at the issuer again", async () => {
  await jane.goto("/");
  await jane.follow("button", "Sign out");
  await jane.sees(SIGN_IN);
  assert.deepEqual(await jane.context.cookies(), []);
  await jane.goto(web);
  await openForm(jane);
  jane.assertNoProblems();
  await jane.close();
});

test("the session ends with the ID token, and an action is not performed after its end", async () => {
  await setLifetime(SHORT);
  const user = await open();
  await user.goto(web);
  await signIn(user);
  await user.sees("web Suspended");
  await user.until("the notice", async () => (await user.text("#live-state")).includes("Your session has ended"), 60_000);
  await user.until("the session to expire", async () => (await user.context.cookies()).length === 0, 60_000);
  await user.follow("button", "Resume");
  await user.sees(SIGN_IN);
  await setLifetime("1h");
  await signIn(user);
  await user.sees("web Suspended");
  assert.equal(user.page.url(), url + web, "the user returns to the page of the action");
  user.assertNoProblems();
  await user.close();
});
