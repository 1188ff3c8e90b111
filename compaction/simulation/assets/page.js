/* Draws the figures of all logs, of a topic or of a log through time. */

const AT = 0, SIZE = 1, SUPERSEDED = 2, PIECES = 3;
const LEFT = 58, RIGHT = 26, TOP = 12, HIGH = 240, FOOT = 26;
/* Events closer than this become one mark. */
const MARK = 9;
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "1 4", "14 5"];

function day(ms) { return new Date(ms).toISOString().slice(0, 10); }
function moment(ms) { return new Date(ms).toISOString().slice(0, 16).replace("T", " ") + " UTC"; }

function lasting(ms) {
  for (const [name, size] of [["day", 864e5], ["hour", 36e5], ["minute", 6e4]]) {
    if (ms >= 2 * size) return `${count(Math.floor(ms / size))} ${name}s`;
  }
  return ms >= 6e4 ? "1 minute" : "0 minutes";
}

function chosen() { return DATA.views[Number(byId("shown").value) || 0]; }

function draw() {
  const view = chosen();
  cards(view);
  lines("size", view, SIZE, true);
  lines("superseded", view, SUPERSEDED, false);
  notes(view);
  samples(view);
}

function cards(view) {
  byId("cards").innerHTML = view.policies.map((each, number) => {
    if (!each.samples.length) {
      return `<div class="card">${headed(DATA.policies[number], number)}<p class="note">${escaped(each.error || "no figures")}</p></div>`;
    }
    const rows = [
      ["mean", bytes(each.mean)], ["at the end", bytes(each.end)], ["cleanings", count(each.cleanings)],
      ["written for each byte", each.written.toFixed(2)], ["superseded, on average", share(each.share, 1)],
      ["superseded remain", lasting(each.superseded)], ["deleted remain", lasting(each.deleted)],
    ];
    return `<div class="card">${headed(DATA.policies[number], number)}<p class="big">${bytes(each.peak)} <small>peak</small></p>` +
      `<dl>${rows.map(([name, text]) => `<dt>${name}</dt><dd>${escaped(text)}</dd>`).join("")}</dl></div>`;
  }).join("");
}

/* A line for each policy, named at its end; with ``marks`` the events, too. */
function lines(id, view, column, marks) {
  const box = byId(id), width = Math.max(240, Math.floor(box.clientWidth || 600));
  const shown = view.policies.map((each, number) => ({ ...each, number })).filter((each) => each.samples.length);
  if (!shown.length) { box.innerHTML = ""; return; }
  const times = shown[0].samples.map((sample) => sample[AT]), first = times[0], last = times[times.length - 1];
  const most = Math.max(1, ...shown.flatMap((each) => each.samples.map((sample) => sample[column])));
  const x = (ms) => LEFT + (width - LEFT - RIGHT) * (last > first ? (ms - first) / (last - first) : 0);
  const y = (value) => TOP + HIGH * (1 - value / most);
  let body = "";
  for (let tick = 0; tick <= 4; tick += 1) {
    const value = most * tick / 4;
    body += `<line class="axis" x1="${LEFT}" x2="${width - RIGHT}" y1="${y(value)}" y2="${y(value)}"/>` + label(LEFT - 6, y(value) + 4, bytes(value), "end", "faint");
  }
  const ticks = Math.max(1, Math.min(6, Math.floor((width - LEFT) / 110)));
  for (let tick = 0; tick <= ticks; tick += 1) {
    const at = first + (last - first) * tick / ticks;
    body += label(x(at), TOP + HIGH + 18, day(at), tick === 0 ? "start" : tick === ticks ? "end" : "middle", "faint");
  }
  if (DATA.asOf > first && DATA.asOf < last) {
    body += `<line class="now" x1="${x(DATA.asOf)}" x2="${x(DATA.asOf)}" y1="${TOP}" y2="${TOP + HIGH}"/>` + label(x(DATA.asOf) + 4, TOP + 10, "now", "start", "faint");
  }
  const ends = [];
  for (const each of shown) {
    const points = each.samples.map((sample) => `${x(sample[AT]).toFixed(1)},${y(sample[column]).toFixed(1)}`).join(" ");
    body += `<polyline class="line line-${each.number % 6}" stroke-dasharray="${DASHES[each.number % 6]}" points="${points}"/>`;
    let end = y(each.samples[each.samples.length - 1][column]) + 4;
    while (ends.some((other) => Math.abs(other - end) < 13)) end += 1;
    ends.push(end);
    body += label(width - RIGHT + 6, end, letter(each.number), "start", `name line-${each.number % 6}`);
    if (marks) body += eventMarks(each, x, (ms) => y(sizeAt(each.samples, ms)));
  }
  const said = shown.map((each) => `${letter(each.number)} ${DATA.policies[each.number]}: ` +
    `${bytes(each.samples[0][column])} at first, ${bytes(each.samples[each.samples.length - 1][column])} at the end`).join("; ");
  /* marks can have the focus only if the drawing is not one image */
  box.innerHTML = svg(width, TOP + HIGH + FOOT, body, `${id} from ${day(first)} to ${day(last)}: ${said}`)
    .replace('role="img"', marks ? 'role="group"' : 'role="img"');
}

