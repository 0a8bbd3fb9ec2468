// Draws the ring. The outer band has one arc per runner; its length is the runner's share. The inner band is the hash
// ring in slices. Each band is one dashed circle per runner; lengths are shares of the circle.

const SVG = "http://www.w3.org/2000/svg";
// The shortest arc of an unhealthy runner, so that it is visible among a thousand runners.
const MIN_ARC = 0.008;

function svg(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

// `pieces`: the start and the length of each dash.
function band(className, r, node, stroke, pieces) {
  let end = 0;
  const dashes = pieces.flatMap(([from, length]) => {
    const gap = from - end;
    end = from + length;
    return [gap, length];
  });
  const made = svg("circle", { class: className, r, pathLength: 1, "stroke-dasharray": [0, ...dashes, 1].join(" ") });
  made.style.stroke = stroke;
  made.dataset.node = node;
  return made;
}

function outerArcs(runners) {
  const gap = runners.length > 1 ? Math.min(0.004, 0.2 / runners.length) : 0;
  let from = 0;
  const arcs = runners.map((runner, node) => {
    const length = Math.max(runner.share - gap, severity(runner.state) === "good" ? 0 : MIN_ARC);
    const made = band("arc", 103, node, stateColour(runner.state, node), [[from, length]]);
    made.append(svg("title", {}, `${runnerName(runner)}: ${stateWords(runner.state)}, ${percent(runner.share)}`));
    from += runner.share;
    return made;
  });
  // Unhealthy runners are drawn last, on top of the others.
  return arcs.sort((a, b) => worse(runners[b.dataset.node].state, runners[a.dataset.node].state));
}

function innerSlices(slices) {
  const whole = slices.reduce((sum, [, length]) => sum + length, 0);
  const pieces = new Map();
  let from = 0;
  for (const [node, length] of slices) {
    pieces.set(node, [...(pieces.get(node) || []), [from / whole, length / whole]]);
    from += length;
  }
  return [...pieces].map(([node, its]) => band("slice", 83.5, node, colour(node), its));
}

let drawnRing = "";

function drawRing(status) {
  // Draws again only after a visible change.
  const appearance = JSON.stringify([status.ring.slices, status.shards.map((runner) => [runner.address, runner.name, runner.state])]);
  if (appearance === drawnRing) return;
  drawnRing = appearance;
  const ready = status.shards.filter((runner) => isReady(runner.state)).length;
  const all = status.shards.length;
  const words = ready === all ? `runner${all === 1 ? "" : "s"}` : `of ${number(all)} ready`;
  byId("ring").replaceChildren(
    ...outerArcs(status.shards), ...innerSlices(status.ring.slices),
    svg("text", { class: "big", y: 6 }, number(ready)), svg("text", { class: "small", y: 24 }, words));
  byId("ring-caption").textContent = "Outer band: each runner's share of all images. " +
    `Inner band: the hash ring, ${number(status.ring.virtual_nodes)} points per runner.`;
}

// The address of the highlighted runner. Its position can change, so the position is not kept.
let picked = null;

// Highlights one runner; null ends the highlight.
function pickRunner(runner) {
  picked = runner && runner.address;
  byId("ring").classList.toggle("picked", runner !== null);
  for (const one of byId("ring").querySelectorAll("circle")) {
    one.classList.toggle("on", runner !== null && one.dataset.node === String(runner.place));
  }
}
