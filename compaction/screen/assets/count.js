/* Records and keys of all topics, or of one, and where their bytes are. */

const KINDS = { superseded: "expired", tombstone: "compacted", "no key": "ghost" };
const HEADINGS = {
  topic: "Topics", "state and age": "States and ages", value: "Sizes of values", codec: "Codecs", "group of keys": "Groups of keys",
  header: "Headers", "producer id": "Producers", "largest key": "Largest keys",
};
/* Numbers of a row, by their fields, and their titles. The last one is a share of a whole. */
const FIELDS = ["records", "bytes", "stored_bytes"].slice(0, DOCUMENT.stored ? 3 : 2);
const TITLES = ["records", "keys and values", "stored"].slice(0, FIELDS.length);
/* Names of a topic, by their fields. */
const NAMES = { groups: "group of keys", headers: "header", producers: "producer id" };
/* Bars of a section; the table has all rows. Rows of a section that has those of all topics. */
const MOST_BARS = 12, MOST_NAMES = 20;

/* The topics, after the sum of several. */
const ALL = { ...DOCUMENT.total, topic: `all of ${counted(DOCUMENT.total.topics, "topic")}` };
const VIEWS = DOCUMENT.total.topics === 1 ? DOCUMENT.topics : [ALL, ...DOCUMENT.topics];

function show(view) {
  const shown = VIEWS[view], sections = shown === ALL ? allSections() : topicSections(shown);
  const blocks = sections.filter(({ rows, components }) => rows.length || components).map((section, number) => sectionBlock(section, number));
  const [first, rest] = DOCUMENT.stored ? [blocks[0], blocks.slice(1)] : [null, blocks];
  return { cards: cards(shown), blocks: [DOCUMENT.notes.length && { id: "notes", title: "Not counted", html: list(DOCUMENT.notes) }, first, rest] };
}

function cards(shown) {
  const rows = [["records", "records"], ["keys", "keys"], ["tombstones", "tombstones"], ["without a key", "keyless"]]
    .map(([title, field]) => [title, count(shown[field])]);
  if (!DOCUMENT.stored) return [card("", bytes(shown.bytes), "of keys and values", rows)];
  const { states, file_bytes: whole } = shown.usage;
  const stored = (state) => states.reduce((sum, row) => row.state === state ? sum + row.stored_bytes : sum, 0);
  const rest = whole - ["live", "superseded", "tombstone"].reduce((sum, state) => sum + stored(state), 0);
  const shares = [["live", stored("live")], ["tombstones", stored("tombstone")], ["others", rest]];
  return [card("", bytes(whole), ".log files", rows),
    card("", share(stored("superseded"), whole), "superseded", shares.map(([name, size]) => [name, share(size, whole)]))];
}

function last(numbers) { return numbers[numbers.length - 1]; }

function spaced(name) { return name.replace(/_/g, " "); }

function size(topic) { return DOCUMENT.stored ? topic.usage.file_bytes : topic.bytes; }

/* A section: the titles of a name and of numbers, rows of a name, its numbers, and the whole of which the last one is a share, and a
   row of the names that have none. */
function section(title, found, name, whole, titles = TITLES) {
  return { titles: [title, ...titles], rows: found.map((row) => [name(row), FIELDS.map((field) => row[field]), whole]) };
}

function usageSections({ topic, usage }) {
  if (!DOCUMENT.stored) return [];
  const { file_bytes: whole, components, states, value_sizes: values, codecs } = usage;
  const parts = Object.entries(components).filter(([, number]) => number).map(([part, number]) => [spaced(part), [number], whole]);
  return [
    { titles: [topic, "bytes"], rows: parts, components: true },
    section("state and age", states, ({ state, age }) => [spaced(state), age].filter(Boolean).join(", "), whole),
    section("value", values, ({ value }) => value, whole),
    {
      titles: ["codec", "uncompressed", "stored"],
      rows: codecs.map((row) => [row.codec, [row.uncompressed_bytes, row.stored_bytes], row.uncompressed_bytes]),
    },
  ];
}

