/* Draws the figures of all logs, or of one. */

const state = { log: -1, sort: "before", down: true, filter: "" };

/* The figures to show: sums over all logs with figures, or one log. */
function chosen() {
  const readable = DATA.logs.filter((log) => !log.error);
  const logs = state.log < 0 ? readable : [DATA.logs[state.log]].filter((log) => !log.error);
  const sum = (pick) => logs.reduce((total, log) => added(total, pick(log)), []);
  const repeats = new Map();
  for (const log of logs) {
    for (const [low, high, keys, records] of log.repeats) {
      const known = repeats.get(high) || [low, high, 0, 0];
      repeats.set(high, [low, high, known[2] + keys, known[3] + records]);
    }
  }
  return {
    logs, before: orZero(sum((log) => log.before)), ages: sum((log) => log.ages), places: sum((log) => log.places),
    keys: logs.reduce((total, log) => total + log.keys[0], 0), most: Math.max(0, ...logs.map((log) => log.keys[1])),
    repeats: [...repeats.values()].sort((left, right) => left[1] - right[1]),
    policies: DATA.policies.map((name, number) => policy(name, logs.map((log) => [log, log.outcomes[number]]))),
  };
}

function orZero(held) { return held.length ? held : [0, 0, 0, 0, 0, 0]; }

/* Whether a run would change a log, or find nothing to do; the figures of others are those of no run. */
function changes(outcome) { return outcome.status === "cleaned" || outcome.status === "skipped"; }

/* The sums of one policy over logs; one that its run would not change counts as it is. */
function policy(name, pairs) {
  const sum = (pick) => pairs.reduce((total, pair) => added(total, pick(...pair)), []);
  const removed = (pick) => pairs.filter(([, outcome]) => changes(outcome)).reduce((total, [, outcome]) => added(total, pick(outcome)), []);
  const states = {};
  for (const [, outcome] of pairs) states[outcome.words] = (states[outcome.words] || 0) + 1;
  return {
    name, states, after: orZero(sum((log, outcome) => changes(outcome) ? outcome.after : log.before)),
    expired: orZero(removed((outcome) => outcome.expired)), ages: removed((outcome) => outcome.ages),
    expiredAges: removed((outcome) => outcome.expiredAges), places: removed((outcome) => outcome.places), rounds: pairs.reduce((most, [, outcome]) => Math.max(most, outcome.rounds), 0),
  };
}

function draw() {
  const shown = chosen();
  about(shown);
  cards(shown);
  split("bytes", shown, BYTES, bytes);
  split("records", shown, RECORDS, count);
  tombstones(shown);
  keys(shown);
  ages(shown);
  places(shown);
  rounds(shown);
  why();
  table();
}

function about(shown) {
  const dirs = [...new Set(DATA.logs.map((log) => log.dir))];
  const failed = DATA.logs.filter((log) => log.error).length;
  const when = new Date(DATA.asOf).toISOString().replace("T", " ").slice(0, 16);
  byId("about").textContent = `${count(DATA.logs.length)} logs in ${dirs.length === 1 ? dirs[0] : `${dirs.length} directories`}, ` +
    `as of ${when} UTC.` + (failed ? ` ${count(failed)} could not be read.` : "") + " The logs were only read.";
}

function cards(shown) {
  const before = shown.before;
  byId("cards").innerHTML = shown.policies.map((each, number) => {
    const freed = before[BYTES] - each.after[BYTES];
    const rows = [
      ["on disk", `${bytes(before[BYTES])} \u2192 ${bytes(each.after[BYTES])}`],
      ["records", `${short(before[RECORDS])} \u2192 ${short(each.after[RECORDS])}`],
      ["segments", `${short(before[SEGMENTS])} \u2192 ${short(each.after[SEGMENTS])}`],
      ["tombstones", `${short(before[TOMBSTONES])} \u2192 ${short(each.after[TOMBSTONES])}`],
      ["without a key", `${short(before[KEYLESS])} \u2192 ${short(each.after[KEYLESS])}`],
      ["logs would be", Object.entries(each.states).map(([name, many]) => `${count(many)} ${name}`).join(", ") || "none"],
    ];
    return `<div class="card">${headed(each.name, number)}<p class="big">${share(freed, before[BYTES])} <small>freed</small></p>` +
      `<dl>${rows.map(([name, text]) => `<dt>${name}</dt><dd>${escaped(text)}</dd>`).join("")}</dl></div>`;
  }).join("");
}

