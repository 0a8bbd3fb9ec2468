// Formats words and numbers. No function here changes the page.

const DASH = "–";
// CSS classes, the worst first.
const LEVELS = ["bad", "warn", "idle", "good"];

function number(value) {
  return value.toLocaleString("en-US");
}

// A short form for narrow columns: 1,234,567 becomes 1.23M.
function short(value) {
  if (value < 100000) return number(value);
  const [size, unit] = value < 999500 ? [1e3, "k"] : value < 999.5e6 ? [1e6, "M"] : [1e9, "G"];
  return (value / size).toPrecision(3) + unit;
}

function percent(share) {
  const value = share * 100;
  return (value >= 9.95 ? value.toFixed(0) : value.toFixed(value >= 0.995 ? 1 : 2)) + "%";
}

function age(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"]].find(([size]) => seconds >= size) || [1, "s"];
  return `${Math.floor(seconds / size)} ${unit} ago`;
}

function clock(date) {
  return date.toLocaleTimeString("en-GB");
}

// Splits an image into its path, and its name with the tag. Of a digest, 12 digits are kept.
function splitImage(image) {
  const slash = image.lastIndexOf("/");
  return [image.slice(0, Math.max(0, slash)), image.slice(slash + 1).replace(/@sha256:([0-9a-f]{12})[0-9a-f]+$/, "@$1…")];
}

// The CSS class for a state. An unknown state is a warning.
function severity(state) {
  return { healthy: "good", starting: "idle", unreachable: "bad" }[state] || "warn";
}

// Compares two states. The worse state comes first.
function worse(a, b) {
  return LEVELS.indexOf(severity(a)) - LEVELS.indexOf(severity(b));
}

// Whether the router may send calls to a runner in this state.
function isReady(state) {
  return ["healthy", "cooling_down", "ejected"].includes(state);
}

// A runner's name, or its address if an older runner sends no name.
function runnerName(runner) {
  return runner.name || runner.address;
}

// Removes names that several runners have, such as the host's name with `porch-fn up`. Addresses are unique.
function withUniqueNames(status) {
  const same = (name) => status.shards.filter((runner) => runner.name === name).length;
  const shards = status.shards.map((runner) => (runner.name && same(runner.name) > 1 ? { ...runner, name: "" } : runner));
  return { ...status, shards };
}

function stateWords(state) {
  return state.replaceAll("_", " ");
}

// The colour of a healthy runner, by its position. All are cool colours; warm colours mark problems.
function colour(place) {
  return `var(--c${place % 8})`;
}

function stateColour(state, place) {
  const level = severity(state);
  return level === "good" ? colour(place) : `var(--${level})`;
}

function podWords(image) {
  const words = [[image.ready, "ready"], [image.starting, "starting"], [image.terminating, "terminating"]];
  const some = words.filter(([count]) => count > 0).map(([count, word]) => `${number(count)} ${word}`);
  return some.join(", ") || DASH;
}

// A failure's text without the image's name, because the page displays the image beside it.
function failureWords(failure) {
  const named = /function "([^"]+)"/;
  return failure.text.replace(named, (words, name) => (failure.image.endsWith(name) ? "the function" : words));
}

// The name with the tag alone. The entry of all images beyond the limit has no name.
function shortImage(image) {
  return image === "" ? "all other images" : splitImage(image)[1];
}

// At most two names: "a, b and 3 more".
function someNames(names) {
  const rest = names.length - 2;
  return names.slice(0, 2).join(", ") + (rest > 0 ? ` and ${number(rest)} more` : "");
}

// A number of things: "1 runner", "2 runners".
function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

// A quantile or another time in milliseconds. Routers of older versions send none.
function milliseconds(value) {
  if (!Number.isFinite(value)) return DASH;
  if (value >= 999.5) return `${(value / 1000).toFixed(value < 99950 ? 1 : 0)} s`;
  return `${value >= 9.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)} ms`;
}

function duration(milliseconds) {
  return Number.isFinite(milliseconds) ? age(milliseconds).replace(" ago", "") : DASH;
}

// Calls per second in the last minute.
function rateWords(minute) {
  if (!minute) return DASH;
  const rate = minute.calls / 60;
  if (rate === 0 || rate >= 99.5) return short(Math.round(rate));
  return rate >= 0.95 ? rate.toFixed(1) : rate.toFixed(2);
}

// The part of the last minute's calls that failed; null if it is unknown or there were no calls.
function failedShare(minute) {
  return minute && minute.calls > 0 ? minute.failed / minute.calls : null;
}

// A share in percent. A share that is not 0 is never rounded to 0%, and one below 1 never to 100%.
function shareWords(share) {
  if (share === null) return DASH;
  if (share === 0 || share === 1) return `${share * 100}%`;
  if (share < 0.001) return "<0.1%";
  if (share > 0.999) return ">99.9%";
  return `${(share * 100).toFixed(share < 0.0995 || share > 0.9 ? 1 : 0)}%`;
}

function successWords(minute) {
  const failed = failedShare(minute);
  return failed === null ? DASH : shareWords(1 - failed);
}

// The text alternative of a sparkline. `slots`: calls and failed calls of 10 s each.
function slotWords(slots) {
  const sum = (at) => slots.reduce((all, slot) => all + slot[at], 0);
  if (slots.length === 0) return "calls of the last 10 minutes are not known";
  if (sum(0) === 0) return "no calls in 10 minutes";
  return `${count(sum(0), "call")} in 10 minutes, ${number(sum(1))} failed`;
}

// The parts of the page that the numbers cover: "" means all routers.
function scopeWords(status) {
  const routers = status.routers || [];
  const included = routers.filter((router) => router.state === "included").length;
  return included > 1 || routers.length === 1 ? "" : "this router";
}

// Which routers' numbers the page shows.
function routersWords(status) {
  const routers = status.routers || [];
  if (routers.length === 0) return status.router || "";
  const included = routers.filter((router) => router.state === "included").length;
  return `${number(included)} of ${count(routers.length, "router")}`;
}
