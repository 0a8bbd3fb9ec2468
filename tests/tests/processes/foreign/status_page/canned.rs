//! Tests the page with data of a fleet in trouble. A router serves the page's files, and
//! `canned.js` replaces the router's data.

use std::net::SocketAddr;

use porch_fn_router::App;
use porch_fn_tests::browser::{Browser, chromium};
use porch_fn_tests::fleet::start_router;
use porch_fn_tests::process::Sandbox;
use serde_json::json;

use super::{assert_quiet, picture};

/// Port 1 refuses connections, so the router has no healthy runner.
const NO_RUNNER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);
const SET_IMAGE: &str = "ghcr.io/kptdev/krm-functions-catalog/set-image:v0.1.1";
const DETAIL_HASH: &str = "#image=ghcr.io%2Fkptdev%2Fkrm-functions-catalog%2Fset-image%3Av0.1.1";
const WIDTHS: [u32; 3] = [400, 768, 1280];

/// A browser that displays the page with the canned data, and what it needs.
struct Page {
    browser: Browser,
    router: App,
    _sandbox: Sandbox,
}

impl Page {
    async fn open() -> Self {
        let program = chromium();
        let sandbox = Sandbox::new();
        let router = start_router([NO_RUNNER], &[]).await;
        let mut browser = Browser::start(&sandbox, &program).await;
        browser.run_first(include_str!("canned.js")).await;
        let mut page = Self { browser, router, _sandbox: sandbox };
        page.browser.set_window(1280, 1000, false).await;
        page.load("").await;
        page
    }

    /// Loads the page, with a hash in its URL.
    async fn load(&mut self, hash: &str) {
        self.browser.open("about:blank").await;
        self.browser.open(&format!("http://{}/{hash}", self.router.admin_address())).await;
        self.browser.until("document.querySelectorAll('#images tbody tr').length > 0").await;
    }

    /// Replaces the data. `script` changes `status`.
    async fn change(&mut self, script: &str) {
        let script = format!("{{ const status = canned.status; {script} }} refresh()");
        self.browser.value(&script).await;
    }

    /// The lines of the head: level and text.
    async fn problems(&mut self) -> serde_json::Value {
        self.browser.value("[...document.querySelectorAll('#problems li')].map(one => `${one.className.replace('problem ', '')}: ${one.textContent}`)").await
    }

