
// The ring as a picture. The outer band has one arc per shard, as long as its share; the inner one is the hash ring
// itself, slice by slice.

const SVG = "http://www.w3.org/2000/svg";
// Above this many shards neighbours share an arc: narrower ones could not be seen.
const MAX_ARCS = 120;
const MIDDLE = 120;
const OUTER = [92, 114];
const INNER = [80, 87];

function svg(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// A band's piece between two parts of the whole turn, clockwise from the top.
function arc([near, far], from, to) {
  // A full turn has no two ends that an arc could join.
  to = Math.min(to, from + 0.99999);
  const point = (radius, part) => {
    const angle = (part - 0.25) * 2 * Math.PI;
    const x = MIDDLE + radius * Math.cos(angle), y = MIDDLE + radius * Math.sin(angle);
    return `${x.toFixed(2)} ${y.toFixed(2)}`;
  };
  const large = to - from > 0.5 ? 1 : 0;
  return `M${point(far, from)}A${far} ${far} 0 ${large} 1 ${point(far, to)}` +
    `L${point(near, to)}A${near} ${near} 0 ${large} 0 ${point(near, from)}Z`;
}

// The shards of each arc: one, or several neighbours when there are many.
function groups(shards) {
  const size = Math.ceil(shards.length / (shards.length > MAX_ARCS ? MAX_ARCS / 1.2 : MAX_ARCS)) || 1;
  const found = [];
  for (let start = 0; start < shards.length; start += size) {
    found.push({ start, shards: shards.slice(start, start + size) });
  }
  return found;
}

function arcTitle(group) {
  const share = percent(group.shards.reduce((sum, shard) => sum + shard.share, 0));
  if (group.shards.length === 1) return `${group.shards[0].address}: ${group.shards[0].state}, ${share}`;
  const off = group.shards.filter((shard) => shard.state !== "well");
  const state = off.length === 0 ? "all well" : `${off.length} not well`;
  return `${group.shards.length} shards from ${group.shards[0].address} on: ${state}, ${share}`;
}

function outerArcs(shards) {
  const found = groups(shards);
  const gap = found.length > 1 ? Math.min(0.004, 0.2 / found.length) : 0;
  let from = 0;
  return found.map((group, place) => {
    const share = group.shards.reduce((sum, shard) => sum + shard.share, 0);
    const level = worst(group.shards.map((shard) => shard.state));
    const fill = level === "good" ? colour(place) : `var(--${level})`;
    const path = svg("path", { class: "arc", d: arc(OUTER, from + gap / 2, from + Math.max(share - gap / 2, gap)) });
    path.style.fill = fill;
    path.dataset.nodes = group.shards.map((_, index) => group.start + index).join(" ");
    path.append(svg("title", {}));
    path.firstChild.textContent = arcTitle(group);
    from += share;
    return path;
  });
}

// All slices of one colour, or of one shard when there are few enough to pick one out, are one path.
function innerSlices(slices, count) {
  const whole = slices.reduce((sum, [, length]) => sum + length, 0);
  const each = count <= MAX_ARCS;
  const paths = new Map();
  let from = 0;
  for (const [node, length] of slices) {
    const key = each ? node : node % COLOURS;
    const piece = arc(INNER, from / whole, (from + length) / whole);
    paths.set(key, (paths.get(key) || "") + piece);
    from += length;
  }
  return [...paths].map(([key, d]) => {
    const path = svg("path", { class: "slice", d });
    path.style.fill = colour(key);
    if (each) path.dataset.nodes = String(key);
    return path;
  });
}

function centre(shards) {
  const ready = shards.filter((shard) => isReady(shard.state)).length;
  const big = svg("text", { class: "big", x: MIDDLE, y: MIDDLE + 6 });
  const small = svg("text", { class: "small", x: MIDDLE, y: MIDDLE + 24 });
  big.textContent = number(ready);
  const all = ready === 1 ? "shard" : "shards";
  small.textContent = ready === shards.length ? all : `of ${number(shards.length)} ready`;
  return [big, small];
}

let drawnRing = "";

function drawRing(status) {
  // Drawn anew only when it looks different.
  const looks = JSON.stringify([status.ring.slices, status.shards.map((shard) => [shard.address, shard.state])]);
  if (looks === drawnRing) return;
  drawnRing = looks;
  const picture = [outerArcs(status.shards), innerSlices(status.ring.slices, status.shards.length)];
  byId("ring").replaceChildren(...picture.flat(), ...centre(status.shards));
  const caption = status.shards.length > MAX_ARCS ? "Outer band: neighbours share an arc. " : "Outer band: each shard's share of all images. ";
  byId("ring-caption").textContent =
    `${caption}Inner band: the hash ring, ${number(status.ring.virtual_nodes)} points per shard.`;
}

// By its address: places change with the members.
let picked = null;

// Picks one shard out, or none.
function pickShard(shard) {
  picked = shard && shard.address;
  const ring = byId("ring");
  ring.classList.toggle("picked", shard !== null);
  for (const path of ring.querySelectorAll("path")) {
    const nodes = (path.dataset.nodes || "").split(" ");
    path.classList.toggle("on", shard !== null && nodes.includes(String(shard.place)));
  }
}
