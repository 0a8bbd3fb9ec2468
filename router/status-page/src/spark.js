// Draws the calls of ten minutes as bars: one for each 10 s, with failed calls at the bottom in another colour.

const SLOTS = 60;
const HEIGHT = 20;

// The outlines of the bars of all calls and of the failed calls, as SVG paths.
function sparkPaths(slots) {
  const most = Math.max(1, ...slots.map(([calls]) => calls));
  // A bar is visible even if it is one call of thousands.
  const height = (value) => (value === 0 ? 0 : Math.max(1.5, (value / most) * HEIGHT)).toFixed(1);
  const bars = (at) => slots.slice(-SLOTS).map((slot, place) => {
    const bar = `M${SLOTS - Math.min(SLOTS, slots.length) + place} ${HEIGHT}v-${height(slot[at])}h.8V${HEIGHT}z`;
    return slot[at] > 0 ? bar : "";
  }).join("");
  return [bars(0), bars(1)];
}

// `target`: an svg element with two paths.
function drawSpark(target, slots = []) {
  const [calls, failed] = sparkPaths(slots);
  target.children[0].setAttribute("d", calls);
  target.children[1].setAttribute("d", failed);
  target.setAttribute("aria-label", slotWords(slots));
}