    /// Opens the detail of the first image.
    async fn open_detail(&mut self) {
        self.browser.value("document.querySelector('#images button').click()").await;
        self.browser.until("byId('detail-last').textContent.includes('line 39')").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the built binaries and chromium; tests/run runs it"]
async fn the_head_says_what_is_wrong_and_the_worst_comes_first() {
    let mut page = Page::open().await;
    let expected = [
        "bad: 7.4% of calls failed in the last minute: gatekeeper:v0.2.1, set-image:v0.1.1 and 1 more",
        "bad: set-image:v0.1.1 does not start",
        "warn: 1 of 3 runners unreachable: function-runner-6f7c9d8b5-9qv7m",
        "warn: numbers of 1 of 3 routers are missing (unreachable): function-router-7d4b9c-vt6rn",
    ];
    assert_eq!(page.problems().await, json!(expected));
    // An image that cannot start, and a failing one, look different from others.
    let rows = "[...document.querySelectorAll('#images tbody tr')].slice(0, 4).map(row => row.className)";
    assert_eq!(page.browser.value(rows).await, json!(["bad", "bad", "warn", ""]));
    let first = page.browser.value("document.querySelector('#images tbody tr').textContent").await;
    assert!(
        first.as_str().unwrap().contains("does not start: the function's image was not found"),
        "{first}"
    );
    assert_eq!(page.browser.value("byId('routers').textContent").await, "2 of 3 routers");
    assert_eq!(page.browser.value("byId('tile-rate').textContent.includes('this router')").await, false);
    let skew = page.browser.value("[...document.querySelectorAll('#shards tbody tr')].map(row => [row.querySelector('.who').textContent, row.querySelector('.address').textContent, row.cells[2].textContent, row.cells[3].textContent])").await;
    assert_eq!(skew[0], json!(["function-runner-6f7c9d8b5-9qv7m", "10.244.2.17:9445", "–", "–"]));
    assert_eq!(skew[2][2], "0.1.0router: 0.2.0");
    assert_eq!(skew[2][3], "6 h");

    // A screen reader is told of problems that begin or end, and not of each number.
    let announced = "byId('announce').textContent";
    let before = page.browser.value(announced).await;
    page.change("status.totals.numbers.minute.failed += 100").await;
    assert!(page.problems().await[0].as_str().unwrap().starts_with("bad: 9."));
    assert_eq!(page.browser.value(announced).await, before);
    page.change("status.shards[1].state = 'healthy'").await;
    assert_ne!(page.browser.value(announced).await, before);

    page.change("canned.status = canned.healthy()").await;
    assert_eq!(page.problems().await, json!(["good: all runners healthy"]));
    page.change("status.discovery_error = 'DNS: timed out'; status.shards[0].state = 'ejected'").await;
    let expected = [
        "warn: 1 of 3 runners ejected: function-runner-6f7c9d8b5-x2k4p",
        "warn: discovery fails, so the last known runners stay in use: DNS: timed out",
    ];
    assert_eq!(page.problems().await, json!(expected));
    // The thresholds: 1 % and 5 % of calls, and one failed call.
    let levels = "[[0, 0], [1000, 0], [1000, 9], [100, 1], [1000, 49], [100, 5], [1, 1]].map(([calls, failed]) => failedLevel({calls, failed}))";
    let expected = json!(["idle", "good", "good", "warn", "warn", "bad", "bad"]);
    assert_eq!(page.browser.value(levels).await, expected);
    // A function that always fails is named even if it is a small part of all calls.
    page.change("canned.status = canned.healthy(); const minute = canned.status.images[5].numbers.minute; minute.failed = minute.calls; canned.status.totals.numbers.minute.failed = minute.calls").await;
    assert_eq!(page.problems().await, json!(["warn: calls of kubeconform:v0.1.1 failed in the last minute"]));

    // Names that several runners have, such as with `porch-fn up`, are replaced by addresses.
    page.change("for (const one of status.shards) one.name = 'laptop'").await;
    let names = "[...document.querySelectorAll('#shards .who')].map(one => one.textContent)";
    let expected = json!(["10.244.1.17:9445", "10.244.2.17:9445", "10.244.3.17:9445"]);
    assert_eq!(page.browser.value(names).await, expected);
    assert_quiet(&page.browser, page.router.admin_address());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the built binaries and chromium; tests/run runs it"]
async fn data_of_an_older_router_is_displayed_with_dashes() {
    let mut page = Page::open().await;
    page.change("canned.status = canned.older(); canned.details = false").await;
    assert_eq!(page.problems().await, json!(["good: all runners healthy"]));
    let cells = "[...document.querySelectorAll('#images tbody tr')].map(row => [2, 3, 4, 5, 6].map(cell => row.cells[cell].textContent).join(''))";
    assert_eq!(page.browser.value(cells).await, json!(vec!["–––––"; 7]));
    assert_eq!(page.browser.value("byId('tile-failed').textContent").await, "–");
    let runner =
        "[0, 3, 6, 7, 8, 9].map(cell => document.querySelector('#shards tbody tr').cells[cell].textContent)";
    let expected = json!(["10.244.1.17:9445", "–", "–", "–", "–", "–"]);
    assert_eq!(page.browser.value(runner).await, expected);
    page.browser.value("document.querySelector('#images button').click()").await;
    page.browser.until("byId('detail-error').textContent.includes('older than 0.2.0')").await;
    assert_eq!(page.browser.value("byId('detail-last').textContent").await, "Not known.");
    assert_quiet(&page.browser, page.router.admin_address());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the built binaries and chromium; tests/run runs it"]
async fn the_keyboard_opens_and_closes_the_detail_of_an_image() {
    let mut page = Page::open().await;
    let browser = &mut page.browser;
    // The first stops are the filter and the table, which can be scrolled.
    for stop in ["filter", "scroll", "name"] {
        browser.press("Tab").await;
        let seen = browser.value("[document.activeElement.id || document.activeElement.className, getComputedStyle(document.activeElement).outlineStyle]").await;
        assert_eq!(seen, json!([stop, "solid"]));
    }
    browser.press("Enter").await;
    browser.until("byId('detail').open && document.activeElement.id === 'detail-close'").await;
    assert_eq!(browser.value("location.hash").await, DETAIL_HASH);
    let expanded = "[...document.querySelectorAll('#images button')].map(one => one.getAttribute('aria-expanded')).filter(one => one === 'true').length";
    assert_eq!(browser.value(expanded).await, 1);
    // The last error is whole, and can be scrolled by keyboard.
    browser.until("byId('detail-last').textContent.endsWith('line 39: Back-off pulling image') && byId('detail-last').tabIndex === 0").await;
    let rows = |table: &str| {
        format!(
            "[...document.querySelectorAll('{table} tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
        )
    };
    let pods = browser.value(&rows("#detail-pods")).await;
    assert_eq!(pods[0], json!(["function-set-image-v0-1-1-5f8c7", "starting", "21 s", "0"]));
    let config = browser.value(&rows("#detail-config")).await;
    assert_eq!(config[1], json!(["maxPods", "4", "FunctionConfig porch-fn-system/set-image"]));
    assert_eq!(config[2][1], r#"{"limits":{"memory":"256Mi"},"requests":{"cpu":"50m","memory":"64Mi"}}"#);
    let start = browser.value("byId('detail-start').textContent").await;
    assert!(start.as_str().unwrap().contains("403 Forbidden"), "{start}");
    let owner = browser.value("document.querySelector('#detail-facts dd').textContent").await;
    assert_eq!(owner, "function-runner-6f7c9d8b5-t5hzn (10.244.3.17:9445)");
    // The detail is live while it is open, and only then.
    let count = "(window.asked = 0, window.given = window.fetch, window.fetch = url => { if (url.startsWith('image.json')) asked += 1; return given(url); }, 0)";
    browser.value(count).await;
    browser.until("asked >= 2").await;
    browser.press("Escape").await;
    // The browser closes the dialog and returns the focus at once; the dialog's event, which removes
    // the hash, is a task of its own.
    browser.until("!byId('detail').open && location.hash === ''").await;
    let focused = "[document.activeElement.className, document.activeElement.title]";
    assert_eq!(browser.value(focused).await, json!(["name", SET_IMAGE]));
    assert_eq!(browser.value(expanded).await, 0);
    browser.value("window.asked = 0, window.at = answeredAt, 0").await;
    browser.until("answeredAt > at").await;
    assert_eq!(browser.value("asked").await, 0);

    // The focus stays on an image whose row moves.
    page.change("for (const one of status.images) delete one.start_error; status.images[0].numbers.minute.failed = 0; status.images.reverse()").await;
    let place = "[document.activeElement.title, [...document.querySelectorAll('#images button')].indexOf(document.activeElement) > 5]";
    assert_eq!(page.browser.value(place).await, json!([SET_IMAGE, true]));

    // A link opens the detail. Without a row to return to, closing it leaves the page as it is.
    page.load("#image=example%2Funknown%3Av1").await;
    page.browser.until("byId('detail').open && byId('detail-title').textContent === 'unknown:v1'").await;
    page.browser.press("Escape").await;
    page.browser.until("!byId('detail').open && location.hash === ''").await;
    assert_quiet(&page.browser, page.router.admin_address());
}

/// The boxes that must not overlap, and names of images that are cut or outside their row.
const LAYOUT: &str = "(() => {
  const box = one => one.getBoundingClientRect();
  const seen = selector => [...document.querySelectorAll(selector)].filter(one => one.checkVisibility() && box(one).width > 1);
  const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
  const groups = ['main > *', '#tiles > *', 'header > *', '.top > *', '#problems > *', ...['#images', '#shards'].flatMap(table => [...document.querySelectorAll(`${table} tbody tr`)].map((_, row) => `${table} tbody tr:nth-child(${row + 1}) > *`))];
  const over = [];
  for (const group of groups) {
    const all = seen(group);
    all.forEach((a, at) => all.slice(at + 1).forEach(b => apart(box(a), box(b)) || over.push(`${group}: ${a.textContent.trim().slice(0, 30)} / ${b.textContent.trim().slice(0, 30)}`)));
  }
  const names = seen('#images .last');
  const lost = names.filter(one => one.scrollWidth > one.clientWidth || box(one).right > innerWidth || box(one).width < 30);
  const scrolled = [document.documentElement, ...seen('.scroll')].filter(one => one.scrollWidth > one.clientWidth);
  const tiles = seen('#tiles dd').filter(one => one.scrollWidth > one.clientWidth || (innerWidth > 720 && box(one).height > 30));
  return {over, names: names.length, lost: lost.map(one => one.textContent), scrolled: scrolled.map(one => one.textContent.trim().slice(0, 40)), tiles: tiles.length, wide: document.documentElement.scrollWidth};
})()";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the built binaries and chromium; tests/run runs it"]
async fn nothing_overlaps_or_is_cut_at_three_widths_and_the_contrast_is_enough() {
    let mut page = Page::open().await;
    for (width, dark) in WIDTHS.into_iter().flat_map(|width| [(width, false), (width, true)]) {
        page.browser.set_window(width, 1000, dark).await;
        page.change("canned.status = canned.trouble()").await;
        page.browser.value("byId('ring-card').open = false").await;
        page.browser.value("byId('ring-card').open = true").await;
        let layout = page.browser.value(LAYOUT).await;
        let expected =
            json!({"over": [], "names": 11, "lost": [], "scrolled": [], "tiles": 0, "wide": width});
        assert_eq!(layout, expected, "{width} px");
        page.open_detail().await;
        assert_contrast(&mut page.browser, width, dark).await;
        let detail = page.browser.value("[byId('detail').scrollWidth - byId('detail').clientWidth, document.documentElement.scrollWidth]").await;
        assert_eq!(detail, json!([0, width]));
        page.browser.value("byId('detail').close()").await;
        page.change("canned.status = canned.healthy()").await;
        assert_contrast(&mut page.browser, width, dark).await;
    }
    assert_quiet(&page.browser, page.router.admin_address());
    take_pictures(&mut page).await;
}

/// Takes the pictures of the documentation, and others for developers of the page.
async fn take_pictures(page: &mut Page) {
    page.change("canned.status = canned.trouble()").await;
    page.browser.value("byId('ring-card').open = false").await;
    for (width, height, dark, name) in [
        // All columns need more than 1200 px.
        (1208, 830, false, "status-page-trouble.png"),
        (400, 800, true, "status-page-narrow.png"),
        (1280, 1000, true, "status-page-trouble-1280-dark.png"),
        (768, 1000, false, "status-page-trouble-768.png"),
        (768, 1000, true, "status-page-trouble-768-dark.png"),
        (400, 1000, false, "status-page-trouble-400.png"),
    ] {
        page.browser.set_window(width, height, dark).await;
        picture(&mut page.browser, name).await;
    }
    page.browser.set_window(1280, 1000, false).await;
    page.open_detail().await;
    picture(&mut page.browser, "status-page-detail.png").await;
    page.browser.value("byId('detail').close()").await;
    page.change("canned.status = canned.healthy()").await;
    page.browser.value("document.activeElement.blur()").await;
    page.browser.set_window(1208, 900, false).await;
    picture(&mut page.browser, "status-page.png").await;
}

async fn assert_contrast(browser: &mut Browser, width: u32, dark: bool) {
    let found = browser.value(include_str!("contrast.js")).await;
    assert_eq!(found["weak"], json!([]), "{width} px, dark: {dark}");
    assert!(found["checked"].as_u64().unwrap() > 100, "{found}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the built binaries and chromium; tests/run runs it"]
async fn a_screen_reader_gets_roles_and_names_and_the_ring_folds_away() {
    let mut page = Page::open().await;
    for width in WIDTHS {
        page.browser.set_window(width, 1000, false).await;
        let seen = page.browser.accessible().await;
        let has = |role: &str, name: &str| {
            let found = seen.iter().any(|(its, known)| its == role && known.starts_with(name));
            let same: Vec<_> = seen.iter().filter(|(its, _)| its == role).map(|(_, name)| name).collect();
            assert!(found, "{width} px: no {role} {name:?} among {same:?}");
        };
        has("region", "Health");
        has("status", "");
        has("table", "Images: calls of the last minute");
        has("columnheader", "Success");
        has("rowheader", "set-image:v0.1.1");
        has("button", "set-image:v0.1.1");
        has("cell", "41%");
        has("searchbox", "Filter images");
        has("table", "Runners: state, version, age");
        has("rowheader", "function-runner-6f7c9d8b5-9qv7m 10.244.2.17:9445");
        has("DisclosureTriangle", "▸ Ring");
        assert!(
            seen.iter()
                .any(|(role, name)| role == "image" && name.ends_with("calls in 10 minutes, 0 failed"))
        );
        let unnamed: Vec<_> = seen
            .iter()
            .filter(|(role, name)| {
                ["button", "searchbox", "table", "image", "dialog"].contains(&role.as_str())
                    && name.is_empty()
            })
            .collect();
        assert_eq!(unnamed, Vec::<&(String, String)>::new());
    }
    page.browser.set_window(1280, 1000, false).await;
    page.open_detail().await;
    let seen = page.browser.accessible().await;
    assert!(seen.contains(&("dialog".to_owned(), "set-image:v0.1.1".to_owned())));
    page.browser.value("byId('detail').close()").await;

    // The ring is closed at first. The browser keeps its state for this tab.
    assert_eq!(page.browser.value("byId('ring').checkVisibility()").await, false);
    page.browser.value("document.querySelector('summary').focus()").await;
    page.browser.press("Enter").await;
    page.browser.until("byId('ring').checkVisibility() && sessionStorage.getItem('ring') === 'open'").await;
    page.load("").await;
    assert_eq!(page.browser.value("byId('ring').checkVisibility()").await, true);
    page.browser.value("document.querySelector('summary').click()").await;
    page.browser.until("sessionStorage.getItem('ring') === 'closed'").await;
    assert_eq!(page.browser.value("localStorage.length").await, 0);
    assert_quiet(&page.browser, page.router.admin_address());
}
