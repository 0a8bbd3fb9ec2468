//! The programs as black boxes on the wire: bytes of HTTP/2 by hand, beside an ordinary caller. One
//! bad peer must harm itself alone.

mod beside;
mod case;
mod connections;
mod descriptors;
pub(crate) mod floods;
mod hops;
mod hostile;
mod matrix;
mod pages;
pub(crate) mod rows;
pub(crate) mod target;

use std::collections::BTreeMap;

use porch_fn_tests::process::figure;

use case::{Case, Got, plain};
use target::{Kind, Method, Target};

/// The server does not have the method.
const UNIMPLEMENTED: u32 = 12;

/// Runs all cases against one server. The failures are reported together.
async fn run(kind: Kind) {
    let target = Target::start(kind).await;
    let (mut counts, mut failures) = (BTreeMap::<&str, usize>::new(), Vec::new());
    for method in Method::all() {
        let plain = plain(&target, &method).await;
        if plain == Got::Code(UNIMPLEMENTED) {
            // Routers and wrapper-servers have fewer services than runners.
            continue;
        }
        let mut cases = matrix::cases(kind, target.limit, &method);
        if method.is_evaluation() {
            cases.extend(connections::cases(&method));
        }
        for case in cases {
            *counts.entry(case.axis).or_default() += 1;
            if let Err(error) = case.run(&target, &method, &plain).await {
                let Case { axis, name, .. } = &case;
                failures.push(format!("{} {axis}, {name}: {error}", method.path));
            }
        }
    }
    let total: usize = counts.values().sum();
    assert!(total > 500, "{kind:?} has less than the evaluator and health");
    figure(&format!("{kind:?}: {total} cases, {counts:?}"));
    let shown = failures.iter().take(60).cloned().collect::<Vec<_>>().join("\n");
    assert!(failures.is_empty(), "{} of {total} cases failed:\n{shown}", failures.len());
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn every_case_at_a_router_harms_nobody() {
    run(Kind::Router).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn every_case_at_a_runner_harms_nobody() {
    run(Kind::Runner).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn every_case_at_a_wrapper_server_harms_nobody() {
    run(Kind::Wrapper).await;
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn every_case_at_up_harms_nobody() {
    run(Kind::Up).await;
}
