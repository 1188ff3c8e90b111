/* Policies compared: the figures of all logs, or of one. */

const EMPTY = { bytes: 0, segments: 0, records: 0, record_bytes: 0, tombstones: 0, keyless_records: 0 };
const SPREAD = { by_age: [], by_place: [] };
const LEGEND = [["left", "remaining"], ["compacted", "removed by compaction"], ["expired", "expired"]];

function sum(values, empty) { return values.reduce(added, empty); }

/* Whether a run would change a log, or find nothing to do; the figures of others are those of no run. */
function changes(outcome) { return outcome.status === "cleaned" || outcome.status === "skipped"; }

/* A log that only loses expired segments is not cleaned. */
function words(outcome) {
  if (outcome.status !== "cleaned") return outcome.status.replace("_", " ");
  return [outcome.expired.segments && "expired", outcome.broker_rounds && "cleaned"].filter(Boolean).join(" and ") || "cleaned";
}

/* The sums of one policy over logs; one that its run would not change counts as it is. */
function policy(name, number, logs) {
  const outcomes = logs.map((log) => log.policies[number]), changed = outcomes.filter(changes), states = {};
  for (const outcome of outcomes) states[words(outcome)] = (states[words(outcome)] || 0) + 1;
  return {
    name, number, states, after: sum(logs.map((log, at) => changes(outcomes[at]) ? outcomes[at].after : log.before), EMPTY),
    expired: sum(changed.map((outcome) => outcome.expired), EMPTY), gone: sum(changed.map((outcome) => outcome.gone), SPREAD),
    expiredAges: sum(changed.map((outcome) => outcome.expired_by_age), []),
    rounds: Math.max(0, ...outcomes.map((outcome) => outcome.broker_rounds)),
  };
}

function show(view) {
  const logs = chosenLogs(view).filter((log) => !log.error), before = sum(logs.map((log) => log.before), EMPTY);
  const policies = DOCUMENT.policies.map(({ name }, number) => policy(name, number, logs));
  const spread = sum(logs.map((log) => log.spread), SPREAD);
  return {
    cards: policies.map((each) => policyCard(each, before)),
    blocks: [
      [split("bytes", "Bytes on disk", before, policies, bytes), split("records", "Records", before, policies, count),
        tombstones(before, policies), keys(logs)],
      ages(spread.by_age, policies),
      {
        id: "places", title: "Retained records by position in the log", heads: policies.map((each) => headed(each.name, each.number)),
        sub: "From the first offset (left) to the log end (right). Grey: all records; colour: retained records.",
        charts: policies.map(({ name, gone }) => (width) => columns(
          width, 90, spread.by_place.map((value, place) => value - (gone.by_place[place] || 0)), spread.by_place, [], "left",
          `records that ${name} retains, by position in the log`)),
      },
      rounds(policies, view),
      view && why(DOCUMENT.logs[view - 1]),
    ],
  };
}

function policyCard({ name, number, after, states }, before) {
  const row = (title, field, format = short) => [title, change(before[field], after[field], format)];
  return card(headed(name, number), share(before.bytes - after.bytes, before.bytes), "freed", [
    row("on disk", "bytes", bytes), row("records", "records"), row("segments", "segments"), row("tombstones", "tombstones"),
    row("without a key", "keyless_records"),
    ["logs would be", Object.entries(states).map(([text, many]) => `${count(many)} ${text}`).join(", ") || "none"],
  ]);
}

function lettered({ name, number }) { return `${letter(number)}  ${name}`; }

/* Remaining, compacted and expired data: one bar per policy. */
function split(id, title, before, policies, format) {
  const rows = policies.map((each) => {
    const left = each.after[id], expired = each.expired[id], compacted = Math.max(before[id] - left - expired, 0);
    const parts = [left, compacted, expired].map((size, at) => [size, LEGEND[at][0], `${LEGEND[at][1]}: ${format(size)}`]);
    return { name: lettered(each), text: `${format(left)} remaining`, parts };
  });
  const most = Math.max(before[id], ...policies.map((each) => each.after[id]));
  return { id, title, sub: legend(LEGEND), charts: [(width) => bars(width, rows, most, `remaining ${id} by policy`)] };
}

function tombstones(before, policies) {
  const row = (name, number, kind) => ({ name, text: count(number), parts: [[number, kind, count(number)]] });
  const rows = [row("before", before.tombstones, "ghost"), ...policies.map((each) => row(lettered(each), each.after.tombstones, "left"))];
  return {
    id: "tombstones", title: "Tombstones", sub: "Deletion markers before and after cleaning.",
    charts: [(width) => bars(width, rows, before.tombstones, "tombstones before and after cleaning")],
  };
}