function legend(id, kinds) {
  byId(`key-${id}`).innerHTML = kinds.map(([kind, text]) => `<span class="swatch ${kind}"></span>${text}`).join("");
}

/* Remaining, compacted and expired data: one bar per policy. */
function split(id, shown, column, format) {
  legend(id, [["left", "remaining"], ["compacted", "removed by compaction"], ["expired", "expired"]]);
  const whole = shown.before[column];
  const rows = shown.policies.map((each, number) => {
    const left = each.after[column], expired = each.expired[column], compacted = Math.max(whole - left - expired, 0);
    return {
      name: `${letter(number)}  ${each.name}`, text: `${format(left)} remaining`,
      parts: [
        [left, "left", `remaining: ${format(left)}`], [compacted, "compacted", `removed by compaction: ${format(compacted)}`],
        [expired, "expired", `expired: ${format(expired)}`],
      ],
    };
  });
  into(id, (width) => bars(width, rows, Math.max(whole, ...shown.policies.map((each) => each.after[column])), `remaining ${id} by policy`));
}

function tombstones(shown) {
  const before = shown.before[TOMBSTONES];
  const rows = [{ name: "before", text: count(before), parts: [[before, "ghost", count(before)]] }].concat(
    shown.policies.map((each, number) => ({
      name: `${letter(number)}  ${each.name}`, text: count(each.after[TOMBSTONES]), parts: [[each.after[TOMBSTONES], "left", count(each.after[TOMBSTONES])]],
    })));
  into("tombstones", (width) => bars(width, rows, before, "tombstones before and after cleaning"));
}

function keys(shown) {
  const rows = shown.repeats;
  const once = rows.length && rows[0][1] === 1 ? rows[0][2] : 0;
  byId("keys-sub").textContent = shown.keys
    ? `${count(shown.keys)} distinct keys; ${share(once, shown.keys)} occur once, the most frequent one occurs ${count(shown.most)} times.`
    : "No records have keys.";
  const names = rows.map(([low, high]) => low === high ? `${low}\u00d7` : `${short(low)}\u2013${short(high)}\u00d7`);
  into("keys", (width) => rows.length ? columns(width, 150, rows.map((row) => row[2]), [], names, "left", "keys by number of records") : "");
}

function ages(shown) {
  const used = DATA.ages.map((_, index) => index).filter((index) => (shown.ages[index] || 0) > 0);
  legend("ages", [["compacted", "removed by compaction"], ["expired", "expired"], ["ghost", "all records"]]);
  multiples("ages", shown, (each, width) => columns(
    width, 110, used.map((index) => each.ages[index] || 0), used.map((index) => shown.ages[index]),
    used.map((index) => DATA.ages[index]), "compacted", `records that ${each.name} removes, by age`,
    used.map((index) => each.expiredAges[index] || 0)));
}

function places(shown) {
  multiples("places", shown, (each, width) => columns(
    width, 90, shown.places.map((value, index) => value - (each.places[index] || 0)), shown.places, [], "left",
    `records that ${each.name} retains, by position in the log`));
}

function multiples(id, shown, chart) {
  const box = byId(id);
  box.innerHTML = shown.policies.map((each, number) =>
    `<div>${headed(each.name, number)}<div class="chart" id="${id}-${number}"></div></div>`).join("");
  shown.policies.forEach((each, number) => into(`${id}-${number}`, (width) => chart(each, width)));
}

function rounds(shown) {
  const most = Math.max(0, ...shown.policies.map((each) => each.rounds));
  if (most <= 1) {
    byId("rounds").innerHTML = `<p>${most ? "One round suffices under every policy that compacts." : "No policy compacts."}</p>`;
    return;
  }
  const rows = shown.policies.map((each, number) => ({
    name: `${letter(number)}  ${each.name}`, text: each.rounds ? `${count(each.rounds)}${state.log < 0 && each.rounds > 1 ? " at most" : ""}` : "not compacted",
    parts: [[each.rounds, "left", count(each.rounds)]],
  }));
  into("rounds", (width) => bars(width, rows, most, "rounds of a broker's cleaner"));
}

