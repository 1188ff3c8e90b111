/* A verification: what the logs lack, why, and each violation. */

const BEST_FIRST = ["not_compared", "holds", "incomplete", "failed", "violated"];
const WORDS = { tombstone: "tombstones", marker: "markers", invalid: "without a key", below_log_start: "below the log start" };

function show(view) {
  const logs = chosenLogs(view), sum = (field) => logs.reduce((all, log) => all + log[field], 0);
  const missing = Object.entries(logs.map((log) => log.missing).reduce(added, {})).filter(([, number]) => number);
  const states = logs.map((log) => log.status.replace("_", " ")).reduce((all, text) => added(all, { [text]: 1 }), {});
  const most = Math.max(1, ...missing.map(([, number]) => number));
  return {
    cards: [
      card("", (view ? logs[0] : DOCUMENT).status.replace("_", " "), "", Object.entries(states).map(([text, many]) => [escaped(text), count(many)])),
      card("", count(sum("lost")), "records lost", [["violations", count(sum("violation_count"))],
        ["records", change(sum("records_before"), sum("records_after"), count)]]),
    ],
    blocks: [
      {
        id: "missing", title: "Missing records", sub: "Records of the state before that the state after lacks, by reason.",
        charts: [(width) => bars(width, missing.map(([reason, number]) => ({
          name: WORDS[reason] || reason, text: count(number), parts: [[number, "compacted", count(number)]],
        })), most, "missing records by reason")],
      },
      violations(logs),
      view && logs[0].reason && { id: "why", title: "Why", html: `<p>${escaped(logs[0].reason)}</p>` },
      !view && DOCUMENT.directories.length && {
        id: "directories", title: "Log directories", html: DOCUMENT.directories.map((each) => `<h3>${escaped(each.log_dir)}</h3>${list(each.violations)}`).join(""),
      },
      !view && DOCUMENT.elsewhere && {
        id: "elsewhere", title: "Records of erased keys elsewhere",
        html: grid(["File", "Records"], DOCUMENT.elsewhere.map((file) => [escaped(file.path), file.records === null ? "unknown" : count(file.records)])),
      },
    ],
  };
}

function violations(logs) {
  const rows = logs.flatMap((log) => log.violations.map(({ offset, what }) => [escaped(logName(log)), count(offset), escaped(what)]));
  const more = logs.reduce((all, log) => all + log.violation_count - log.violations.length, 0);
  return rows.length && { id: "violations", title: "Violations", html: grid(["Log", "Offset", "Violation"], rows) + (more ? `<p>and ${count(more)} more</p>` : "") };
}

start({
  title: `Verification, ${counted(DOCUMENT.logs.length, "log")}`,
  heading: "Verification",
  about: `${counted(DOCUMENT.logs.length, "log")}, as of ${moment(DOCUMENT.as_of_ms)}.`,
  views: logViews(),
  show,
  columns: [
    NAME,
    { id: "status", title: "Result", value: (log) => BEST_FIRST.indexOf(log.status), text: (log) => word(log.status, log.status.replace("_", " ")) },
    column("lost", "Lost", (log) => log.lost), column("violations", "Violations", (log) => log.violation_count),
    column("before", "Before", (log) => log.records_before), column("after", "After", (log) => log.records_after),
  ],
});
