
// Tables and lists. Rows stay the same elements from one refresh to the next, so that text can be selected and a row
// under the pointer stays there. All text is set as text: image names are callers' input.

// Rows shown of each table.
const MAX_ROWS = 200;

const byId = (id) => document.getElementById(id);

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Brings the children of `parent` in line with `items`: new ones are copies of the template, `fill(child, item)` fills any.
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

function setNumber(cell, value, text = short(value)) {
  setText(cell, text);
  cell.classList.toggle("zero", value === 0);
}

function setDotted(cell, fill, text, title) {
  const [dot, words] = cell.children;
  dot.hidden = fill === "";
  dot.style.background = fill;
  setText(words, text);
  cell.title = title;
}

function setState(cell, shard) {
  cell.className = severity(shard.state);
  const told = { older: " (older version)", no: shard.state === "well" ? " (tells nothing)" : "" }[shard.told] || "";
  const listed = shard.listed === false ? " (no longer listed)" : "";
  setText(cell.children[1], shard.state + told + listed);
  cell.title = shard.version ? `version ${shard.version}, exec configuration ${shard.exec_hash || "off"}` : "";
}

function setLoad(cell, load, most) {
  setText(cell.querySelector("b"), short(load));
  cell.querySelector("i").style.width = most > 0 ? `${Math.round((load / most) * 100)}%` : "0";
}

function setImage(box, image) {
  if (box.title === image) return;
  const [path, last] = splitImage(image);
  box.title = image;
  box.replaceChildren(element("span", "last", last), element("span", "path", path));
}

// As in the ring. Where arcs are shared only trouble has a colour.
function shardColour(status, place) {
  if (place === undefined) return "";
  const many = status.shards.length > MAX_ARCS && status.shards[place].state === "well";
  return many ? "" : stateColour(status.shards[place].state, place);
}

// Shards that are not well stand first, so that none of them is beyond the last row.
function showShards(status) {
  const order = { bad: 0, warn: 1, idle: 2, good: 3 };
  const rows = status.shards.map((shard, place) => ({ ...shard, place }));
  rows.sort((a, b) => order[severity(a.state)] - order[severity(b.state)] || a.place - b.place);
  const most = Math.max(1, ...rows.map((shard) => shard.load));
  const fill = (made, shard) => {
    const cells = made.cells;
    made.onmouseenter = () => pickShard(shard);
    made.onmouseleave = () => pickShard(null);
    setDotted(cells[0], shardColour(status, shard.place), shard.address, shard.address);
    setState(cells[1], shard);
    setText(cells[2], percent(shard.share));
    setLoad(cells[3], shard.load, most);
    setNumber(cells[4], shard.in_flight);
    setNumber(cells[5], shard.calls);
    setNumber(cells[6], shard.failures);
    setNumber(cells[7], shard.owned);
    setNumber(cells[8], shard.pods, shard.told === "yes" || shard.pods > 0 ? short(shard.pods) : DASH);
  };
  const body = document.querySelector("#shards tbody");
  const seen = rows.slice(0, MAX_ROWS);
  sync(body, "shard-row", seen, (shard) => shard.address, fill);
  // Again, since the ring may be drawn anew. A row that is gone never says that the pointer left it.
  pickShard(seen.find((shard) => shard.address === picked) || null);
  const more = rows.length > MAX_ROWS ? `first ${MAX_ROWS} of ${number(rows.length)}, those not well first` : number(rows.length);
  setText(byId("shards-count"), more);
}

function showImages(status, filter) {
  const wanted = filter.trim().toLowerCase();
  const fits = (image) => image.image.toLowerCase().includes(wanted) || image.owner.toLowerCase().includes(wanted);
  const found = wanted ? status.images.filter(fits) : status.images;
  const places = new Map(status.shards.map((shard, place) => [shard.address, place]));
  const fill = (made, image) => {
    const cells = made.cells;
    setImage(cells[0].firstElementChild, image.image);
    setDotted(cells[1], shardColour(status, places.get(image.owner)), image.owner || DASH, image.owner);
    setText(cells[2], podWords(image));
    cells[2].classList.toggle("zero", podWords(image) === DASH);
    // Calls of other routers are known from the pods they are in.
    setNumber(cells[3], Math.max(image.in_flight, image.in_pods + image.waiting));
    setNumber(cells[4], image.waiting);
  };
  sync(document.querySelector("#images tbody"), "image-row", found.slice(0, MAX_ROWS), (image) => image.image, fill);
  const all = `${number(status.totals.images)}${status.truncated ? "+" : ""}`;
  let words = found.length > MAX_ROWS ? `first ${MAX_ROWS} of ${all}, busiest first` : all;
  if (wanted) words = `${number(found.length)} of ${all}`;
  setText(byId("images-count"), words);
  const empty = document.querySelector("#images-card .empty");
  setText(empty, wanted ? "No image fits the filter." : "No image has been asked for yet.");
}

function showFailures(status) {
  const key = (one) => JSON.stringify([one.by, one.shard, one.image, one.code, one.text]);
  const fill = (made, one) => {
    const [head, what, where] = made.children;
    setImage(head.children[0], one.image || "(image not known)");
    setText(head.children[1], one.count > 1 ? `×${short(one.count)}` : "");
    setText(head.children[2], age(status.at_ms - one.at_ms));
    // What was tried again elsewhere need not have failed anybody.
    const movedOn = ["BROKEN", "NOT_SENT", "SHED"].includes(one.code);
    const [code, words] = what.children;
    code.className = movedOn ? "code warn" : "code bad";
    setText(code, movedOn ? `${one.code}, TRIED ELSEWHERE` : one.code);
    setText(words, failureWords(one));
    what.title = one.text;
    const at = one.shard ? ` at ${one.shard}` : "";
    setText(where, one.by === "runner" ? `runner ${one.shard}` : `router${at}`);
  };
  sync(byId("failures"), "failure-row", status.failures, key, fill);
  const kinds = status.failures.length;
  setText(byId("failures-count"), kinds > 0 ? `${kinds} ${kinds === 1 ? "kind" : "kinds"}, latest first` : "");
}