function why() {
  const log = DATA.logs[state.log];
  byId("why-section").hidden = !log;
  if (!log) return;
  const line = (text) => {
    const [head, ...rest] = text.split("\n");
    const [mark, said] = [head.slice(0, 5).trim(), head.slice(6)];
    const more = rest.map((each) => `<span>${escaped(each.trim())}</span>`).join("");
    return `<li class="${escaped(mark)}"><b>${escaped(mark)}</b>${escaped(said)}${more}</li>`;
  };
  const answer = (outcome, number) => `<article><h3><b class="letter">${letter(number)}</b> ${named(DATA.policies[number])} <span class="state ${outcome.status}">` +
    `${outcome.words}</span></h3><p>${escaped(outcome.reason)}</p><ul>${outcome.why.map(line).join("")}</ul></article>`;
  byId("why").innerHTML = log.error ? `<p class="note">${escaped(log.error)}</p>` : log.outcomes.map(answer).join("");
}

/* Columns of the table: title, sort value, and text. */
function tableColumns() {
  const own = [
    { id: "name", title: "Log", value: (log) => log.name, text: (log) => log.name },
    { id: "before", title: "On disk", value: (log) => log.before[BYTES], text: (log) => bytes(log.before[BYTES]) },
    { id: "records", title: "Records", value: (log) => log.before[RECORDS], text: (log) => count(log.before[RECORDS]) },
    { id: "keys", title: "Keys", value: (log) => log.keys[0], text: (log) => count(log.keys[0]) },
    { id: "tombstones", title: "Tombstones", value: (log) => log.before[TOMBSTONES], text: (log) => count(log.before[TOMBSTONES]) },
  ];
  return own.concat(DATA.policies.map((name, number) => ({
    id: `policy-${number}`, title: name, letter: letter(number),
    value: (log) => log.error || !changes(log.outcomes[number]) ? -1 : log.before[BYTES] - log.outcomes[number].after[BYTES],
    text: (log) => freed(log, number),
  })));
}

function freed(log, number) {
  const outcome = log.outcomes[number];
  if (log.error || !outcome) return `<span class="state failed">failed</span>`;
  if (!changes(outcome)) {
    return `<span class="state ${outcome.status}">${outcome.words}</span>`;
  }
  return `${share(log.before[BYTES] - outcome.after[BYTES], log.before[BYTES])}` +
    `<span class="state ${outcome.status}">${outcome.words}</span>`;
}

function table() {
  const all = tableColumns(), by = all.find((column) => column.id === state.sort);
  const direction = (column) => column.id !== state.sort ? "none" : state.down ? "descending" : "ascending";
  byId("table").tHead.innerHTML = `<tr>${all.map((column) =>
    `<th scope="col" class="${column.letter ? "policy" : ""}" aria-sort="${direction(column)}"><button type="button" data-sort="${column.id}">` +
    `${column.letter ? `<b class="letter">${column.letter}</b> ` : ""}${named(column.title)}</button></th>`
  ).join("")}</tr>`;
  const rows = DATA.logs.map((log, number) => ({ log, number, key: by.value(log) }))
    .filter((row) => row.log.name.toLowerCase().includes(state.filter));
  rows.sort((left, right) => {
    const order = typeof left.key === "string" ? left.key.localeCompare(right.key, "en", { numeric: true }) : left.key - right.key;
    return (state.down ? -order : order) || left.number - right.number;
  });
  byId("table").tBodies[0].innerHTML = rows.map(({ log, number }) => `<tr class="${number === state.log ? "chosen" : ""}">` +
    all.map((column) => column.id === "name"
      ? `<td><button type="button" data-log="${number}">${escaped(log.name)}</button></td>`
      : `<td>${column.text(log)}</td>`).join("") + "</tr>").join("");
}

function choose(number) {
  state.log = number;
  byId("log").value = String(number);
  draw();
}

function start() {
  byId("log").innerHTML = `<option value="-1">all logs</option>` +
    DATA.logs.map((log, number) => `<option value="${number}">${escaped(log.name)}</option>`).join("");
  byId("log").addEventListener("change", (event) => choose(Number(event.target.value)));
  byId("filter").addEventListener("input", (event) => { state.filter = event.target.value.toLowerCase(); table(); });
  byId("table").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.log !== undefined) {
      const number = Number(button.dataset.log);
      choose(number === state.log ? -1 : number);
      document.querySelector("header").scrollIntoView();
      return;
    }
    state.down = state.sort === button.dataset.sort ? !state.down : button.dataset.sort !== "name";
    state.sort = button.dataset.sort;
    table();
    document.querySelector(`[data-sort="${state.sort}"]`).focus();
  });
  whenResized(draw);
  draw();
}

start();