function keys(logs) {
  const distinct = sum(logs.map((log) => log.keys.distinct), 0), most = Math.max(0, ...logs.map((log) => log.keys.most_repeated));
  const ranges = new Map();
  for (const { at_least: low, at_most: high, keys: many } of logs.flatMap((log) => log.keys.repetition)) {
    ranges.set(high, [low, high, many + (ranges.get(high) || [0, 0, 0])[2]]);
  }
  const rows = [...ranges.values()].sort((left, right) => left[1] - right[1]), once = rows.length && rows[0][1] === 1 ? rows[0][2] : 0;
  const names = rows.map(([low, high]) => low === high ? `${low}\u00d7` : `${short(low)}\u2013${short(high)}\u00d7`);
  return {
    id: "keys", title: "Records per key", sub: distinct
      ? `${count(distinct)} distinct keys; ${share(once, distinct)} occur once, the most frequent one occurs ${count(most)} times.`
      : "No records have keys.",
    charts: [(width) => rows.length ? columns(width, 150, rows.map((row) => row[2]), [], names, "left", "keys by number of records") : ""],
  };
}

function ages(all, policies) {
  const used = [...all.keys()].filter((index) => all[index] > 0), names = ageNames(DOCUMENT.age_bounds_ms);
  const pick = (values) => used.map((index) => values[index] || 0);
  return {
    id: "ages", title: "Age of the removed records", heads: policies.map((each) => headed(each.name, each.number)),
    sub: `Records by age at the time above. ${legend([...LEGEND.slice(1), ["ghost", "all records"]])}`,
    charts: policies.map(({ name, gone, expiredAges }) => (width) => columns(
      width, 110, pick(gone.by_age), pick(all), used.map((index) => names[index]), "compacted",
      `records that ${name} removes, by age`, pick(expiredAges))),
  };
}

function ageNames(boundsMs) {
  const names = boundsMs.map((bound) => {
    const [unit, size] = [["y", 31536e6], ["d", 864e5], ["h", 36e5], ["ms", 1]].find(([, each]) => bound % each === 0);
    return `${bound / size} ${unit}`;
  });
  const between = names.slice(1, -1).map((name, at) => `${name} to ${names[at + 2]}`);
  return ["in the future", `up to ${names[1]}`, ...between, `${names[names.length - 1]} and older`, "no time"];
}

function rounds(policies, view) {
  const most = Math.max(0, ...policies.map((each) => each.rounds)), title = "Rounds of a broker's cleaner";
  if (most <= 1) return { id: "rounds", title, html: `<p>${most ? "One round suffices under every policy that compacts." : "No policy compacts."}</p>` };
  const rows = policies.map((each) => ({
    name: lettered(each), text: each.rounds ? `${count(each.rounds)}${!view && each.rounds > 1 ? " at most" : ""}` : "not compacted",
    parts: [[each.rounds, "left", count(each.rounds)]],
  }));
  return {
    id: "rounds", title, charts: [(width) => bars(width, rows, most, "rounds of a broker's cleaner")],
    sub: "How many rounds a broker needs to clean the log: the offset map of one round holds a limited number of keys.",
  };
}

function why(log) {
  const line = (text) => {
    const [head, ...rest] = text.split("\n"), mark = head.slice(0, 5).trim();
    return `<li class="${escaped(mark)}"><b>${escaped(mark)}</b>${escaped(head.slice(6))}` +
      `${rest.map((each) => `<span>${escaped(each.trim())}</span>`).join("")}</li>`;
  };
  const answer = (outcome, number) => `<article><h3><b class="letter">${letter(number)}</b> ${named(outcome.policy)} ` +
    `${word(outcome.status, words(outcome))}</h3><p>${escaped(outcome.reason)}</p><ul>${(outcome.why || []).map(line).join("")}</ul></article>`;
  const html = log.error ? `<p class="note">${escaped(log.error)}</p>` : log.policies.map(answer).join("");
  return { id: "why", title: "Why", html };
}

function freed(log, number) {
  const outcome = log.policies[number];
  return outcome && changes(outcome) ? log.before.bytes - outcome.after.bytes : -1;
}

function freedText(log, number) {
  const outcome = log.policies[number];
  if (!outcome) return word("failed", "failed");
  return `${changes(outcome) ? share(freed(log, number), log.before.bytes) : ""}${word(outcome.status, words(outcome))}`;
}

const DIRS = new Set(DOCUMENT.logs.map((log) => log.log_dir)), FAILED = DOCUMENT.logs.filter((log) => log.error).length;

start({
  title: `${counted(DOCUMENT.policies.length, "policy", "policies")}, ${counted(DOCUMENT.logs.length, "log")}`,
  heading: "Policies compared",
  about: `${counted(DOCUMENT.logs.length, "log")} in ${DIRS.size === 1 ? [...DIRS][0] : `${DIRS.size} directories`}, as of ` +
    `${moment(DOCUMENT.as_of_ms)}.${FAILED ? ` ${count(FAILED)} could not be read.` : ""} The logs were only read.`,
  views: logViews(),
  show,
  columns: [
    NAME, column("before", "On disk", (log) => log.before.bytes, bytes),
    ...DOCUMENT.policies.map(({ name }, number) => ({
      id: `policy-${number}`, title: name, head: `<b class="letter">${letter(number)}</b> `,
      value: (log) => freed(log, number), text: (log) => freedText(log, number),
    })),
    column("records", "Records", (log) => log.before.records), column("keys", "Keys", (log) => log.keys.distinct),
    column("tombstones", "Tombstones", (log) => log.before.tombstones),
  ],
});
