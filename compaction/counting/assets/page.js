/* Draws where the bytes of all topics are, or of one. */

const KINDS = { superseded: "expired", tombstone: "compacted", "no key": "ghost" };
const HEADINGS = {
  topic: "Topics", "state and age": "States and ages", value: "Sizes of values", codec: "Codecs", "group of keys": "Groups of keys",
  header: "Headers", "producer id": "Producers", "largest key": "Largest keys",
};
/* Bars of a section; the table has all rows. */
const MOST_BARS = 12;

function chosen() { return DATA.views[Number(byId("shown").value) || 0]; }

function draw() {
  const view = chosen(), components = view.sections.find(([titles]) => titles.length === 2);
  cards(view);
  into("components", (width) => chart(width, components));
  const others = view.sections.filter((section) => section !== components);
  byId("sections").innerHTML = others.map(([titles, rows], number) =>
    `<article><h2>${HEADINGS[titles[0]]}</h2><p class="sub">Stored bytes, and their share of ${titles[0] === "codec" ? "uncompressed records" : "the .log files"}.</p>` +
    `<div class="chart" id="section-${number}"></div><details><summary>As a table</summary><div class="scroll">${table(titles, rows)}</div></details></article>`
  ).join("");
  others.forEach((section, number) => into(`section-${number}`, (width) => chart(width, section)));
}

function cards(view) {
  const stored = (state) => view.states[state] || 0;
  const rest = view.bytes - ["live", "superseded", "tombstone"].reduce((sum, state) => sum + stored(state), 0);
  const shares = [["live", stored("live")], ["tombstones", stored("tombstone")], ["others", rest]];
  byId("cards").innerHTML = card(bytes(view.bytes), ".log files", [
    ["records", count(view.records)], ["keys", count(view.keys)], ["tombstones", count(view.tombstones)], ["without a key", count(view.keyless)],
  ]) + card(share(stored("superseded"), view.bytes), "superseded", shares.map(([name, size]) => [name, share(size, view.bytes)]));
}

function card(big, small, rows) {
  return `<div class="card"><p class="big">${escaped(big)} <small>${small}</small></p>` +
    `<dl>${rows.map(([name, text]) => `<dt>${name}</dt><dd>${escaped(text)}</dd>`).join("")}</dl></div>`;
}

function chart(width, [titles, rows]) {
  const shown = rows.filter(([name, numbers]) => numbers.length && name !== ".log files").slice(0, MOST_BARS);
  const last = (numbers) => numbers[numbers.length - 1];
  const said = ([name, numbers, total]) => `${name}: ${bytes(last(numbers))}, ${share(last(numbers), total)}`;
  const whole = Math.max(1, ...shown.flatMap(([, numbers, total]) => [Math.abs(last(numbers)), total]));
  const kind = (name, size) => size < 0 ? "ghost" : KINDS[name.split(",")[0]] || "left";
  return bars(width, shown.map((row) => ({
    name: row[0], text: said(row).slice(row[0].length + 2),
    parts: [[Math.abs(last(row[1])), kind(row[0], last(row[1])), said(row)]],
  })), whole, `${titles[0]}: ${shown.map(said).join("; ")}`);
}

function table(titles, rows) {
  const cells = ([name, numbers, total]) => `<tr><td>${escaped(name)}</td>${numbers.map((number) => `<td>${count(number)}</td>`).join("")}` +
    `${numbers.length ? `<td>${share(numbers[numbers.length - 1], total)}</td>` : ""}</tr>`;
  return `<table><thead><tr>${[...titles, "share"].map((title) => `<th scope="col">${escaped(title)}</th>`).join("")}</tr></thead>` +
    `<tbody>${rows.map(cells).join("")}</tbody></table>`;
}

function start() {
  byId("about").textContent = `${DATA.about} Ages up to ${new Date(DATA.asOf).toISOString().slice(0, 16).replace("T", " ")} UTC.`;
  byId("notes-section").hidden = !DATA.notes.length;
  byId("notes").innerHTML = DATA.notes.map((text) => `<li>${escaped(text)}</li>`).join("");
  byId("shown").innerHTML = DATA.views.map((view, number) => `<option value="${number}">${escaped(view.name)}</option>`).join("");
  byId("shown").addEventListener("change", draw);
  whenResized(draw);
  draw();
}

start();
