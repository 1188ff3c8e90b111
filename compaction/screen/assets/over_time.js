/* Policies through time: the figures of all logs, of a topic or of a log. */

const LEFT = 58, RIGHT = 26, TOP = 12, HIGH = 240, FOOT = 26;
/* Events closer than this become one mark. */
const MARK = 9;
const DASHES = ["", "7 4", "2 3", "10 3 2 3", "1 4", "14 5"];

function day(ms) { return new Date(ms).toISOString().slice(0, 10); }

function lasting(ms) {
  for (const [name, size] of [["day", 864e5], ["hour", 36e5], ["minute", 6e4]]) {
    if (ms >= 2 * size) return `${count(Math.floor(ms / size))} ${name}s`;
  }
  return ms >= 6e4 ? "1 minute" : "0 minutes";
}

function show(view) {
  const { notes, policies } = DOCUMENT.views[view];
  const shown = policies.map((each, number) => ({ ...each, number })).filter((each) => each.samples.length);
  return {
    cards: policies.map(effectCard),
    blocks: [
      {
        id: "size", title: "Size", charts: [(width) => lines(width, "size", shown, "bytes", true)],
        sub: "Bytes of .log files at the end of each period. Marks: <span aria-hidden=\"true\">&#9679;</span> cleanings, " +
          "<span aria-hidden=\"true\">&#9650;</span> deletions of segments.",
        more: `<p id="event" class="sub" aria-live="polite">Point at a mark, or step through them with the tab key, to read what happened.</p>`,
      },
      {
        id: "superseded", title: "Superseded records", charts: [(width) => lines(width, "superseded", shown, "superseded_bytes", false)],
        sub: "Bytes of records that a newer one of their key supersedes and that are still in the log.",
      },
      { id: "notes", title: "What the logs tell", html: list(notes) },
      { id: "samples", title: "Samples", html: `<details><summary>All samples as a table</summary>${samples(shown)}</details>` },
    ],
  };
}

function effectCard(each, number) {
  const head = headed(each.policy, number);
  if (!each.samples.length) return `<div class="card">${head}<p class="note">${escaped(each.error || "no figures")}</p></div>`;
  return card(head, bytes(each.peak_bytes), "peak", [
    ["mean", bytes(each.mean_bytes)], ["at the end", bytes(each.end_bytes)], ["cleanings", count(each.cleanings)],
    ["written for each byte", each.write_amplification.toFixed(2)], ["superseded, on average", share(each.superseded_share, 1)],
    ["superseded remain", lasting(each.oldest_superseded_ms)], ["deleted remain", lasting(each.oldest_deleted_ms)],
  ]);
}

/* A line for each policy, named at its end; with ``marks`` the events, too. */
function lines(width, id, shown, field, marks) {
  if (!shown.length) return "";
  const times = shown[0].samples.map((sample) => sample.at_ms), first = times[0], last = times[times.length - 1];
  const most = Math.max(1, ...shown.flatMap((each) => each.samples.map((sample) => sample[field])));
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
  const now = DOCUMENT.as_of_ms;
  if (now > first && now < last) {
    const late = x(now) > width - RIGHT - 40;
    body += `<line class="now" x1="${x(now)}" x2="${x(now)}" y1="${TOP}" y2="${TOP + HIGH}"/>` +
      label(x(now) + (late ? -4 : 4), TOP + 10, "now", late ? "end" : "start", "faint");
  }
  const ends = [], final = (each) => each.samples[each.samples.length - 1];
  for (const each of shown) {
    const points = each.samples.map((sample) => `${x(sample.at_ms).toFixed(1)},${y(sample[field]).toFixed(1)}`).join(" ");
    body += `<polyline class="line line-${each.number % 6}" stroke-dasharray="${DASHES[each.number % 6]}" points="${points}"/>`;
    const wanted = y(final(each)[field]) + 4, free = (at) => at > TOP && at < TOP + HIGH + 6 && !ends.some((other) => Math.abs(other - at) < 13);
    const end = [...Array(HIGH).keys()].flatMap((off) => [wanted + off, wanted - off]).find(free) || wanted;
    ends.push(end);
    body += label(width - RIGHT + 6, end, letter(each.number), "start", `name line-${each.number % 6}`);
    if (marks) body += eventMarks(each, x, (ms) => y(sizeAt(each.samples, ms)));
  }
  const said = shown.map((each) => `${letter(each.number)} ${each.policy}: ` +
    `${bytes(each.samples[0][field])} at first, ${bytes(final(each)[field])} at the end`).join("; ");
  /* marks can have the focus only if the drawing is not one image */
  return svg(width, TOP + HIGH + FOOT, body, `${id} from ${day(first)} to ${day(last)}: ${said}`)
    .replace('role="img"', marks ? 'role="group"' : 'role="img"');
}

function sizeAt(all, ms) {
  const next = all.findIndex((sample) => sample.at_ms >= ms);
  if (next <= 0) return all[next < 0 ? all.length - 1 : 0].bytes;
  const [before, after] = [all[next - 1], all[next]];
  return before.bytes + (after.bytes - before.bytes) * (ms - before.at_ms) / (after.at_ms - before.at_ms);
}

function eventMarks(each, x, y) {
  const groups = [];
  for (const event of each.events) {
    const group = groups[groups.length - 1];
    if (group && group.kind === event.what && x(event.at_ms) - group.x < MARK) group.events.push(event);
    else groups.push({ x: x(event.at_ms), kind: event.what, events: [event] });
  }
  return groups.map(({ x: left, kind, events }) => {
    const at = events[0].at_ms, height = y(at), sum = (field) => bytes(events.reduce((all, event) => all + event[field], 0));
    const many = events.length > 1 ? `${events.length} times until ${moment(events[events.length - 1].at_ms)}, ` : "";
    const what = kind === "cleaned" ? `cleaned ${many}${sum("bytes_before")} to ${sum("bytes_after")}` : `deleted ${many}${sum("bytes_before")}`;
    const text = escaped(`${letter(each.number)}, ${moment(at)}: ${what}`);
    const shape = kind === "cleaned" ? `<circle cx="${left.toFixed(1)}" cy="${height.toFixed(1)}" r="3.5"/>`
      : `<path d="M${left.toFixed(1)} ${(height - 5).toFixed(1)}l5 8h-10z"/>`;
    return `<g class="mark line-${each.number % 6}" tabindex="0" role="img" aria-label="${text}"><title>${text}</title>${shape}</g>`;
  }).join("");
}

function samples(shown) {
  const heads = shown.flatMap((each) => ["size", "superseded", "segments"].map((name) => `<b class="letter">${letter(each.number)}</b> ${name}`));
  const cells = (sample) => [bytes(sample.bytes), bytes(sample.superseded_bytes), count(sample.segments)];
  return grid(["Until", ...heads], (shown.length ? shown[0].samples : []).map((sample, row) =>
    [moment(sample.at_ms), ...shown.flatMap((each) => cells(each.samples[row]))]));
}

function tell(event) {
  const mark = event.target.closest(".mark");
  if (mark) byId("event").textContent = mark.getAttribute("aria-label");
}

byId("blocks").addEventListener("focusin", tell);
byId("blocks").addEventListener("mouseover", tell);

start({
  title: `${counted(DOCUMENT.views[0].policies.length, "policy", "policies")} through time`,
  heading: "Policies through time", about: DOCUMENT.about, views: DOCUMENT.views.map((view) => view.name), show,
});
