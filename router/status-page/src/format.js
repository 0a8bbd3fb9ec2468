
// Words and numbers. Nothing here touches the page.

const DASH = "–";

function number(value) {
  return value.toLocaleString("en-US");
}

// 1,234,567 calls are 1.23M where there is little room.
function short(value) {
  if (value < 100000) return number(value);
  const [size, unit] = value < 999500 ? [1e3, "k"] : value < 999.5e6 ? [1e6, "M"] : [1e9, "G"];
  return (value / size).toPrecision(3) + unit;
}

function percent(share) {
  const value = share * 100;
  return (value >= 9.95 ? value.toFixed(0) : value.toFixed(value >= 0.995 ? 1 : 2)) + "%";
}

// Calls per second.
function rate(value) {
  return value >= 99.5 ? number(Math.round(value)) : value.toFixed(1);
}

function age(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

function clock(date) {
  return date.toLocaleTimeString("en-GB");
}

// The name with its tag, and where it is from. A digest is cut: its first digits tell it apart.
function splitImage(image) {
  const slash = image.lastIndexOf("/");
  return [image.slice(0, Math.max(0, slash)), image.slice(slash + 1).replace(/@sha256:([0-9a-f]{12})[0-9a-f]+$/, "@$1…")];
}

// How bad a state is: the class that colours it. An unknown one is worth a look.
function severity(state) {
  return { "well": "good", "starting": "idle", "unreachable": "bad" }[state] || "warn";
}

// Whether calls are sent there at all.
function isReady(state) {
  return ["well", "held down", "passed over"].includes(state);
}

// Of several states the one that deserves the attention.
function worst(states) {
  return ["bad", "warn", "idle"].find((level) => states.some((state) => severity(state) === level)) || "good";
}

// The colour of a shard by its place. Cool ones only: warm ones mean trouble.
const COLOURS = 8;

function colour(place) {
  return `var(--c${place % COLOURS})`;
}

function stateColour(state, place) {
  const level = severity(state);
  return level === "good" ? colour(place) : `var(--${level})`;
}

function podWords(image) {
  const words = [[image.ready, "ready"], [image.starting, "starting"], [image.terminating, "ending"]];
  const said = words.filter(([count]) => count > 0).map(([count, word]) => `${number(count)} ${word}`);
  return said.join(", ") || DASH;
}

// A failure's text without the image, which stands beside it, in full or as the caller wrote it.
function failureWords(failure) {
  const named = /function "([^"]+)"/;
  return failure.text.replace(named, (words, name) => (failure.image.endsWith(name) ? "the function" : words));
}

// What the header says of all shards.
function summary(status) {
  const shards = status.shards;
  const off = shards.filter((shard) => shard.state !== "well");
  if (shards.length === 0) return ["no shards", "bad"];
  if (off.length === 0) return ["all shards well", "good"];
  const level = shards.some((shard) => isReady(shard.state)) ? "warn" : "bad";
  return [`${number(off.length)} of ${number(shards.length)} shards not well`, level];
}
