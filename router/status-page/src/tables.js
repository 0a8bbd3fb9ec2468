// Fills the tables and lists of the page.

// Maximum number of rows of a table.
const MAX_ROWS = 200;

// The number of rows. If some are left out, also the number and order of the rows shown.
function countWords(all, order) {
  return all > MAX_ROWS ? `first ${MAX_ROWS} of ${number(all)}, ${order}` : number(all);
}

function showProblems(status) {
  const all = problems(status);
  const lines = all.length > 0 ? all : [{ level: "good", key: "good", text: "all runners healthy" }];
  const fill = (made, one) => {
    setLevel(made, one.level);
    setText(made.children[1], one.text);
  };
  sync(byId("problems"), "problem-row", lines, (one) => one.key, fill);
  // Screen readers read this when a problem begins or ends, and not whenever a number changes.
  announce(lines.map((one) => one.key).join(), lines.map((one) => one.text).join("; "));
}

let announced = "";

function announce(key, text) {
  if (key !== announced) setText(byId("announce"), text);
  announced = key;
}

function showNotes(status) {
  const notes = [...(status.notes || []), ...versionNotes(status)];
  byId("notes").hidden = notes.length === 0;
  const known = [...byId("notes").children].map((note) => note.textContent);
  if (JSON.stringify(known) === JSON.stringify(notes)) return;
  byId("notes").replaceChildren(...notes.map((note) => Object.assign(document.createElement("p"), { textContent: note })));
}

function showRouters(status) {
  const routers = status.routers || [];
  setText(byId("routers"), routersWords(status));
  byId("router-list").hidden = routers.length < 2;
  const fill = (made, router) => {
    const [sign, who, rest] = made.children;
    setLevel(sign, { included: "good", older: "idle" }[router.state] || "warn");
    setText(who, router.name || router.address);
    const version = router.version && router.version !== status.version ? `, version ${router.version}` : "";
    // Routers on one host have the same name. This router is the first.
    const own = router === routers[0] ? "this router" : router.state;
    const address = router.state !== "included" && router.name ? `, ${router.address}` : "";
    setText(rest, own + version + address);
  };
  sync(byId("router-list"), "router-row", routers, (router) => `${router.name} ${router.address}`, fill);
}

// Fills one runner's row of the table.
function fillRunner(made, runner, status, mostLoad) {
  const cells = made.cells;
  const minute = minuteOf(runner) || {};
  made.onmouseenter = () => pickRunner(runner);
  made.onmouseleave = () => pickRunner(null);
  cells[0].children[0].style.background = stateColour(runner.state, runner.place);
  setText(cells[0].children[1], runnerName(runner));
  setText(cells[0].children[2], runner.name ? runner.address : "");
  setLevel(cells[1].children[0], severity(runner.state));
  const silent = runner.state === "healthy" ? " (sends no report)" : "";
  const notes = [{ older: " (older version)", no: silent }[runner.told], runner.listed === false ? " (no longer listed)" : ""];
  setText(cells[1].children[1], stateWords(runner.state) + notes.join(""));
  const differs = runner.version && runner.version !== status.version;
  setText(cells[2].children[0], runner.version || DASH);
  setLevel(cells[2].children[0], differs ? "warn" : "");
  setText(cells[2].children[1], differs ? `router: ${status.version}` : "");
  cells[2].title = runner.version ? `exec configuration ${runner.exec_hash || "off"}` : "";
  setText(cells[3], runner.started_ms > 0 ? duration(status.at_ms - runner.started_ms) : DASH);
  setText(cells[4], percent(runner.share));
  setText(cells[5].querySelector("b"), short(runner.load));
  cells[5].querySelector("i").style.width = `${Math.round((runner.load / mostLoad) * 100)}%`;
  setText(cells[6], rateWords(minuteOf(runner)));
  setSuccess(cells[7], minuteOf(runner));
  setText(cells[8], milliseconds(minute.p95_ms));
  setText(cells[9], milliseconds(minute.queue_p95_ms));
  setNumber(cells[10], runner.failures);
  setNumber(cells[11], runner.owned);
  setNumber(cells[12], runner.pods, runner.told === "yes" || runner.pods > 0 ? short(runner.pods) : DASH);
}

