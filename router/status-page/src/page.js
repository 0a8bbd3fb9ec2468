// Requests the data every two seconds and displays it.

const INTERVAL = 2000;
const TIMEOUT = 8000;

let shown = null;
let calls = null;
let answeredAt = new Date();

// Calls per second since the last answer.
function callRate(status) {
  const before = calls;
  calls = { at: status.at_ms, total: status.shards.reduce((sum, runner) => sum + runner.calls, 0) };
  // The counter of a runner that returns starts at 0. Then there is no rate for one refresh.
  if (!before || calls.at <= before.at || calls.total < before.total) return null;
  return ((calls.total - before.total) * 1000) / (calls.at - before.at);
}

function tile(id, value, note = "") {
  const [number, small] = byId(id).children;
  setText(number, value);
  setText(small, note);
}

function showTiles(status) {
  const runners = status.shards;
  const totals = status.totals;
  const rate = callRate(status);
  tile("tile-shards", number(runners.filter((runner) => isReady(runner.state)).length), `of ${number(runners.length)}`);
  tile("tile-flight", short(runners.reduce((sum, runner) => sum + runner.in_flight, 0)), "this router");
  if (rate !== null) tile("tile-rate", rate >= 99.5 ? number(Math.round(rate)) : rate.toFixed(1), "this router");
  tile("tile-waiting", short(totals.waiting));
  const others = podWords({ ready: 0, starting: totals.starting, terminating: totals.terminating });
  tile("tile-pods", short(totals.ready), others === DASH ? "" : others);
  tile("tile-images", short(totals.images) + (status.truncated ? "+" : ""));
}

function showNotes(status) {
  const failing = `Discovery fails, so the last known runners stay in use: ${status.discovery_error}`;
  const notes = status.discovery_error ? [failing, ...status.notes] : status.notes;
  byId("notes").hidden = notes.length === 0;
  byId("notes").replaceChildren(...notes.map((note) => Object.assign(document.createElement("p"), { textContent: note })));
}

function show(status) {
  const [words, level] = summary(status);
  setText(byId("version"), status.version);
  setText(byId("health"), words);
  byId("health").className = `pill ${level}`;
  showNotes(status);
  showTiles(status);
  drawRing(status);
  showRunners(status);
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
    // A relative URL, because a proxy may add a path prefix.
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
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
    // A page in the background requests nothing, because each request is passed on to all runners.
    if (!document.hidden) await refresh();
  } finally {
    setTimeout(follow, INTERVAL);
  }
}

byId("filter").addEventListener("input", () => shown && showImages(shown, byId("filter").value));
follow();