function namedSections(topic) {
  const whole = size(topic), usage = topic.usage || {};
  const sections = Object.keys(NAMES).filter((names) => names in usage).map((names) => {
    const { distinct, total, largest } = usage[names], more = distinct - largest.length;
    const rest = FIELDS.map((field) => largest.reduce((sum, row) => sum - row[field], total[field]));
    return {
      ...section(NAMES[names], largest, ({ name }) => name, whole, names === "headers" ? ["headers", "names and values", "stored"] : TITLES),
      others: more ? [`and ${count(more)} more`, rest, whole] : null,
    };
  });
  return [...sections, section("largest key", topic.largest_keys, ({ name }) => name, whole)];
}

function topicSections(topic) { return [...usageSections(topic), ...namedSections(topic)]; }

/* Those of all topics together, with the topics, and the largest keys and other names with their topics. */
function allSections() {
  const whole = size(ALL), [components, ...together] = usageSections(ALL), more = ALL.topics - DOCUMENT.topics.length, named = new Map();
  const topics = {
    titles: ["topic", ...TITLES], others: more ? [`and ${count(more)} more`, [], whole] : null,
    rows: DOCUMENT.topics.map((topic) => [topic.topic, [topic.records, topic.bytes, size(topic)].slice(0, FIELDS.length), whole]),
  };
  for (const topic of DOCUMENT.topics) {
    for (const { titles, rows } of namedSections(topic)) {
      const all = named.get(titles[0]) || { titles, rows: [] };
      all.rows.push(...rows.map(([name, numbers]) => [`${topic.topic}: ${name}`, numbers, whole]));
      named.set(titles[0], all);
    }
  }
  const largest = ({ titles, rows }) => ({ titles, rows: rows.sort((one, other) => last(other[1]) - last(one[1])).slice(0, MOST_NAMES) });
  return [components, topics, ...together, ...[...named.values()].map(largest)].filter(Boolean);
}

function sectionBlock({ titles, rows, others, components }, number) {
  const measured = DOCUMENT.stored ? "Stored bytes" : "Bytes of keys and values";
  const whole = titles[0] === "codec" ? "uncompressed records" : DOCUMENT.stored ? "the .log files" : "all of them";
  const table = grid([...titles.map(escaped), "share"], [...rows, ...others ? [others] : []].map(([name, numbers, total]) =>
    [escaped(name), ...numbers.map(count), ...numbers.length ? [share(last(numbers), total)] : []]));
  return {
    id: components ? "components" : `section-${number}`, title: components ? "Components" : HEADINGS[titles[0]],
    sub: components ? "Bytes of .log files, exactly. Keys, values and headers are uncompressed; grey: what compression saves."
      : `${measured}, and their share of ${whole}.`,
    charts: [(width) => chart(width, titles[0], rows, others)],
    more: components ? "" : `<details><summary>As a table</summary>${table}</details>`,
  };
}

function chart(width, title, rows, unnamed) {
  const shown = rows.slice(0, MOST_BARS);
  const said = ([, numbers, total]) => `${bytes(last(numbers))}, ${share(last(numbers), total)}`;
  const whole = Math.max(1, ...shown.flatMap(([, numbers, total]) => [Math.abs(last(numbers)), total]));
  const kind = (name, size) => size < 0 ? "ghost" : KINDS[name.split(",")[0]] || "left";
  const drawn = shown.map((row) => ({
    name: row[0], text: said(row), parts: [[Math.abs(last(row[1])), kind(row[0], last(row[1])), `${row[0]}: ${said(row)}`]],
  }));
  const more = rows.slice(MOST_BARS).length ? [`and ${count(rows.length - MOST_BARS)} more in the table`] : [];
  const others = [...more, ...unnamed ? [unnamed[0]] : []];
  return bars(width, drawn, whole, `${title}: ${shown.map((row) => `${row[0]}: ${said(row)}`).join("; ")}`) + others.map((text) => `<p class="sub">${escaped(text)}</p>`).join("");
}

start({
  title: DOCUMENT.about.split(",")[0],
  heading: DOCUMENT.stored ? "Where the bytes are" : "Records and keys",
  about: DOCUMENT.about + (DOCUMENT.stored ? ` Ages up to ${moment(DOCUMENT.as_of_ms)}.` : ""),
  views: VIEWS.map((view) => view.topic),
  show,
});
