/* Records and keys of all topics, or of one, and where their bytes are. */

const KINDS = { superseded: "expired", tombstone: "compacted", "no key": "ghost" };
const HEADINGS = {
  topic: "Topics", "state and age": "States and ages", value: "Sizes of values", codec: "Codecs", "group of keys": "Groups of keys",
  header: "Headers", "producer id": "Producers", "largest key": "Largest keys",
};
/* Bars of a section; the table has all rows. */
const MOST_BARS = 12;

function show(view) {
  const shown = DOCUMENT.views[view];
  const blocks = shown.sections.map((section, number) => sectionBlock(shown, section, number));
  const [first, rest] = DOCUMENT.stored ? [blocks[0], blocks.slice(1)] : [null, blocks];
  return { cards: cards(shown), blocks: [DOCUMENT.notes.length && { id: "notes", title: "Not counted", html: list(DOCUMENT.notes) }, first, rest] };
}

function cards({ states, ...shown }) {
  const rows = [["records", "records"], ["keys", "keys"], ["tombstones", "tombstones"], ["without a key", "keyless"]]
    .map(([title, field]) => [title, count(shown[field])]);
  if (!DOCUMENT.stored) return [card("", bytes(shown.bytes), "of keys and values", rows)];
  const stored = (state) => states[state] || 0, whole = shown.file_bytes;
  const rest = whole - ["live", "superseded", "tombstone"].reduce((sum, state) => sum + stored(state), 0);
  const shares = [["live", stored("live")], ["tombstones", stored("tombstone")], ["others", rest]];
  return [card("", bytes(whole), ".log files", rows),
    card("", share(stored("superseded"), whole), "superseded", shares.map(([name, size]) => [name, share(size, whole)]))];
}

function last(numbers) { return numbers[numbers.length - 1]; }

/* A section: the titles of a name and of numbers, rows of a name, its numbers, and the total of which the last one is a share, and a
   row of the names that have none. */
function sectionBlock(view, [titles, rows, others], number) {
  const components = titles.length === 2, measured = DOCUMENT.stored ? "Stored bytes" : "Bytes of keys and values";
  const whole = titles[0] === "codec" ? "uncompressed records" : DOCUMENT.stored ? "the .log files" : "all of them";
  const table = grid([...titles.map(escaped), "share"], [...rows, ...others ? [others] : []].map(([name, numbers, total]) =>
    [escaped(name), ...numbers.map(count), ...numbers.length ? [share(last(numbers), total)] : []]));
  return {
    id: components ? "components" : `section-${number}`, title: components ? "Components" : HEADINGS[titles[0]],
    sub: components ? "Bytes of .log files, exactly. Keys, values and headers are uncompressed; grey: what compression saves."
      : `${measured}, and their share of ${whole}.`,
    charts: [(width) => chart(width, components ? view.name : titles[0], rows, others)],
    more: components ? "" : `<details><summary>As a table</summary>${table}</details>`,
  };
}

function chart(width, title, rows, unnamed) {
  const sized = rows.filter(([name]) => name !== ".log files"), shown = sized.slice(0, MOST_BARS);
  const said = ([, numbers, total]) => `${bytes(last(numbers))}, ${share(last(numbers), total)}`;
  const whole = Math.max(1, ...shown.flatMap(([, numbers, total]) => [Math.abs(last(numbers)), total]));
  const kind = (name, size) => size < 0 ? "ghost" : KINDS[name.split(",")[0]] || "left";
  const drawn = shown.map((row) => ({
    name: row[0], text: said(row), parts: [[Math.abs(last(row[1])), kind(row[0], last(row[1])), `${row[0]}: ${said(row)}`]],
  }));
  const more = sized.slice(MOST_BARS).length ? [`and ${count(sized.length - MOST_BARS)} more in the table`] : [];
  const others = [...more, ...unnamed ? [unnamed[0]] : []];
  return bars(width, drawn, whole, `${title}: ${shown.map((row) => `${row[0]}: ${said(row)}`).join("; ")}`) + others.map((text) => `<p class="sub">${escaped(text)}</p>`).join("");
}

start({
  title: DOCUMENT.about.split(",")[0],
  heading: DOCUMENT.stored ? "Where the bytes are" : "Records and keys",
  about: DOCUMENT.about + (DOCUMENT.stored ? ` Ages up to ${moment(DOCUMENT.as_of_ms)}.` : ""),
  views: DOCUMENT.views.map((view) => view.name),
  show,
});
