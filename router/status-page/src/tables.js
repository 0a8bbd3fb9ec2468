// Tables and lists. A refresh keeps the elements of rows, so that selected text stays selected and the row under the
// pointer stays there. Image names are callers' input, so all text is set as text and never as HTML.

// Maximum number of rows of a table.
const MAX_ROWS = 200;

const byId = (id) => document.getElementById(id);

function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Makes one child of `parent` for each item. New children are copies of the template; `fill(child, item)` fills each.
function sync(parent, template, items, key, fill) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, place) => {
    const name = key(item);
    const child = known.get(name) || byId(template).content.firstElementChild.cloneNode(true);
    known.delete(name);
    child.dataset.key = name;
    fill(child, item);
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] || null);
  });
  for (const child of known.values()) child.remove();
  parent.closest(".scroll").querySelector(".empty").hidden = items.length > 0;
}

// The number of rows. If some are left out, also the number and order of the rows shown.
function countWords(all, order) {
  return all > MAX_ROWS ? `first ${MAX_ROWS} of ${number(all)}, ${order}` : number(all);
}

function setNumber(cell, value, text = short(value)) {
  setText(cell, text);
  cell.classList.toggle("zero", value === 0);
}

function setRunner(cell, status, place, address) {
  const [dot, words] = cell.children;
  dot.hidden = place === undefined;
  dot.style.background = place === undefined ? "" : stateColour(status.shards[place].state, place);
  setText(words, address || DASH);
  cell.title = address;
}

function setImage(box, image) {
  if (box.title === image) return;
  const [path, last] = splitImage(image);
  box.title = image;
  setText(box.children[0], last);
  setText(box.children[1], path);
}

// Unhealthy runners come first, so that none of them is left out.
function showRunners(status) {
  const rows = status.shards.map((runner, place) => ({ ...runner, place }));
  rows.sort((a, b) => worse(a.state, b.state) || a.place - b.place);
  const most = Math.max(1, ...rows.map((runner) => runner.load));
  const fill = (made, runner) => {
    const cells = made.cells;
    made.onmouseenter = () => pickRunner(runner);
    made.onmouseleave = () => pickRunner(null);
    setRunner(cells[0], status, runner.place, runner.address);
    cells[1].className = severity(runner.state);
    const silent = runner.state === "healthy" ? " (sends no report)" : "";
    const notes = [{ older: " (older version)", no: silent }[runner.told], runner.listed === false ? " (no longer listed)" : ""];
    setText(cells[1].children[1], stateWords(runner.state) + notes.join(""));
    cells[1].title = runner.version ? `version ${runner.version}, exec configuration ${runner.exec_hash || "off"}` : "";
    setText(cells[2], percent(runner.share));
    setText(cells[3].querySelector("b"), short(runner.load));
    cells[3].querySelector("i").style.width = `${Math.round((runner.load / most) * 100)}%`;
    ["in_flight", "calls", "failures", "owned"].forEach((field, at) => setNumber(cells[4 + at], runner[field]));
    setNumber(cells[8], runner.pods, runner.told === "yes" || runner.pods > 0 ? short(runner.pods) : DASH);
  };
  const seen = rows.slice(0, MAX_ROWS);
  sync(document.querySelector("#shards tbody"), "shard-row", seen, (runner) => runner.address, fill);
  // Repeats the highlight, because the ring may be new. A removed row never reports that the pointer left it.
  pickRunner(seen.find((runner) => runner.address === picked) || null);
  setText(byId("shards-count"), countWords(rows.length, "unhealthy first"));
}

function showImages(status, filter) {
  const wanted = filter.trim().toLowerCase();
  const found = status.images.filter((image) => `${image.image}\n${image.owner}`.toLowerCase().includes(wanted));
  const places = new Map(status.shards.map((runner, place) => [runner.address, place]));
  const fill = (made, image) => {
    const cells = made.cells;
    setImage(cells[0].firstElementChild, image.image);
    setRunner(cells[1], status, places.get(image.owner), image.owner);
    setNumber(cells[2], image.ready + image.starting + image.terminating, podWords(image));
    // Calls of other routers are included in the runners' counts of calls in pods.
    setNumber(cells[3], Math.max(image.in_flight, image.in_pods + image.waiting));
    setNumber(cells[4], image.waiting);
  };
  sync(document.querySelector("#images tbody"), "image-row", found.slice(0, MAX_ROWS), (image) => image.image, fill);
  const all = status.totals.images;
  const words = wanted ? `${number(found.length)} of ${number(all)}` : countWords(all, "busiest first");
  setText(byId("images-count"), words + (status.truncated ? ", others are left out" : ""));
  const empty = document.querySelector("#images-card .empty");
  setText(empty, wanted ? "No image matches the filter." : "No image has been called yet.");
}

function showFailures(status) {
  const key = (one) => JSON.stringify([one.by, one.shard, one.image, one.code, one.text]);
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
    const at = one.shard ? ` at ${one.shard}` : "";
    setText(where, one.by === "runner" ? `runner ${one.shard}` : `router${at}`);
  };
  sync(byId("failures"), "failure-row", status.failures, key, fill);
  const kinds = status.failures.length;
  setText(byId("failures-count"), kinds > 0 ? `${kinds} ${kinds === 1 ? "kind" : "kinds"}, latest first` : "");
}
