// Live updates of the page of a Stack. All pages also work without this script.
"use strict";

(() => {
  // Limits of the page, so that a long run does not fill the memory of the browser.
  const MAX_LINES = 5000;
  const MAX_RESOURCES = 500;

  const container = document.querySelector("[data-live]");
  if (!container || typeof EventSource === "undefined") {
    return;
  }
  const element = (id) => document.getElementById(id);
  const rows = new Map();
  const source = new EventSource(container.dataset.live);
  const on = (name, handle) => source.addEventListener(name, (event) => handle(JSON.parse(event.data)));

  // Each connection starts with the beginning of the output.
  source.addEventListener("open", () => {
    element("run-log")?.replaceChildren();
    element("run-resources")?.querySelector("tbody").replaceChildren();
    rows.clear();
  });

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

  // The page is outdated. Text that the user has entered is not discarded.
  on("end", () => {
    source.close();
    const isEdited = [...document.querySelectorAll("input[type=text]")].some((input) => input.value !== input.defaultValue);
    if (!isEdited) {
      location.replace(location.pathname);
    }
  });
})();
