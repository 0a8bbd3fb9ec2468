// Decides what is wrong. No function here changes the page.

// When failed calls of the last minute are a problem: at least `calls` of them, and this share of all calls.
const FAILED = { calls: 1, warn: 0.01, bad: 0.05 };

// "bad", "warn" or "good"; "idle" without calls or if the calls are not counted.
function failedLevel(minute) {
  const share = failedShare(minute);
  if (share === null) return "idle";
  if (minute.failed < FAILED.calls || share < FAILED.warn) return "good";
  return share < FAILED.bad ? "warn" : "bad";
}

const minuteOf = (one) => one && one.numbers && one.numbers.minute;

function imageLevel(image) {
  return image.start_error ? "bad" : failedLevel(minuteOf(image));
}

function failingCalls(status) {
  const minute = minuteOf(status.totals);
  const level = failedLevel(minute);
  const failed = (image) => (minuteOf(image) || { failed: 0 }).failed;
  const worst = status.images.filter((image) => failed(image) > 0).sort((a, b) => failed(b) - failed(a));
  // A function that always fails can be a small part of all calls.
  const broken = worst.filter((image) => failedLevel(minuteOf(image)) === "bad");
  if (level === "warn" || level === "bad") {
    const names = worst.length > 0 ? `: ${someNames(worst.map((image) => shortImage(image.image)))}` : "";
    return [{ level, key: "calls", text: `${shareWords(failedShare(minute))} of calls failed in the last minute${names}` }];
  }
  if (broken.length === 0) return [];
  const names = someNames(broken.map((image) => shortImage(image.image)));
  return [{ level: "warn", key: "images", text: `calls of ${names} failed in the last minute` }];
}

function failingStarts(status) {
  const images = status.images.filter((image) => image.start_error).map((image) => shortImage(image.image));
  if (images.length === 0) return [];
  const verb = images.length === 1 ? "does" : "do";
  return [{ level: "bad", key: "starts", text: `${someNames(images)} ${verb} not start` }];
}

function unhealthyRunners(status) {
  const runners = status.shards;
  if (runners.length === 0) return [{ level: "bad", key: "no runners", text: "no runners" }];
  const none = !runners.some((runner) => isReady(runner.state));
  const states = [...new Set(runners.map((runner) => runner.state))].filter((state) => state !== "healthy");
  return states.map((state) => {
    const its = runners.filter((runner) => runner.state === state);
    const passing = ["starting", "draining"].includes(state) ? "idle" : "warn";
    const names = someNames(its.map(runnerName));
    const text = `${number(its.length)} of ${count(runners.length, "runner")} ${stateWords(state)}: ${names}`;
    return { level: none ? "bad" : passing, key: state, text };
  });
}

function missingRouters(status) {
  const routers = status.routers || [];
  return ["unreachable", "older"].flatMap((state) => {
    const its = routers.filter((router) => router.state === state);
    if (its.length === 0) return [];
    const names = someNames(its.map((router) => router.name || router.address));
    const text = `numbers of ${number(its.length)} of ${count(routers.length, "router")} are missing (${state}): ${names}`;
    return [{ level: state === "older" ? "idle" : "warn", key: `router ${state}`, text }];
  });
}

// All problems, the worst first. Each has a level, a key that stays while numbers change, and a text.
function problems(status) {
  const discovery = status.discovery_error
    ? [{ level: "warn", key: "discovery", text: `discovery fails, so the last known runners stay in use: ${status.discovery_error}` }]
    : [];
  const all = [
    ...unhealthyRunners(status).filter((one) => one.level === "bad"), ...failingCalls(status), ...failingStarts(status),
    ...unhealthyRunners(status).filter((one) => one.level !== "bad"), ...discovery, ...missingRouters(status),
  ];
  // The sort keeps the order of problems of one level.
  return all.sort((a, b) => LEVELS.indexOf(a.level) - LEVELS.indexOf(b.level));
}

// Versions that differ from this router's, as a note.
function versionNotes(status) {
  const versions = new Map();
  for (const runner of status.shards) {
    if (runner.version) versions.set(runner.version, (versions.get(runner.version) || 0) + 1);
  }
  if (![...versions.keys()].some((version) => version !== status.version)) return [];
  const words = [...versions].sort().map(([version, its]) => `${count(its, "runner")} of ${version}`);
  return [`Versions differ: ${words.join(", ")}, and this router of ${status.version}. This is normal during an upgrade.`];
}
