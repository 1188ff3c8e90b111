/* A run: what it removed from all logs, or from one. */

const REASONS = [
  ["superseded_records", "superseded", "compacted"], ["tombstones_removed", "tombstones", "compacted"],
  ["aborted_records", "aborted", "compacted"], ["invalid_records", "without a key", "compacted"],
  ["markers_removed", "transaction markers", "compacted"], ["erased_records", "erased", "compacted"],
  ["expired_records", "expired", "expired"],
];
const FREED = DOCUMENT.dry_run ? "would be freed" : "freed";

function total(logs, field) { return logs.reduce((sum, log) => sum + (log[field] || 0), 0); }

function result(log) {
  const cleaned = log.erased_records ? "erased from" : "cleaned";
  const effects = [log.expired_segments && "expired", log.compacted && cleaned].filter(Boolean).join(" and ");
  return log.status !== "failed" && effects ? effects : log.status + (log.reason_code && log.status === "skipped" ? `: ${log.reason_code.replace("_", " ")}` : "");
}

function show(view) {
  const logs = chosenLogs(view), before = total(logs, "disk_bytes_before"), after = total(logs, "disk_bytes_after");
  const expired = total(logs, "expired_bytes"), removed = REASONS.map(([field, name, kind]) => [total(logs, field), name, kind]);
  const segments = logs.filter((log) => log.compacted).reduce((sum, log) => sum + log.segments_before - log.segments_after, 0);
  const states = logs.map(result).reduce((all, text) => added(all, { [text]: 1 }), {});
  const parts = [[after, "left", "remaining"], [Math.max(before - after - expired, 0), "compacted", "removed by compaction"], [expired, "expired", "expired"]];
  const most = Math.max(1, ...removed.map(([number]) => number));
  return {
    cards: [
      card("", share(before - after, before), FREED, [
        ["on disk", change(before, after, bytes)], ["in .deleted files", bytes(total(logs, "deleted_bytes"))],
      ]),
      card("", short(removed.reduce((sum, [number]) => sum + number, 0)), "records removed", [
        ["segments merged", count(segments)], ["segments expired", count(total(logs, "expired_segments"))], ["keys", count(total(logs, "keys"))],
      ]),
      card("", count(logs.length), logs.length === 1 ? "log" : "logs", Object.entries(states).map(([text, many]) => [escaped(text), count(many)])),
    ],
    blocks: [
      [
        {
          id: "bytes", title: "Bytes on disk", sub: legend(parts.map(([, kind, text]) => [kind, text])), charts: [(width) => bars(width, [{
            name: "", text: `${bytes(after)} remaining`, parts: parts.map(([size, kind, text]) => [size, kind, `${text}: ${bytes(size)}`]),
          }], before, "remaining bytes")],
        },
        {
          id: "removed", title: "Removed records", sub: "By reason.", charts: [(width) => bars(width, removed.filter(([number]) => number)
            .map(([number, name, kind]) => ({ name, text: count(number), parts: [[number, kind, `${name}: ${count(number)}`]] })), most,
          "removed records by reason")],
        },
      ],
      DOCUMENT.waves.length > 1 && {
        id: "waves", title: "Waves", html: grid(["Wave", "Logs", "Written", "Freed", "Seconds"], DOCUMENT.waves.map((wave, number) =>
          [number + 1, count(wave.logs), bytes(wave.bytes_written), bytes(wave.bytes_freed), wave.seconds.toFixed(1)])),
      },
      view && why(logs[0]),
    ],
  };
}

function why(log) {
  const settings = Object.entries(log.settings).map(([name, { value, source }]) => [escaped(name), escaped(value), escaped(source)]);
  const offsets = log.compacted ? `<p>Offsets ${count(log.first_dirty_offset)} to ${count(log.end_offset)} were cleaned.</p>` : "";
  return {
    id: "why", title: "Why", html: `<p>${word(log.status, result(log))}</p><p>${escaped(log.reason)}</p>${offsets}` +
      (settings.length ? grid(["Setting", "Value", "Source"], settings) : ""),
  };
}

start({
  title: `${DOCUMENT.dry_run ? "Dry run" : "Run"}, ${counted(DOCUMENT.logs.length, "log")}`,
  heading: DOCUMENT.dry_run ? "A dry run" : "A run",
  about: `${counted(DOCUMENT.logs.length, "log")}, as of ${moment(DOCUMENT.as_of_ms)}.${DOCUMENT.dry_run ? " Nothing was written." : ""}`,
  views: logViews(),
  show,
  columns: [
    NAME, column("before", "On disk", (log) => log.disk_bytes_before, bytes),
    {
      id: "freed", title: "Freed", value: (log) => log.disk_bytes_before - log.disk_bytes_after,
      text: (log) => `${share(log.disk_bytes_before - log.disk_bytes_after, log.disk_bytes_before)}${word(log.status, result(log))}`,
    },
    column("after", "After", (log) => log.disk_bytes_after, bytes),
    column("records", "Records removed", (log) => log.removed_records + (log.expired_records || 0)),
    column("keys", "Keys", (log) => log.keys),
  ],
});
