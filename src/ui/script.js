// Live updates of the page of a Stack. All pages also work without this script.
"use strict";

(() => {
  // Limits of the page, so that a long run does not fill the memory of the browser.
  const MAX_LINES = 5000;
  const MAX_RESOURCES = 500;
  // Delay before the next attempt to open the stream, in milliseconds. Each failed attempt doubles the delay.
  const MIN_DELAY = 5_000;
  const MAX_DELAY = 60_000;

  const container = document.querySelector("[data-live]");
  if (!container || typeof EventSource === "undefined") {
    return;
  }
  const element = (id) => document.getElementById(id);
  const rows = new Map();
  const handlers = {};
  const on = (name, handle) => (handlers[name] = handle);
  let source;
  let delay = MIN_DELAY;

  // If the status of the response is an error, for example because the user has sent too many requests, the browser
  // closes the stream permanently. The script therefore opens each further stream itself.
  function connect() {
    let isOpen = false;
    let hasEvents = false;
    source = new EventSource(container.dataset.live);
    source.addEventListener("open", () => {
      isOpen = true;
      delay = MIN_DELAY;
      element("live-state").replaceChildren();
    });
    source.addEventListener("error", () => {
      source.close();
      // The server ends each stream after some minutes. This end is not an interruption.
      if (!isOpen) {
        reportInterruption();
      }
      setTimeout(connect, delay);
      delay = Math.min(2 * delay, MAX_DELAY);
    });
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => {
        // Each stream starts with the beginning of the output. A stream without a session has no output.
        if (!hasEvents && name !== "signed-out") {
          clearOutput();
        }
        hasEvents = true;
        handle(JSON.parse(event.data));
      });
    }
  }

  function clearOutput() {
    element("run-log")?.replaceChildren();
    element("run-resources")?.querySelector("tbody").replaceChildren();
    rows.clear();
  }

  function reportInterruption() {
    // Screen readers announce each change, so a repeated failure does not write the text again.
    if (!element("live-state").hasChildNodes()) {
      showNotice("Live updates are interrupted, retrying. If this message remains, reload the page.");
    }
  }

  function showNotice(...content) {
    const notice = document.createElement("p");
    notice.className = "notice warn";
    notice.append(...content);
    element("live-state").replaceChildren(notice);
  }

  on("progress", (progress) => {
    element("run-phase").textContent = progress.phase;
    element("run-summary").textContent = progress.summary ?? "";
    const bar = element("run-progress");
    bar.hidden = !progress.total;
    if (progress.total) {
      bar.max = progress.total;
      bar.value = progress.done ?? 0;
    }
  });

  on("log", (lines) => {
    const log = element("run-log");
    log.hidden = false;
    const isAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
    for (const line of lines) {
      log.append(document.createTextNode(line + "\n"));
    }
    while (log.childNodes.length > MAX_LINES) {
      log.firstChild.remove();
    }
    if (isAtEnd) {
      log.scrollTop = log.scrollHeight;
    }
  });

  on("resources", (resources) => {
    const table = element("run-resources");
    const body = table.querySelector("tbody");
    table.hidden = false;
    for (const resource of resources) {
      const key = JSON.stringify([resource.kind, resource.name]);
      let row = rows.get(key);
      if (!row) {
        if (rows.size >= MAX_RESOURCES) {
          continue;
        }
        row = body.insertRow();
        for (let cell = 0; cell < 4; cell += 1) {
          row.insertCell();
        }
        rows.set(key, row);
      }
      const texts = [resource.operation, resource.kind, resource.name, resource.state];
      texts.forEach((text, cell) => {
        row.cells[cell].textContent = text;
      });
    }
  });

  on("note", (text) => {
    const note = element("run-note");
    note.textContent = text;
    note.hidden = false;
  });

  // The session has ended, so each further stream would also end. The link loads the page again, and the server redirects
  // a user without a session to the sign-in page.
  on("signed-out", () => {
    source.close();
    const link = document.createElement("a");
    link.href = location.pathname;
    link.textContent = "Sign in again";
    showNotice("Your session has ended, so the page shows no live updates. ", link);
  });

  // The page is outdated. Text that the user has entered is not discarded.
  on("end", () => {
    source.close();
    const isEdited = [...document.querySelectorAll("input[type=text]")].some((input) => input.value !== input.defaultValue);
    if (!isEdited) {
      location.replace(location.pathname);
    }
  });

  connect();
})();
