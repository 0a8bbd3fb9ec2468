// Formats words and numbers. No function here changes the page.

const DASH = "–";

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
  const order = ["bad", "warn", "idle", "good"];
  return order.indexOf(severity(a)) - order.indexOf(severity(b));
}

// Whether the router may send calls to a runner in this state.
function isReady(state) {
  return ["healthy", "cooling_down", "ejected"].includes(state);
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

// The summary of all runners in the page's header.
function summary(status) {
  const runners = status.shards;
  const unhealthy = runners.filter((runner) => runner.state !== "healthy").length;
  if (runners.length === 0) return ["no runners", "bad"];
  if (unhealthy === 0) return ["all runners healthy", "good"];
  const level = runners.some((runner) => isReady(runner.state)) ? "warn" : "bad";
  return [`${number(unhealthy)} of ${number(runners.length)} runners unhealthy`, level];
}
