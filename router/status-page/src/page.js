// Requests the data every two seconds and displays it.

const INTERVAL = 2000;
const TIMEOUT = 8000;

let shown = null;
let calls = null;
let answeredAt = new Date();

async function fetchJson(url) {
  // A relative URL, because a proxy may add a path prefix.
  const answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  return answer.json();
}

// Calls per second since the last answer, for routers that do not count calls per minute.
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
  const minute = minuteOf(totals);
  const scope = scopeWords(status);
  const failed = failedLevel(minute);
  tile("tile-failed", shareWords(failedShare(minute)), minute ? `of ${short(minute.calls)}` : "");
  setLevel(byId("tile-failed").firstElementChild, failed === "bad" || failed === "warn" ? failed : "");
  const rate = callRate(status);
  if (minute) tile("tile-rate", rateWords(minute), scope);
  else if (rate !== null) tile("tile-rate", rateWords({ calls: rate * 60 }), scope);
  tile("tile-time", milliseconds(minute && minute.p95_ms), minute ? `p50 ${milliseconds(minute.p50_ms)}` : "");
  const waiting = totals.waiting > 0 ? `${short(totals.waiting)} waiting` : scope;
  tile("tile-flight", short(runners.reduce((sum, runner) => sum + runner.in_flight, 0)), waiting);
  const others = podWords({ ready: 0, starting: totals.starting, terminating: totals.terminating });
  tile("tile-pods", short(totals.ready), others === DASH ? "" : others);
  tile("tile-shards", number(runners.filter((runner) => isReady(runner.state)).length), `of ${number(runners.length)}`);
}

function show(status) {
  setText(byId("version"), status.version);
  showRouters(status);
  showProblems(status);
  showNotes(status);
  showTiles(status);
  drawRing(status);
  showRunners(status);
  showImages(status, byId("filter").value);
  showFailures(status);
  showDetail();
}

function setFresh(text, stale) {
  setText(byId("fresh"), text);
  byId("fresh").className = stale ? "bad" : "muted";
  document.body.classList.toggle("stale", stale);
  if (stale) announce("stale", text);
}

async function refresh() {
  try {
    shown = withUniqueNames(await fetchJson("status.json"));
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
    if (!document.hidden) await Promise.all([refresh(), refreshDetail()]);
  } finally {
    setTimeout(follow, INTERVAL);
  }
}

// Whether the ring is open. The browser keeps it for this tab only, and not at all if storage is forbidden.
function ringState(open) {
  try {
    if (open !== undefined) sessionStorage.setItem("ring", open ? "open" : "closed");
    return sessionStorage.getItem("ring") === "open";
  } catch {
    return false;
  }
}

byId("ring-card").open = ringState();
byId("ring-card").addEventListener("toggle", () => ringState(byId("ring-card").open));
byId("filter").addEventListener("input", () => shown && showImages(shown, byId("filter").value));
if (linkedImage() !== "") followHash();
follow();