function sizeAt(samples, ms) {
  const next = samples.findIndex((sample) => sample[AT] >= ms);
  if (next <= 0) return samples[next < 0 ? samples.length - 1 : 0][SIZE];
  const [before, after] = [samples[next - 1], samples[next]];
  return before[SIZE] + (after[SIZE] - before[SIZE]) * (ms - before[AT]) / (after[AT] - before[AT]);
}

function eventMarks(each, x, y) {
  const groups = [];
  for (const event of each.events) {
    const group = groups[groups.length - 1];
    if (group && group.kind === event[1] && x(event[0]) - group.x < MARK) group.events.push(event);
    else groups.push({ x: x(event[0]), kind: event[1], events: [event] });
  }
  return groups.map((group) => {
    const [at, kind] = group.events[0], height = y(at), line = each.number % 6;
    const before = group.events.reduce((sum, event) => sum + event[2], 0), after = group.events.reduce((sum, event) => sum + event[3], 0);
    const many = group.events.length > 1 ? `${group.events.length} times until ${moment(group.events[group.events.length - 1][0])}, ` : "";
    const what = kind === "cleaned" ? `cleaned ${many}${bytes(before)} to ${bytes(after)}` : `deleted ${many}${bytes(before)}`;
    const text = `${letter(each.number)}, ${moment(at)}: ${what}`;
    const shape = kind === "cleaned" ? `<circle cx="${group.x.toFixed(1)}" cy="${height.toFixed(1)}" r="3.5"/>`
      : `<path d="M${group.x.toFixed(1)} ${(height - 5).toFixed(1)}l5 8h-10z"/>`;
    return `<g class="mark line-${line}" tabindex="0" role="img" aria-label="${escaped(text)}" data-text="${escaped(text)}">` +
      `<title>${escaped(text)}</title>${shape}</g>`;
  }).join("");
}

function notes(view) {
  byId("notes").innerHTML = view.notes.map((text) => `<li>${escaped(text)}</li>`).join("");
}

function fit() {
  const found = DATA.fit;
  byId("fit-section").hidden = !found;
  if (!found) return;
  byId("fit").textContent = found.text;
  byId("trials").tHead.innerHTML = "<tr>" + ["Setting", "Peak", "Mean", "Cleaner writes", "Deleted"].map((name) => `<th scope="col">${name}</th>`).join("") + "</tr>";
  byId("trials").tBodies[0].innerHTML = found.trials.map(([name, ...sizes]) =>
    `<tr><td>${named(name)}</td>${sizes.map((size) => `<td>${bytes(size)}</td>`).join("")}</tr>`).join("");
}

function samples(view) {
  const shown = view.policies.map((each, number) => ({ ...each, number })).filter((each) => each.samples.length);
  const head = shown.flatMap((each) => ["size", "superseded", "segments"].map((name) => `<th scope="col"><b class="letter">${letter(each.number)}</b> ${name}</th>`));
  byId("samples").tHead.innerHTML = `<tr><th scope="col">Until</th>${head.join("")}</tr>`;
  byId("samples").tBodies[0].innerHTML = (shown.length ? shown[0].samples : []).map((sample, row) =>
    `<tr><td>${moment(sample[AT])}</td>` + shown.map((each) => `<td>${bytes(each.samples[row][SIZE])}</td>` +
      `<td>${bytes(each.samples[row][SUPERSEDED])}</td><td>${count(each.samples[row][PIECES])}</td>`).join("") + "</tr>").join("");
}

function start() {
  byId("about").textContent = DATA.about;
  byId("shown").innerHTML = DATA.views.map((view, number) => `<option value="${number}">${escaped(view.name)}</option>`).join("");
  byId("shown").addEventListener("change", draw);
  const tell = (event) => {
    const mark = event.target.closest(".mark");
    if (mark) byId("event").textContent = mark.dataset.text;
  };
  byId("size").addEventListener("focusin", tell);
  byId("size").addEventListener("mouseover", tell);
  whenResized(draw);
  fit();
  draw();
}

start();
