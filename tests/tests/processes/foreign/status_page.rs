//! Tests the router's status page in a real browser.
//!
//! If `PORCH_FN_TEST_PICTURES` names a directory, the test writes screenshots there.
//! `tests/screenshot` uses that.

mod canned;

use std::net::SocketAddr;
use std::path::Path;

use porch_fn_tests::browser::{Browser, chromium};
use porch_fn_tests::process::{figure, get_json};
use porch_fn_tests::stack::Stack;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};
use tonic::Code;

const CATALOG: &str = "ghcr.io/kptdev/krm-functions-catalog";
const FLOODED: &str = "set-namespace:v0.4.1";
const FAILING: &str = "gatekeeper:v0.2.1";
const ECHO: &str = "exec cat";
/// A busy function, a failing function, and ten functions with few calls.
const FUNCTIONS: [(&str, &str); 12] = [
    (FLOODED, "sleep 0.2; exec cat"),
    (FAILING, "echo 'violation: containers must not run as root' >&2; exit 1"),
    ("apply-replacements:v0.1.1", ECHO),
    ("apply-setters:v0.2.2", ECHO),
    ("create-setters:v0.1.0", ECHO),
    ("ensure-name-substring:v0.2.0", ECHO),
    ("kubeconform:v0.1.1", ECHO),
    ("search-replace:v0.2.0", ECHO),
    ("set-annotations:v0.1.4", ECHO),
    ("set-image:v0.1.1", ECHO),
    ("set-labels:v0.2.0", ECHO),
    ("starlark:v0.5.0", ECHO),
];
/// Limits that are low enough to make calls of the flooded function wait.
const FLAGS: [&str; 2] = ["--max-concurrent-per-pod=4", "--max-parallel-pods-per-function=2"];

/// JavaScript that returns the highlighted arcs of the ring, or null if there are none.
const PICKED: &str = "(document.querySelector('#ring.picked') && [...document.querySelectorAll('#ring.picked circle.on')].map(one => one.dataset.node))";

/// Starts three runners and keeps calls of all functions in flight.
async fn busy() -> Stack {
    let mut stack = Stack::start(3, &FLAGS, &FUNCTIONS).await;
    stack.keep_calling(FLOODED, 30, Duration::ZERO);
    for ((image, _), pause) in FUNCTIONS[1..].iter().zip((1..).map(|part| Duration::from_millis(150 * part)))
    {
        stack.keep_calling(image, 1, pause);
    }
    stack
}

/// Opens the status page and waits until all images have pods.
async fn page(stack: &Stack, program: &Path) -> Browser {
    let mut browser = Browser::start(&stack.sandbox, program).await;
    browser.set_window(1280, 800, false).await;
    browser.open(&format!("http://{}/", stack.admin())).await;
    browser.until("[...document.querySelectorAll('#images tbody tr')].filter(row => row.cells[7].textContent.includes('ready')).length === 12").await;
    browser
}

/// Takes a screenshot and writes it if the variable is set. Asserts that the screenshot is not
/// empty.
async fn picture(browser: &mut Browser, name: &str) {
    let picture = browser.picture().await;
    assert!(picture.len() > 20_000, "{name}: {} bytes", picture.len());
    if let Some(directory) = std::env::var_os("PORCH_FN_TEST_PICTURES") {
        std::fs::write(Path::new(&directory).join(name), picture).unwrap();
    }
}

/// Asserts that the browser reported no error and sent requests only to the router.
fn assert_quiet(browser: &Browser, router: SocketAddr) {
    assert_eq!(browser.console_errors(), Vec::<String>::new());
    let own = format!("http://{router}/");
    let others: Vec<_> = browser
        .requested_urls()
        .iter()
        .filter(|url| !url.starts_with(&own) && !url.starts_with("data:"))
        .collect();
    assert_eq!(others, Vec::<&String>::new());
}

