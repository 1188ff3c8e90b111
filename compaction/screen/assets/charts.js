/* Charts as SVG text, drawn for a width in pixels so that the font size does not scale. */

/* Heights of a row and its bar; the least distance of two labels. */
const ROW = 46, BAR = 16, GAP = 5;

function rect(x, y, width, height, kind, title) {
  const label = title ? `<title>${escaped(title)}</title>` : "";
  return `<rect x="${x.toFixed(2)}" y="${y.toFixed(2)}" width="${Math.max(width, 0).toFixed(2)}" height="${height.toFixed(2)}"` +
    ` class="${kind}">${label}</rect>`;
}

function label(x, y, text, anchor = "start", kind = "") {
  return `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}" class="${kind}">${escaped(text)}</text>`;
}

function svg(width, height, body, title) {
  return `<svg viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img"` +
    ` aria-label="${escaped(title)}">${body}</svg>`;
}

function fitted(text, width) {
  const most = Math.max(6, Math.floor(width / 6.6));
  return text.length <= most ? text : `${text.slice(0, most - 1)}\u2026`;
}

/* One bar per row: its name, the text at its right, and its parts [value, kind, title]; ``whole`` is the value of the full width. */
function bars(width, rows, whole, title) {
  let body = "";
  rows.forEach((row, index) => {
    const y = index * ROW;
    body += label(0, y + 13, fitted(row.name, width - 8 * row.text.length), "start") + label(width, y + 13, row.text, "end", "faint");
    let x = 0;
    for (const [value, kind, what] of row.parts) {
      const size = whole ? width * value / whole : 0;
      body += rect(x, y + 20, value > 0 ? Math.max(size, 1) : 0, BAR, kind, what);
      x += size;
    }
    body += `<line class="axis" x1="0" x2="${width}" y1="${y + 20 + BAR + .5}" y2="${y + 20 + BAR + .5}"/>`;
  });
  return svg(width, Math.max(rows.length * ROW, 1), body, title);
}

/* Columns in front of grey ``ghosts`` on the same scale, with ``names`` below; ``expired`` is a part of each value.
   A label stands above the higher of both: where there is a ghost, it says so, or there is none. */
function columns(width, height, values, ghosts, names, kind, title, expired = []) {
  const foot = names.length ? 34 : 0, head = names.length ? 30 : 16, most = Math.max(1, ...values, ...ghosts);
  const step = width / values.length, gap = step > 12 ? Math.min(step * .2, 10) : step > 4 ? 1 : 0;
  const floor = head + height;
  let body = "";
  values.forEach((value, index) => {
    const x = index * step + gap / 2, wide = step - gap;
    const name = names[index] || `part ${index + 1} of ${values.length}`;
    const text = ghosts.length ? `${name}: ${count(value)} of ${count(ghosts[index])}` : `${name}: ${count(value)}`;
    const tall = (amount) => amount > 0 ? Math.max(height * amount / most, 1.5) : 0;
    if (ghosts.length) body += rect(x, floor - tall(ghosts[index]), wide, tall(ghosts[index]), "ghost", text);
    const gone = Math.min(tall(expired[index] || 0), tall(value));
    body += rect(x, floor - tall(value), wide, tall(value) - gone, kind, text);
    if (gone) body += rect(x, floor - gone, wide, gone, "expired", `${name}: ${count(expired[index])} expired`);
    const shown = ghosts.length ? Math.max(value, ghosts[index]) : value;
    if (names.length && value > 0) body += above(x + wide / 2, floor - tall(shown) - 4, value, ghosts[index], step);
  });
  body += `<line class="axis" x1="0" x2="${width}" y1="${floor + .5}" y2="${floor + .5}"/>`;
  names.forEach((name, index) => { body += below(index * step + step / 2, floor + 14, name, step); });
  return svg(width, floor + foot, body, title);
}

/* What a column and its ghost count, above both: on one line, or on two, or not at all. */
function above(x, y, value, ghost, step) {
  const fits = (text) => text.length * 6.6 <= step - GAP;
  const whole = ghost === undefined ? "" : `of ${short(ghost)}`, one = `${short(value)} ${whole}`.trim();
  if (fits(one)) return label(x, y, one, "middle", "faint");
  if (!whole || !fits(whole) || !fits(short(value))) return "";
  return label(x, y - 12, short(value), "middle", "faint") + label(x, y, whole, "middle", "faint");
}

/* A name below a column, on two lines if it is too wide for one. */
function below(x, y, name, step) {
  const most = Math.max(2, Math.floor((step - GAP) / 6.6));
  const words = name.split(/(?<=[ \u2013])/);
  if (name.length <= most || words.length === 1) return label(x, y, name, "middle", "faint");
  const lines = (at) => [words.slice(0, at).join("").trim(), words.slice(at).join("").trim()];
  const longest = (at) => Math.max(...lines(at).map((line) => line.length));
  let cut = 1;
  for (let at = 2; at < words.length; at += 1) if (longest(at) < longest(cut)) cut = at;
  return lines(cut).map((line, number) => label(x, y + 14 * number, line, "middle", "faint")).join("");
}
