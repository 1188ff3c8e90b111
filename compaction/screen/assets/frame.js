"use strict";
/* The frame of all pages: the JSON document of a result, formats of numbers and text, and blocks of cards, charts and tables. */

const DOCUMENT = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const state = { view: 0, sort: "", down: true, filter: "" };
let page;

function escaped(text) {
  return String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
}

/* A policy's name with possible line breaks. */
function named(name) {
  return escaped(name).replace(/[,+]/g, "$&<wbr>");
}

/* Letters stand for policies whose names may be long. */
function letter(number) {
  return number < 26 ? String.fromCharCode(65 + number) : `${letter(Math.floor(number / 26) - 1)}${letter(number % 26)}`;
}

function headed(name, number) {
  return `<h3><b class="letter">${letter(number)}</b> ${named(name)}</h3>`;
}

function scaled(number, units) {
  let size = number, unit = 0;
  while (Math.abs(size) >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${unit === 0 || Math.abs(size) >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`.trim();
}

function bytes(number) { return scaled(number, ["B", "kB", "MB", "GB", "TB", "PB"]); }

function count(number) { return Math.round(number).toLocaleString("en"); }

function counted(number, noun, nouns = `${noun}s`) { return `${count(number)} ${number === 1 ? noun : nouns}`; }

function short(number) { return Math.abs(number) < 10000 ? count(number) : scaled(number, ["", "k", "M", "G", "T"]); }

function share(part, whole) {
  if (!whole) return "0 %";
  const text = (100 * part / whole).toFixed(1);
  if (part > 0 && text === "0.0") return "< 0.1 %";
  if (part < whole && text === "100.0") return "> 99.9 %";
  return `${text} %`;
}

function moment(ms) { return new Date(ms).toISOString().slice(0, 16).replace("T", " ") + " UTC"; }

function change(before, after, format) { return `${format(before)} \u2192 ${format(after)}`; }

/* The sum of two numbers, or of lists or objects of numbers. */
function added(left, right) {
  if (typeof right === "number") return left + right;
  const sum = (name) => name in left && name in right ? added(left[name], right[name]) : name in left ? left[name] : right[name];
  const sums = Object.keys({ ...left, ...right }).map((name) => [name, sum(name)]);
  return Array.isArray(right) ? sums.map(([, value]) => value) : Object.fromEntries(sums);
}

function plain(rows) { return `<dl>${rows.map(([name, text]) => `<dt>${name}</dt><dd>${escaped(text)}</dd>`).join("")}</dl>`; }

/* A figure with a word behind it, and rows of others below. */
function card(head, big, small, rows) {
  return `<div class="card">${head}<p class="big">${escaped(big)} <small>${escaped(small)}</small></p>${plain(rows)}</div>`;
}

function list(texts) { return `<ul>${texts.map((text) => `<li>${escaped(text)}</li>`).join("")}</ul>`; }

function legend(kinds) {
  return kinds.map(([kind, text]) => `<span class="key"><span class="swatch ${kind}"></span>${text}</span>`).join("");
}

function grid(titles, rows) {
  const cells = (row) => row.map((cell) => `<td>${cell}</td>`).join("");
  return `<div class="scroll"><table><thead><tr>${titles.map((title) => `<th scope="col">${title}</th>`).join("")}</tr></thead>` +
    `<tbody>${rows.map((row) => `<tr>${cells(row)}</tr>`).join("")}</tbody></table></div>`;
}

/* A block has a title, a line below it, markup, and charts, which are drawn at the width of their elements; ``heads`` are above them. */
function block({ id, title, sub = "", html = "", charts = [], heads = [], more = "" }) {
  const box = (number) => `<div class="chart" id="${id}${heads.length ? `-${number}` : ""}"></div>`;
  const drawn = charts.map((_, number) => heads.length ? `<div>${heads[number]}${box(number)}</div>` : box(number)).join("");
  return `<section${charts.length ? "" : ` id="${id}"`}><h2>${title}</h2>${sub && `<p class="sub">${sub}</p>`}${html}` +
    `${heads.length ? `<div class="multiples">${drawn}</div>` : drawn}${more}</section>`;
}

/* A list of blocks stands side by side. */
function draw() {
  const { cards, blocks } = page.show(state.view), all = blocks.filter(Boolean);
  byId("blocks").innerHTML = `<section id="cards" aria-label="Sums">${cards.join("")}</section>` +
    all.map((each) => Array.isArray(each) ? `<div class="grid">${each.map(block).join("")}</div>` : block(each)).join("");
  const boxes = byId("blocks").querySelectorAll(".chart");
  all.flat().flatMap((each) => each.charts || []).forEach((chart, number) => {
    boxes[number].innerHTML = chart(Math.max(200, Math.floor(boxes[number].clientWidth || 600)));
  });
  table();
}

/* The table of logs; a column has a title, the value by which it sorts, and its text. */
function table() {
  byId("logs").hidden = !page.columns;
  if (!page.columns) return;
  const by = page.columns.find((column) => column.id === state.sort);
  const direction = (column) => column !== by ? "none" : state.down ? "descending" : "ascending";
  byId("table").tHead.innerHTML = `<tr>${page.columns.map((column) => `<th scope="col" aria-sort="${direction(column)}">` +
    `<button type="button" data-sort="${column.id}">${column.head || ""}<span class="name">${named(column.title)}</span></button></th>`).join("")}</tr>`;
  const rows = DOCUMENT.logs.map((log, number) => ({ log, number, key: by.value(log) }))
    .filter(({ log }) => logName(log).toLowerCase().includes(state.filter));
  rows.sort((left, right) => {
    const order = typeof left.key === "string" ? left.key.localeCompare(right.key, "en", { numeric: true }) : left.key - right.key;
    return (state.down ? -order : order) || left.number - right.number;
  });
  byId("table").tBodies[0].innerHTML = rows.map(({ log, number }) => `<tr class="${number === state.view - 1 ? "chosen" : ""}">` +
    page.columns.map((column) => column.id === "name" ? `<td><button type="button" data-log="${number}">${escaped(logName(log))}</button></td>`
      : `<td>${column.text(log)}</td>`).join("") + "</tr>").join("");
}

function logName(log) { return `${log.topic}-${log.partition}`; }

const NAME = { id: "name", title: "Log", value: logName };

/* A column of numbers. */
function column(id, title, value, format = count) { return { id, title, value, text: (log) => format(value(log)) }; }

function word(kind, text) { return `<span class="state ${escaped(kind)}">${escaped(text)}</span>`; }

/* The logs of the chosen view of a page of logs: all, or one. */
function chosenLogs(view) { return view ? [DOCUMENT.logs[view - 1]] : DOCUMENT.logs; }

function logViews() { return ["all logs", ...DOCUMENT.logs.map(logName)]; }

function choose(view) {
  state.view = view;
  byId("shown").value = String(view);
  draw();
}

function pressed(event) {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.log !== undefined) {
    const view = Number(button.dataset.log) + 1;
    choose(view === state.view ? 0 : view);
    document.querySelector("header").scrollIntoView();
    return;
  }
  state.down = state.sort === button.dataset.sort ? !state.down : button.dataset.sort !== "name";
  state.sort = button.dataset.sort;
  table();
  document.querySelector(`[data-sort="${state.sort}"]`).focus();
}

/* Shows a page: its title, heading, the names of its views, and for the number of a view its cards and blocks. */
function start(shown) {
  page = shown;
  state.sort = page.columns ? page.columns[1].id : "";
  document.title = page.title;
  byId("heading").textContent = page.heading;
  byId("about").textContent = page.about;
  byId("chooser").hidden = page.views.length < 2;
  byId("shown").innerHTML = page.views.map((name, number) => `<option value="${number}">${escaped(name)}</option>`).join("");
  byId("shown").addEventListener("change", (event) => choose(Number(event.target.value)));
  byId("filter").addEventListener("input", (event) => { state.filter = event.target.value.toLowerCase(); table(); });
  byId("table").addEventListener("click", pressed);
  let width = window.innerWidth;
  /* a phone's browser also says so when only the height changes, which would close what is open */
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) { width = window.innerWidth; draw(); }
  });
  draw();
}
