// The detail of one image: a dialog over the page. The URL's hash names the image, so a link opens the dialog.

const HASH = "#image=";
// The answer to the last request; null before it. `error` is set if the request failed.
let detail = null;

// The image in the URL's hash; "" if there is none.
function linkedImage() {
  if (!location.hash.startsWith(HASH)) return "";
  try {
    return decodeURIComponent(location.hash.slice(HASH.length));
  } catch {
    return "";
  }
}

function imageButton(image) {
  const row = [...document.querySelectorAll("#images tbody tr")].find((one) => one.dataset.key === image);
  return row && row.querySelector("button");
}

function markExpanded() {
  const image = byId("detail").open ? linkedImage() : null;
  for (const row of document.querySelectorAll("#images tbody tr")) {
    row.querySelector("button").setAttribute("aria-expanded", String(row.dataset.key === image));
  }
}

// Opening sets the hash only. The hash's event opens the dialog, as it does for a link.
function openDetail(image) {
  location.hash = HASH + encodeURIComponent(image);
}

function followHash() {
  const image = linkedImage();
  detail = null;
  if (image === "") return byId("detail").close();
  if (!byId("detail").open) byId("detail").showModal();
  byId("detail").scrollTop = 0;
  showDetail();
}

function closed() {
  const image = linkedImage();
  if (image !== "") history.replaceState(null, "", location.pathname + location.search);
  markExpanded();
  const button = imageButton(image);
  if (button) button.focus();
}

async function refreshDetail() {
  const image = linkedImage();
  if (image === "") return;
  let answer;
  try {
    answer = await fetchJson(`image.json?image=${encodeURIComponent(image)}&exact`);
  } catch (failed) {
    const error = {
      "status 404": "This router has no details of images: it is older than 0.2.0.",
      "status 400": "No runner can be asked about this image, because its name is not valid.",
    }[failed.message] || `The router does not answer: ${failed.message}.`;
    answer = { ...detail, error };
  }
  if (image !== linkedImage()) return;
  detail = answer;
  showDetail();
}

// Terms and values above the tables.
function facts(image, owner) {
  const minute = minuteOf(image) || {};
  return [
    ["Owner", owner],
    ["Calls/s", rateWords(minuteOf(image))],
    ["Success", successWords(minuteOf(image))],
    ["p50", milliseconds(minute.p50_ms)],
    ["p95", milliseconds(minute.p95_ms)],
    ["p99", milliseconds(minute.p99_ms)],
    ["Queue p50", milliseconds(minute.queue_p50_ms)],
    ["Queue p95", milliseconds(minute.queue_p95_ms)],
    ["Waiting", Number.isFinite(image.waiting) ? short(image.waiting) : DASH],
    // Calls of other routers are included in the runners' counts of calls in pods.
    ["In flight", short(Math.max(image.in_flight || 0, (image.in_pods || 0) + (image.waiting || 0)))],
  ];
}

function ownerWords(image) {
  const known = detail || {};
  const address = known.owner || image.owner || "";
  const runner = shown && shown.shards.find((one) => one.address === address);
  const name = known.owner_name || (runner && runner.name) || "";
  return name && address ? `${name} (${address})` : name || address || DASH;
}

function settingWords(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function showPods(pods, error) {
  const known = Array.isArray(pods) && (pods.length > 0 || !error);
  const fill = (made, pod) => {
    setText(made.cells[0], pod.name);
    setText(made.cells[1], pod.state || DASH);
    setText(made.cells[2], duration(pod.age_ms));
    setText(made.cells[3], Number.isFinite(pod.calls) ? short(pod.calls) : DASH);
  };
  sync(document.querySelector("#detail-pods tbody"), "pod-row", known ? pods : [], (pod) => pod.name, fill);
  setText(byId("detail-count"), known ? number(pods.length) : "");
  setText(byId("detail-pods").parentElement.querySelector(".empty"), known ? "No pods." : "Not known.");
}

function showConfig(config) {
  const fill = (made, row) => {
    setText(made.cells[0], row.setting);
    setText(made.cells[1], settingWords(row.value));
    setText(made.cells[2], row.from || DASH);
  };
  const rows = config && Array.isArray(config.settings) ? config.settings : [];
  sync(document.querySelector("#detail-config tbody"), "setting-row", rows, (row) => row.setting, fill);
  const note = (made, text) => setText(made, text);
  const notes = config && Array.isArray(config.notes) ? config.notes : [];
  sync(byId("detail-notes"), "note-row", notes, (text) => text, note);
}

function showDetail() {
  const name = linkedImage();
  if (name === "") return;
  const status = shown || { images: [], shards: [], at_ms: Date.now() };
  const image = status.images.find((one) => one.image === name) || { image: name };
  const answer = detail || {};
  const [path, last] = splitImage(name);
  setText(byId("detail-title"), last);
  setText(byId("detail-path"), last === shortImage(name) && path ? name : "");
  byId("detail-error").hidden = !answer.error;
  setText(byId("detail-error"), answer.error || "");
  byId("detail-start").hidden = !image.start_error;
  if (image.start_error) {
    setText(byId("detail-start").querySelector("span"), age(status.at_ms - image.start_error.at_ms));
    setText(byId("detail-start").querySelector("pre"), image.start_error.text);
  }
  const fact = (made, [term, value]) => [term, value].forEach((text, at) => setText(made.children[at], text));
  sync(byId("detail-facts"), "fact-row", facts(image, ownerWords(image)), ([term]) => term, fact);
  showPods(answer.pods, answer.error);
  const error = answer.last_error;
  setText(byId("detail-when"), error ? `${error.code}, ${age(status.at_ms - error.at_ms)}` : "");
  const none = error === null && !answer.error ? "None known to the owner." : detail ? "Not known." : "Loading.";
  setText(byId("detail-last"), error ? error.text : none);
  showConfig(answer.config);
  markExpanded();
}

window.addEventListener("hashchange", () => {
  followHash();
  refreshDetail();
});
byId("detail").addEventListener("close", closed);
byId("detail-close").addEventListener("click", () => byId("detail").close());
