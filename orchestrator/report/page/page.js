"use strict";
// Draws the charts, and lets a reader filter them and choose a candidate. Everything is set as text, never as markup.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const views = new Map();
  const tooltip = byId("tooltip");

  for (const element of document.querySelectorAll(".scripted")) element.hidden = false;

  function showTooltip(handler, event, item, value) {
    if (value === null || value === undefined || value === "") {
      tooltip.hidden = true;
      return;
    }
    tooltip.replaceChildren();
    for (const [name, shown] of Object.entries(value)) {
      if (shown === null || shown === "null" || shown === "") continue;
      const row = document.createElement("div");
      const label = document.createElement("span");
      const text = document.createElement("b");
      label.textContent = name;
      text.textContent = String(shown);
      row.append(label, text);
      tooltip.append(row);
    }
    tooltip.hidden = false;
    const box = tooltip.getBoundingClientRect();
    const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 14;
    const top = event.clientY + 14 + box.height > innerHeight ? event.clientY - 14 - box.height : event.clientY + 14;
    tooltip.style.left = Math.max(4, left) + "px";
    tooltip.style.top = Math.max(4, top) + "px";
  }

  async function draw(name, spec) {
    const figure = document.querySelector('[data-figure="' + name + '"]');
    if (!figure) return null;
    if (views.has(name)) views.get(name).finalize();
    const result = await vegaEmbed(figure.querySelector(".chart"), { width: "container", config: data.config, ...spec }, {
      ast: true,
      actions: false,
      defaultStyle: false,
      renderer: "svg",
      tooltip: showTooltip,
      loader: { load: () => Promise.reject(new Error("this page loads nothing")) },
    });
    views.set(name, result.view);
    return result.view;
  }

  function filter() {
    const query = byId("query").value.trim().toLowerCase();
    const kind = byId("kind").value;
    const fits = (element) =>
      element.dataset.name.toLowerCase().includes(query) && (!kind || !element.dataset.kind || element.dataset.kind === kind);
    let shown = 0;
    let all = 0;
    for (const element of document.querySelectorAll("[data-name]")) {
      element.hidden = !fits(element);
      if (element.closest("#tradeoff")) {
        all += 1;
        shown += element.hidden ? 0 : 1;
      }
    }
    byId("count").textContent = (shown === all ? "" : shown + " of ") + all + (all === 1 ? " candidate" : " candidates");
    for (const name of data.filtered) {
      const view = views.get(name);
      if (view) view.signal("query", query).signal("kind", kind).runAsync();
    }
  }

  function fillTable(table, columns, rows) {
    const head = document.createElement("tr");
    for (const column of columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.className = "right";
      cell.textContent = column;
      head.append(cell);
    }
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren(...rows.map((row) => {
      const line = document.createElement("tr");
      row.forEach((text, place) => {
        const cell = document.createElement(place ? "td" : "th");
        cell.textContent = text;
        cell.className = place ? "right" : "";
        line.append(cell);
      });
      return line;
    }));
  }

  // A grid has its sizes by row (a rank or an iteration) and stage, in steps of a thousandth of the unit they are shown in.
  async function chart(name, first, grid) {
    const figure = document.querySelector('[data-figure="' + name + '"]');
    const called = grid.step === 1e6 ? "GB" : "MB";
    const { rows, stages } = grid;
    const largest = Math.max(...grid.sizes.flat());
    const spec = JSON.parse(JSON.stringify(data.templates[name]).replaceAll("UNIT", called));
    spec.data = { values: rows.flatMap((row, line) => stages.flatMap((stage, place) => {
      const size = grid.sizes[line][place];
      return size === null ? [] : [{
        [first]: row, stage, peak: size / 1000, shown: size >= 50 ? (size / 1000).toFixed(1) : "~0",
      }];
    })) };
    if (name === "heat") {
      const numbered = rows.length <= data.most_numbered;
      spec.height = rows.length * (rows.length <= 8 ? 26 : numbered ? 20 : Math.max(3, Math.floor(640 / rows.length)));
      spec.encoding.x.sort = stages;
      spec.layer[0].encoding.color.scale.domain = [0, largest / 1000];
      spec.layer[1].encoding.color.condition.test = "datum.peak > " + 0.6 * largest / 1000;
      if (!numbered) spec.layer.pop();
    } else {
      ["color", "strokeDash", "strokeWidth"].forEach((channel, place) => {
        spec.encoding[channel].sort = stages;
        spec.encoding[channel].scale.domain = stages;
        spec.encoding[channel].scale.range = stages.map((stage) => (data.looks[stage] || data.looks.unknown)[place]);
      });
    }
    fillTable(figure.querySelector("table"), [first, ...stages.map((stage) => stage + " (" + called + ")")],
      rows.map((row, line) => [String(row), ...grid.sizes[line].map((size) => size === null ? "-" : (size / 1000).toFixed(3))]));
    await draw(name, spec);
  }

  async function choose(key) {
    const one = data.candidates[key];
    if (!one) return;
    const place = byId("candidate-place");
    const code = document.createElement("code");
    code.textContent = one.name;
    place.replaceChildren(code, document.createTextNode(": " + one.place));
    const body = byId("settings").tBodies[0];
    body.replaceChildren(...one.settings.map(([path, asked, became, differs]) => {
      const row = document.createElement("tr");
      row.className = differs ? "differs" : "";
      [path, asked, became].forEach((text, index) => {
        const cell = document.createElement(index ? "td" : "th");
        cell.textContent = text;
        row.append(cell);
      });
      return row;
    }));
    byId("candidate-heat").hidden = !one.heat;
    byId("candidate-history").hidden = !one.history;
    byId("memory-absent").hidden = Boolean(one.heat || one.history);
    byId("heat-about").textContent = one.heat_about;
    if (one.heat && data.templates.heat) await chart("heat", "rank", one.heat);
    if (one.history && data.templates.history) {
      byId("history-about").textContent = one.history_about;
      await chart("history", "iteration", one.history);
    }
  }

  function addCopyButtons() {
    for (const paste of document.querySelectorAll(".paste")) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        const text = paste.querySelector("pre");
        try {
          await navigator.clipboard.writeText(text.textContent);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(text);
          button.textContent = "Selected";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      paste.append(button);
    }
  }

  // On paper nothing can be opened.
  function openForPaper() {
    const closed = [...document.querySelectorAll("details:not(.data):not([open])")];
    addEventListener("afterprint", () => { for (const one of closed) one.open = false; }, { once: true });
    for (const one of closed) one.open = true;
  }

  async function start() {
    addCopyButtons();
    addEventListener("beforeprint", openForPaper);
    for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
    for (const [name, spec] of Object.entries(data.figures)) await draw(name, spec);
    const chooser = byId("candidate");
    if (chooser && chooser.value) {
      chooser.addEventListener("change", () => choose(chooser.value));
      await choose(chooser.value);
    }
    byId("query").addEventListener("input", filter);
    byId("kind").addEventListener("change", filter);
    filter();
    document.documentElement.dataset.drawn = "yes";
  }

  start();
})();
