// What a report does when it is used: filters that live in the address, figures drawn when they come into sight,
// downloads, and points that can be read with the pointer or the arrow keys. Nothing is fetched.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const KINDS = { problem: "Problem", method: "Method", epsilon: "ε" };
  const PANELS = 6, RUNS = 25;
  const filtered = Object.values(data.choices).some((values) => values.length > 1);
  const shown = new Map(); // how many panels, or runs, of a section are to be seen
  const tip = document.getElementById("tip"), live = document.getElementById("live");
  const make = (name, attributes = {}, ...inside) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  };

  // Filters: {problem: Set, method: Set, epsilon: Set}; an empty set lets everything through.
  function readAddress() {
    const given = new URLSearchParams(location.hash.slice(1));
    return Object.fromEntries(Object.keys(KINDS).map((kind) => {
      const known = new Set(data.choices[kind]);
      return [kind, new Set(given.getAll(kind).filter((value) => known.has(value)))];
    }));
  }
  let chosen = readAddress();
  const passes = (kind, values) => !chosen[kind].size || values.some((value) => chosen[kind].has(value));
  const fits = (problem, methods, epsilons) =>
    passes("problem", [problem]) && passes("method", methods) && passes("epsilon", epsilons);

  function toggle(kind, value) {
    if (!chosen[kind].delete(value)) chosen[kind].add(value);
    writeAddress();
  }
  function writeAddress() {
    const told = new URLSearchParams();
    for (const kind of Object.keys(KINDS)) for (const value of chosen[kind]) told.append(kind, value);
    history.pushState(null, "", "#" + told);
    shown.clear();
    draw();
  }
  addEventListener("popstate", () => { chosen = readAddress(); shown.clear(); draw(); });

  function makeFilters() {
    const form = document.getElementById("filters");
    const kinds = Object.keys(KINDS).filter((kind) => data.choices[kind].length > 1);
    for (const kind of kinds) {
      const set = make("fieldset", {}, make("legend", {}, KINDS[kind]));
      for (const value of data.choices[kind]) {
        const button = make("button", { type: "button", "data-kind": kind, "data-value": value }, value);
        button.onclick = () => toggle(kind, value);
        set.append(button);
      }
      form.append(set);
    }
    const all = make("button", { type: "button", id: "everything" }, "Show everything");
    all.onclick = () => { for (const kind of Object.keys(KINDS)) chosen[kind].clear(); writeAddress(); };
    if (kinds.length) form.append(all);
    form.hidden = !kinds.length;
    form.onsubmit = () => false;
  }

  // Figures
  const waiting = new Map(); // places of pictures that are not in sight yet
  const sight = new IntersectionObserver((seen) => {
    for (const entry of seen) if (entry.isIntersecting) fill(entry.target);
  }, { rootMargin: "500px" });

  const readSvg = (figure) => document.getElementById(figure.svg).textContent;
  function fill(place) {
    const figure = waiting.get(place);
    if (!figure) return;
    waiting.delete(place);
    sight.unobserve(place);
    place.innerHTML = readSvg(figure); // made by hush, which has escaped every name in it
    const svg = place.firstElementChild;
    svg.removeAttribute("height");
    for (const title of svg.querySelectorAll("title")) {
      title.parentElement.dataset.say = title.textContent;
      title.parentElement.classList.add("pt");
      title.remove();
    }
    if (chosen.method.size) {
      for (const series of svg.querySelectorAll("[data-method]")) {
        series.style.display = chosen.method.has(series.dataset.method) ? "" : "none";
      }
    }
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("aria-label", figure.title + ". The arrow keys read its points; Data holds the same numbers.");
    svg.onkeydown = (event) => walk(event, svg);
    svg.onblur = hideTip;
  }

  function makePanel(figure) {
    const place = make("div", { class: "picture" });
    waiting.set(place, figure);
    const name = figure.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 80);
    const tools = make("div", { class: "tools" });
    const offer = (kind, save) => {
      const button = make("button", { type: "button", "aria-label": `${kind} of ${figure.title}` }, kind);
      button.onclick = save;
      tools.append(button);
    };
    offer("SVG", () => download(name + ".svg", new Blob([standAlone(figure)], { type: "image/svg+xml" })));
    offer("PNG", () => savePng(name, figure));
    offer("CSV", () => saveCsv(name, figure.columns, figure.rows));
    const details = make("details", {}, make("summary", {}, "Data"));
    details.ontoggle = () => {
      if (details.open && details.children.length === 1) details.append(makeTable(figure));
    };
    const caption = make("figcaption", {}, figure.title);
    if (figure.say) caption.append(make("small", {}, figure.say));
    return make("figure", {}, caption, place, tools, details);
  }

  function makeTable(figure) {
    const around = make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": "Data of " + figure.title });
    around.append(fillTable(make("table"), figure.columns, figure.rows));
    return around;
  }
  function fillTable(table, columns, rows) {
    const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
    const body = rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell === null ? "–" : String(cell)))));
    table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
    return table;
  }

  // Drawing what fits the filters
  function draw() {
    hideTip();
    for (const button of document.querySelectorAll("#filters [data-kind]")) {
      button.setAttribute("aria-pressed", chosen[button.dataset.kind].has(button.dataset.value));
    }
    drawRows();
    waiting.clear();
    sight.disconnect();
    for (const section of data.sections) drawSection(section);
    drawRuns();
    for (const place of waiting.keys()) sight.observe(place);
  }
  function drawRows() {
    let left = 0;
    for (const row of document.querySelectorAll("tr[data-problem]")) {
      row.hidden = !fits(row.dataset.problem, [row.dataset.method], [row.dataset.epsilon]);
      left += row.closest("#overview") && !row.hidden ? 1 : 0;
    }
    const empty = document.querySelector("#overview .empty");
    if (empty) empty.hidden = left > 0;
  }
  function drawSection(section) {
    const place = document.getElementById(section.id);
    const found = section.figures.filter((figure) => fits(figure.problem, figure.methods, figure.epsilons));
    const most = shown.get(section.id) ?? PANELS;
    place.hidden = !found.length;
    place.querySelector(".panels").replaceChildren(...found.slice(0, most).map(makePanel));
    tellMore(place, section.id, Math.min(most, found.length), found.length, "figures", PANELS);
  }
  function drawRuns() {
    const place = document.getElementById("runs");
    if (!place) return;
    const found = listRuns(), most = shown.get("runs") ?? RUNS;
    fillTable(document.getElementById("runs-table"), data.runs.columns, found.slice(0, most));
    tellMore(place, "runs", Math.min(most, found.length), found.length, "runs", 4 * RUNS);
  }
  const listRuns = () => data.runs.rows.filter((row, i) => fits(...data.runs.places[i]));
  function tellMore(place, id, now, all, what, step) {
    const line = place.querySelector(".more");
    line.replaceChildren(now < all ? `${now} of ${all} ${what} are shown: filter, or ` : all > 1 && filtered ? `All ${all} ${what} are shown.` : "");
    if (now >= all) return;
    const button = make("button", { type: "button" }, `show ${Math.min(step, all - now)} more`);
    button.onclick = () => { shown.set(id, now + step); draw(); place.focus(); };
    line.append(button);
  }

  // Points
  function showTip(point) {
    const box = point.getBoundingClientRect();
    tip.textContent = point.dataset.say;
    tip.hidden = false;
    const left = Math.min(box.left + box.width / 2 + 8, innerWidth - tip.offsetWidth - 8);
    const below = box.bottom + tip.offsetHeight + 8 < innerHeight;
    tip.style.left = scrollX + Math.max(8, left) + "px";
    tip.style.top = scrollY + (below ? box.bottom + 6 : box.top - tip.offsetHeight - 6) + "px";
  }
  function hideTip() {
    tip.hidden = true;
    for (const point of document.querySelectorAll(".pt.on")) point.classList.remove("on");
  }
  document.addEventListener("pointerover", (event) => {
    const point = event.target.closest?.(".pt[data-say]");
    if (point) showTip(point); else hideTip();
  });
  function walk(event, svg) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") hideTip();
    if (!step) return;
    event.preventDefault();
    const points = [...svg.querySelectorAll(".pt[data-say]")].filter((point) => point.closest("[style*='none']") === null);
    const at = points.findIndex((point) => point.classList.contains("on"));
    const next = points[(at < 0 ? (step > 0 ? 0 : -1) : at + step + points.length) % points.length] ?? points.at(-1);
    hideTip();
    if (!next) return;
    next.classList.add("on");
    showTip(next);
    live.textContent = next.dataset.say;
  }

  // Downloads
  function download(name, blob) {
    const link = make("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  function standAlone(figure) {
    const look = getComputedStyle(document.documentElement);
    const plain = (text) => text.replace(/var\(--(\w+)\)/g, (_, name) => look.getPropertyValue("--" + name).trim());
    return plain(readSvg(figure).replace("<g ", `<style>${data.style}</style><rect width="100%" height="100%" fill="var(--paper)"/><g `));
  }
  function savePng(name, figure) {
    const image = new Image(), address = URL.createObjectURL(new Blob([standAlone(figure)], { type: "image/svg+xml" }));
    image.onload = () => {
      const canvas = make("canvas", { width: 3 * image.width, height: 3 * image.height });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      URL.revokeObjectURL(address);
      canvas.toBlob((blob) => download(name + ".png", blob), "image/png");
    };
    image.src = address;
  }
  const quote = (cell) => (cell === null ? "" : /[",\r\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell));
  function saveCsv(name, columns, rows) {
    const lines = [columns, ...rows].map((row) => row.map(quote).join(",") + "\r\n");
    download(name + ".csv", new Blob(lines, { type: "text/csv" }));
  }
  for (const button of document.querySelectorAll("[data-csv]")) {
    button.onclick = () => {
      if (button.dataset.csv === "runs") return saveCsv("runs", data.runs.columns, listRuns());
      const rows = data.overview.rows.filter((row, i) => fits(...data.overview.places[i]));
      return saveCsv("overview", data.overview.columns, rows);
    };
  }

  // The rest
  function makeContents() {
    const nav = document.getElementById("contents");
    const sections = [...document.querySelectorAll("main > section")];
    for (const section of sections.length > 1 ? sections : []) {
      const link = make("a", { href: "#" + section.id, "data-goto": section.id }, section.querySelector("h2").textContent);
      nav.append(link);
    }
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("[data-goto]");
    if (!link) return;
    event.preventDefault(); // the address belongs to the filters
    const place = document.getElementById(link.dataset.goto);
    place.scrollIntoView();
    place.focus();
  });
  function followTheme() {
    const button = document.getElementById("theme"), dark = matchMedia("(prefers-color-scheme: dark)").matches;
    button.setAttribute("aria-pressed", dark);
    button.onclick = () => {
      const now = button.getAttribute("aria-pressed") !== "true";
      document.documentElement.dataset.theme = now ? "dark" : "light";
      button.setAttribute("aria-pressed", now);
    };
  }
  addEventListener("beforeprint", () => { for (const place of [...waiting.keys()]) fill(place); });
  followTheme();
  makeFilters();
  makeContents();
  draw();
})();