// Unhealthy runners come first, so that none of them is left out.
function showRunners(status) {
  const rows = status.shards.map((runner, place) => ({ ...runner, place }));
  rows.sort((a, b) => worse(a.state, b.state) || a.place - b.place);
  const most = Math.max(1, ...rows.map((runner) => runner.load));
  const seen = rows.slice(0, MAX_ROWS);
  const fill = (made, runner) => fillRunner(made, runner, status, most);
  sync(document.querySelector("#shards tbody"), "shard-row", seen, (runner) => runner.address, fill);
  // Repeats the highlight, because the ring may be new. A removed row never reports that the pointer left it.
  pickRunner(seen.find((runner) => runner.address === picked) || null);
  setText(byId("shards-count"), countWords(rows.length, "unhealthy first"));
}

// Failing images come first, the entry of all images beyond the limit last.
function imageOrder(a, b) {
  const place = (image) => (image.image === "" ? LEVELS.length : imageLevel(image) === "bad" ? 0 : imageLevel(image) === "warn" ? 1 : 2);
  return place(a) - place(b);
}

function fillImage(made, image, status, places) {
  const cells = made.cells;
  const minute = minuteOf(image) || {};
  const [button, fault] = cells[0].children;
  const level = imageLevel(image);
  setLevel(made, level === "bad" || level === "warn" ? level : "");
  setImage(button, image.image || shortImage(""), image.image);
  button.disabled = image.image === "";
  button.onclick = () => openDetail(image.image);
  setText(fault, image.start_error ? `does not start: ${image.start_error.text}` : "");
  setOwner(cells[1], status, places.get(image.owner), image.owner);
  setSuccess(cells[2], minuteOf(image));
  setText(cells[3], rateWords(minuteOf(image)));
  ["p50_ms", "p95_ms", "p99_ms"].forEach((field, at) => setText(cells[4 + at], milliseconds(minute[field])));
  setNumber(cells[7], (image.ready || 0) + (image.starting || 0) + (image.terminating || 0), podWords(image));
  setNumber(cells[8], image.waiting || 0);
  drawSpark(cells[9].firstElementChild, image.numbers && image.numbers.ten_minutes);
}

function showImages(status, filter) {
  const wanted = filter.trim().toLowerCase();
  const places = new Map(status.shards.map((runner, place) => [runner.address, place]));
  const words = (image) => {
    const runner = status.shards[places.get(image.owner)];
    return `${image.image || shortImage("")}\n${image.owner}\n${(runner && runner.name) || ""}`.toLowerCase();
  };
  const found = status.images.filter((image) => words(image).includes(wanted)).sort(imageOrder);
  const fill = (made, image) => fillImage(made, image, status, places);
  sync(document.querySelector("#images tbody"), "image-row", found.slice(0, MAX_ROWS), (image) => image.image, fill);
  const all = status.totals.images;
  const counted = wanted ? `${number(found.length)} of ${number(all)}` : countWords(all, "failing and busiest first");
  setText(byId("images-count"), counted + (status.truncated ? ", others are left out" : ""));
  const empty = document.querySelector("#images").parentElement.querySelector(".empty");
  setText(empty, wanted ? "No image matches the filter." : "No image has been called yet.");
}

function showFailures(status) {
  const names = new Map(status.shards.map((runner) => [runner.address, runnerName(runner)]));
  const key = (one) => JSON.stringify([one.by, one.router, one.shard, one.image, one.code, one.text]);
  const fill = (made, one) => {
    const [head, what, where] = made.children;
    setImage(head.children[0], one.image || "(image not known)");
    setText(head.children[1], one.count > 1 ? `×${short(one.count)}` : "");
    setText(head.children[2], age(status.at_ms - one.at_ms));
    // A call that was sent to another runner may have succeeded there.
    const movedOn = ["BROKEN", "NOT_SENT", "SHED"].includes(one.code);
    what.children[0].className = movedOn ? "code warn" : "code bad";
    setText(what.children[0], movedOn ? `${one.code}, TRIED ELSEWHERE` : one.code);
    setText(what.children[1], failureWords(one));
    what.title = one.text;
    const runner = names.get(one.shard) || one.shard;
    const router = (status.routers || []).length > 1 && one.router ? `router ${one.router}` : "router";
    setText(where, one.by === "runner" ? `runner ${runner}` : `${router}${runner ? ` at ${runner}` : ""}`);
    where.title = one.shard;
  };
  sync(byId("failures"), "failure-row", status.failures, key, fill);
  const kinds = status.failures.length;
  setText(byId("failures-count"), kinds > 0 ? `${kinds} ${kinds === 1 ? "kind" : "kinds"}, latest first` : "");
}
