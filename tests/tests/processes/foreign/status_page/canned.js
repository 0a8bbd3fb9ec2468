// Data of a fleet in trouble, as a router would send it. Tests run this file before the page's own script. So the page
// gets `canned.status` and the details of `canned.details` instead of the router's answers.

window.canned = (() => {
  const catalog = "ghcr.io/kptdev/krm-functions-catalog/";
  const at = 1764100000000;
  const quantiles = (p50) => ({ p50_ms: p50, p95_ms: p50 * 2.5, p99_ms: p50 * 7, queue_p50_ms: 0, queue_p95_ms: p50 / 4 });
  const none = { p50_ms: null, p95_ms: null, p99_ms: null, queue_p50_ms: null, queue_p95_ms: null };
  // `rate`: calls in 10 s. Calls of the last `bad` slots fail with the probability `share`.
  const numbers = (rate, p50, bad = 0, share = 0) => {
    const ten_minutes = Array.from({ length: 60 }, (_, n) => {
      const calls = Math.round(rate * (1 + 0.5 * Math.sin(n / 5 + rate)));
      return [calls, n >= 60 - bad ? Math.round(calls * share) : 0];
    });
    const sum = (slots, part) => slots.reduce((all, slot) => all + slot[part], 0);
    const last = ten_minutes.slice(-6);
    const minute = { calls: sum(last, 0), failed: sum(last, 1), ...(rate > 0 ? quantiles(p50) : none) };
    return { calls: sum(ten_minutes, 0) * 9, failed: sum(ten_minutes, 1), minute, ten_minutes };
  };
  const total = (all, p50) => {
    const ten_minutes = Array.from({ length: 60 }, (_, n) => [0, 1].map((part) => all.reduce((sum, one) => sum + one.ten_minutes[n][part], 0)));
    const sum = (field) => all.reduce((total, one) => total + one.minute[field], 0);
    return { calls: 90000, failed: 400, minute: { calls: sum("calls"), failed: sum("failed"), ...quantiles(p50) }, ten_minutes };
  };
  const runner = (n, more = {}) => ({
    address: `10.244.${n + 1}.17:9445`, name: `function-runner-6f7c9d8b5-${["x2k4p", "9qv7m", "t5hzn"][n % 3]}`, state: "healthy",
    in_flight: 4 + n, load: 9 + 4 * n, calls: 41000 + n, failures: 0, owned: 4, share: [0.33, 0.35, 0.32][n % 3], pods: 5,
    told: "yes", version: "0.2.0", exec_hash: "", started_ms: at - (n + 1) * 7300000, numbers: numbers(220 - 30 * n, 4), ...more,
  });
  const image = (name, owner, its, more = {}) => ({
    image: catalog + name, owner: `10.244.${owner + 1}.17:9445`, in_flight: 1, ready: 1, starting: 0, terminating: 0, in_pods: 0,
    waiting: 0, numbers: its, ...more,
  });
  const healthy = () => {
    const images = [
      image("set-namespace:v0.4.1", 0, numbers(260, 4.2), { ready: 2, in_flight: 12, in_pods: 8, waiting: 4 }),
      image("apply-replacements:v0.1.1", 1, numbers(90, 11)),
      image("set-labels:v0.2.0", 2, numbers(64, 3.1)),
      image("starlark:v0.5.0", 1, numbers(31, 48)),
      image("search-replace:v0.2.0", 0, numbers(12, 6)),
      image("kubeconform:v0.1.1", 2, numbers(2, 870)),
      image("ensure-name-substring:v0.2.0", 0, numbers(0, 0)),
      { ...image("", 0, numbers(7, 9)), image: "", owner: "" },
    ];
    return {
      version: "0.2.0", at_ms: at, router: "function-router-7d4b9c-2xkqj",
      routers: ["2xkqj", "8mzpw", "vt6rn"].map((name, n) => ({
        name: `function-router-7d4b9c-${name}`, address: `10.244.${n + 1}.9:9464`, version: "0.2.0", state: "included",
      })),
      ring: { scheme: 1, virtual_nodes: 256, slices: Array.from({ length: 180 }, (_, n) => [(n * 7) % 3, 4]) },
      shards: [runner(0), runner(1), runner(2)],
      images, truncated: false,
      totals: { images: 107, ready: 9, starting: 0, terminating: 0, waiting: 4, numbers: total(images.map((one) => one.numbers), 5) },
      failures: [], notes: [],
    };
  };
  const pull = "the function's image was not found in its registry or may not be pulled: ErrImagePull, 403 Forbidden";
  const trouble = () => {
    const status = healthy();
    status.shards[1] = runner(1, { state: "unreachable", told: "no", version: "", started_ms: 0, pods: 0, failures: 37 });
    status.shards[2] = runner(2, { version: "0.1.0" });
    status.routers[2].state = "unreachable";
    status.images.unshift(
      image("set-image:v0.1.1", 2, numbers(30, 10000, 9, 1), { ready: 0, starting: 1, waiting: 19, start_error: { at_ms: at - 8000, text: pull } }),
      image("gatekeeper:v0.2.1", 0, numbers(55, 22, 14, 0.6)),
    );
    status.images.splice(5, 0, image("export-terraform@sha256:6ec4a9c2f7d0b1e35a8c97d24f60be13a5c8d97e20f4b6a1c3e5d7f9081b2c3d", 1, numbers(40, 14, 5, 0.02)));
    Object.assign(status.totals, { images: 110, starting: 1, waiting: 23, numbers: total(status.images.map((one) => one.numbers), 344) });
    const failure = (name, shard, code, text, count, age) => ({ at_ms: at - age, count, by: code === "BROKEN" ? "router" : "runner", shard, image: catalog + name, code, text });
    status.failures = [
      failure("set-image:v0.1.1", "10.244.3.17:9445", "UNAVAILABLE", pull, 271, 2000),
      failure("gatekeeper:v0.2.1", "10.244.1.17:9445", "INTERNAL", `function "gatekeeper:v0.2.1" failed: violation: containers must not run as root`, 462, 4000),
      failure("set-labels:v0.2.0", "10.244.2.17:9445", "BROKEN", "the connection to the runner was lost", 37, 95000),
    ];
    return status;
  };
  const detail = (image) => ({
    image, owner: "10.244.3.17:9445", owner_name: "function-runner-6f7c9d8b5-t5hzn",
    pods: [
      { name: "function-set-image-v0-1-1-5f8c7", state: "starting", age_ms: 21000, calls: 0 },
      { name: "function-set-image-v0-1-1-p4q2x", state: "terminating", age_ms: 5400000, calls: 1 },
    ],
    last_error: { at_ms: at - 2000, code: "UNAVAILABLE", text: `${pull}\n${Array.from({ length: 40 }, (_, n) => `line ${n}: Back-off pulling image`).join("\n")}` },
    config: {
      image,
      settings: [
        { setting: "ttl", value: "30m0s", from: "--pod-ttl" },
        { setting: "maxPods", value: 4, from: "FunctionConfig porch-fn-system/set-image" },
        { setting: "container.resources", value: { limits: { memory: "256Mi" }, requests: { cpu: "50m", memory: "64Mi" } }, from: "--pod-cache-config, entry set-image:v0.1.1" },
      ],
      notes: ["FunctionConfig porch-fn-system/set-image-old is not used: the one with tags wins."],
    },
  });
  // Data of a router without the fields that version 0.2.0 added.
  const older = () => {
    const status = healthy();
    for (const one of [status, ...status.shards, ...status.images, status.totals]) {
      for (const field of ["router", "routers", "name", "started_ms", "numbers", "start_error"]) delete one[field];
    }
    status.images = status.images.filter((one) => one.image !== "");
    return status;
  };
  window.fetch = async (url) => {
    const [path, image] = String(url).split("image.json?image=");
    if (path === "status.json") return new Response(JSON.stringify(canned.status));
    const answer = canned.details && detail(decodeURIComponent(image.replace("&exact", "")));
    return new Response(JSON.stringify(answer), { status: answer ? 200 : 404 });
  };
  return { healthy, trouble, older, details: true, status: trouble() };
})();
