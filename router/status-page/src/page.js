
// Asks for the data every two seconds and shows it.

const EVERY = 2000;
const PATIENCE = 8000;

let shown = null;
let calls = null;
let answeredAt = new Date();

function callRate(status) {
  const now = { at: status.at_ms, total: status.shards.reduce((sum, shard) => sum + shard.calls, 0) };
  const before = calls;
  calls = now;
  // Counters start again with a runner that comes back; then there is no rate for one refresh.
  if (!before || now.at <= before.at || now.total < before.total) return null;
  return ((now.total - before.total) * 1000) / (now.at - before.at);
}

function tile(id, value, note) {
  const [number, small] = byId(id).children;
  setText(number, value);
  setText(small, note || "");
}

function showTiles(status) {
  const shards = status.shards;
  const ready = shards.filter((shard) => isReady(shard.state)).length;
  const perSecond = callRate(status);
  const totals = status.totals;
  tile("tile-shards", number(ready), `of ${number(shards.length)}`);
  tile("tile-flight", short(shards.reduce((sum, shard) => sum + shard.in_flight, 0)), "this router");
  if (perSecond !== null) tile("tile-rate", rate(perSecond), "this router");
  tile("tile-waiting", short(totals.waiting));
  const coming = [[totals.starting, "starting"], [totals.terminating, "ending"]];
  const notes = coming.filter(([count]) => count > 0).map(([count, word]) => `${short(count)} ${word}`);
  tile("tile-pods", short(totals.ready), notes.join(", "));
  tile("tile-images", short(totals.images) + (status.truncated ? "+" : ""));
}

function showNotes(status) {
  const notes = [...status.notes];
  if (status.discovery_error) {
    notes.unshift(`Discovery fails, and keeps the runners that it knew: ${status.discovery_error}`);
  }
  const box = byId("notes");
  box.hidden = notes.length === 0;
  box.replaceChildren(...notes.map((note) => element("p", "", note)));
}

function show(status) {
  const [words, level] = summary(status);
  setText(byId("version"), status.version);
  setText(byId("health"), words);
  byId("health").className = `pill ${level}`;
  showNotes(status);
  showTiles(status);
  drawRing(status);
  showShards(status);
  showImages(status, byId("filter").value);
  showFailures(status);
}

function setFresh(text, stale) {
  setText(byId("fresh"), text);
  byId("fresh").className = stale ? "bad" : "muted";
  document.body.classList.toggle("stale", stale);
}

async function refresh() {
  try {
    // Beside this page, whatever a proxy puts before it.
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    shown = await answer.json();
  } catch {
    setFresh(`stale since ${clock(answeredAt)}: the router does not answer`, true);
    return;
  }
  answeredAt = new Date();
  show(shown);
  setFresh(`live, updated ${clock(answeredAt)}`, false);
}

async function follow() {
  try {
    // Nobody looks at a page in the background, and looking costs the runners a question.
    if (!document.hidden) await refresh();
  } finally {
    setTimeout(follow, EVERY);
  }
}

byId("filter").addEventListener("input", () => shown && showImages(shown, byId("filter").value));
follow();