/// Asserts that calls per image are displayed. A router that does not count them gets dashes.
async fn assert_numbers(browser: &mut Browser, stack: &Stack) {
    let flooded = "[...document.querySelectorAll('#images tbody tr')].find(row => row.dataset.key.endsWith('/set-namespace:v0.4.1'))";
    let cells = format!("[2, 3, 4, 5, 6].map(cell => {flooded}.cells[cell].textContent)");
    let data = get_json(stack.admin(), "/status.json").await;
    if data["totals"]["numbers"].is_null() {
        assert_eq!(browser.value(&cells).await, json!(["–", "–", "–", "–", "–"]));
        assert_eq!(browser.value("byId('problems').textContent").await, "all runners healthy");
        return;
    }
    // The function sleeps 0.2 s, so a quantile has three digits or is in seconds.
    browser.until(&format!("{cells}[0] === '100%' && {cells}.slice(2).every(time => /^([0-9]{{3}} ms|[0-9.]+ s)$/.test(time))")).await;
    browser.until("document.querySelector('#problems li').textContent.includes('gatekeeper:v0.2.1')").await;
    browser
        .until("document.querySelector('#images tbody tr').dataset.key.endsWith('/gatekeeper:v0.2.1')")
        .await;
    // The detail of the failing function has its whole error, its pod and its configuration.
    browser.value("document.querySelector('#images tbody button').click()").await;
    browser
        .until("byId('detail-last').textContent.includes('violation: containers must not run as root')")
        .await;
    browser.until("document.querySelectorAll('#detail-pods tbody tr').length > 0 && document.querySelectorAll('#detail-config tbody tr').length > 0").await;
    browser.value("byId('detail').close()").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the built binaries and chromium; tests/run runs it"]
async fn the_page_shows_live_data_of_three_runners() {
    let program = chromium();
    let mut stack = busy().await;
    let began = Instant::now();
    let mut browser = page(&stack, &program).await;
    figure(&format!("status page: 12 images displayed {:?} after the browser's start", began.elapsed()));

    // The ring and the runners match the data.
    let data = stack.status().await;
    let shards = browser.value("[...document.querySelectorAll('#shards tbody tr')].map(row => row.dataset.key + ' ' + row.cells[1].textContent)").await;
    let expected: Vec<_> =
        data.shards.iter().map(|shard| format!("{} healthy", shard.info.address)).collect();
    assert_eq!(shards, json!(expected));
    assert_eq!(browser.value("document.querySelectorAll('#ring circle.arc').length").await, 3);
    assert_eq!(browser.value("document.querySelectorAll('#ring circle.slice').length").await, 3);
    // Each image has its owner.
    let owners = browser.value("Object.fromEntries([...document.querySelectorAll('#images tbody tr')].map(row => [row.dataset.key, row.cells[1].title]))").await;
    for image in &data.images {
        assert_eq!(owners[&image.info.image], image.info.owner, "{owners}");
    }
    // The flooded function has waiting calls. The failing function's own error text is displayed.
    browser.until("Number([...document.querySelectorAll('#images tbody tr')].find(row => row.dataset.key.endsWith('/set-namespace:v0.4.1')).cells[8].textContent) > 0").await;
    browser.until("[...document.querySelectorAll('#failures li')].some(one => one.textContent.includes('gatekeeper:v0.2.1') && one.textContent.includes('INTERNAL') && one.textContent.includes('violation: containers must not run as root'))").await;
    assert_numbers(&mut browser, &stack).await;

    // The page is live: it refreshes by itself, and the rows' elements are reused.
    browser
        .value("window.testRow = document.querySelector('#shards tbody tr'), window.testAt = shown.at_ms")
        .await;
    browser.until("shown.at_ms > testAt && document.querySelector('#shards tbody tr') === testRow").await;
    browser.until("/^[0-9,.]+$/.test(document.querySelector('#tile-rate span').textContent) && document.querySelector('#tile-rate span').textContent !== '0'").await;

    // A row under the pointer is highlighted in the ring.
    browser.value("document.querySelector('#shards tbody tr').onmouseenter()").await;
    assert_eq!(browser.value("document.querySelectorAll('#ring.picked circle.on').length").await, 2);
    browser.value("document.querySelector('#shards tbody tr').onmouseleave()").await;
    assert_eq!(browser.value(PICKED).await, Value::Null);
    // The highlight stays when other runners are added or removed. It ends when the row itself is
    // removed, although the browser sends no event for that.
    let without = "const without = gone => ({...shown, shards: shown.shards.filter((_, node) => node !== gone), ring: {...shown.ring, slices: shown.ring.slices.filter(([node]) => node !== gone).map(([node, length]) => [node > gone ? node - 1 : node, length])}})";
    let seen = format!(
        "(() => {{ {without}; const seen = []; document.querySelectorAll('#shards tbody tr')[1].onmouseenter(); for (const members of [shown, without(0), without(2), without(1), shown]) {{ show(members); seen.push({PICKED}); }} return seen; }})()"
    );
    assert_eq!(browser.value(&seen).await, json!([["1", "1"], ["0", "0"], ["1", "1"], null, null]));
    browser.set_window(1208, 900, false).await;
    picture(&mut browser, "status-page-live.png").await;
    browser.set_window(1208, 900, true).await;
    let dark = browser.value("getComputedStyle(document.body).backgroundColor").await;
    assert_eq!(dark, "rgb(18, 22, 28)");
    picture(&mut browser, "status-page-live-dark.png").await;

    browser
        .value("byId('filter').value = 'STARLARK', byId('filter').dispatchEvent(new Event('input'))")
        .await;
    assert_eq!(browser.value("document.querySelectorAll('#images tbody tr').length").await, 1);
    assert_eq!(
        browser.value("document.querySelector('#images tbody tr').dataset.key").await,
        format!("{CATALOG}/starlark:v0.5.0")
    );
    browser.value("byId('filter').value = '', byId('filter').dispatchEvent(new Event('input'))").await;

    // Text from callers is never interpreted as HTML.
    let hostile = "<img src=x onerror=alert(1)>";
    let refused = stack.client().call(hostile, "kind: ResourceList\n").await;
    assert_eq!(refused.code, Code::InvalidArgument);
    browser.until("[...document.querySelectorAll('#failures li .name')].some(name => name.title === '<img src=x onerror=alert(1)>')").await;
    assert_eq!(browser.value("document.images.length").await, 0);

    // The page can draw a thousand shards and displays a fault among them.
    let drawn = browser.value("(() => { const many = structuredClone(shown); many.shards = Array.from({length: 1000}, (_, n) => ({...shown.shards[0], address: `10.0.${n >> 8}.${n & 255}:9445`, share: 0.001, state: n === 777 ? 'unreachable' : 'healthy'})); show(many); return [document.querySelectorAll('#ring circle.arc').length, document.querySelectorAll('#shards tbody tr').length, document.querySelector('#shards tbody tr').dataset.key, [...document.querySelectorAll('#ring circle.arc')].filter(one => one.style.stroke === 'var(--bad)').length]; })()").await;
    assert_eq!(drawn, json!([1000, 200, "10.0.3.9:9445", 1]));
    assert_quiet(&browser, stack.admin());

    // After the router has ended, the page displays since when its data are stale.
    stack.router = None;
    browser.until("document.body.classList.contains('stale') && byId('fresh').textContent.startsWith('stale since')").await;
}
