//! The requests that calls cause at the API server.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use porch_fn_tests::process::figure;
use porch_fn_tests::rights::{BASE, FUNCTIONS, Roles};
use tokio::time::Instant;

use crate::rig::{CONNECTS, INPUT, Runner, Setup};

#[tokio::test]
#[ignore = "needs a cluster; tests/run runs it"]
async fn warm_calls_cause_no_api_requests() {
    const CALLS: usize = 1000;
    for connect in CONNECTS {
        let setup = Setup::new().await;
        let account = setup.namespace.account("runner").await;
        account.allow(&setup.namespace, &Roles::of(&[BASE]).rules(FUNCTIONS)).await;
        let kubeconfig = account.kubeconfig(&setup.sandbox).await;
        let flag = format!("--pod-connect={connect}");
        let server = setup.namespace.runner_as(&setup.sandbox, kubeconfig, &[&setup.image], &[&flag]).await;
        let runner = Runner::new(server, &setup.image);
        runner.call_ok().await;

        let audit = setup.cluster.audit();
        let mark = audit.mark().await;
        let start = Instant::now();
        for _ in 0..CALLS / 10 {
            let answers = join_all((0..10).map(|_| runner.call(INPUT))).await;
            assert!(answers.iter().all(|answer| answer.output() == INPUT));
        }
        let took = start.elapsed();
        let mut requests: BTreeMap<String, usize> = BTreeMap::new();
        for request in audit.since(&mark).await {
            if request.user == account.user() {
                *requests.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
            }
        }
        figure(&format!("{CALLS} warm calls by {connect} in {took:.1?}: API requests {requests:?}"));
        // Calls must not cause requests. Only periodic requests are allowed: renewed watches,
        // writes of reclaim-after every 60 s, and reads every --scan-interval, which is also 60 s.
        let minutes = 1 + usize::try_from(took.as_secs() / 60).unwrap();
        for (request, times) in requests {
            let periodic =
                ["patch pods", "watch ", "list functionconfigs", "get podtemplates", "get servicetemplates"];
            let allowed = if periodic.iter().any(|begin| request.starts_with(begin)) { minutes } else { 0 };
            assert!(times <= allowed, "{times} times: {request}");
        }
        assert_eq!(setup.pods().await.len(), 1);
    }
}
