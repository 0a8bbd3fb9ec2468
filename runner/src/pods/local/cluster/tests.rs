//! Tests that pods end, and that their names become free.

use std::time::Duration;

use porch_fn_flags::LogFormat;
use tempfile::tempdir;
use tokio::time::{sleep, timeout};

use std::ffi::OsString;

use porch_fn_pool::DeleteReason;

use super::*;
use crate::pods::ImageCommands;

fn cluster(script: &str) -> LocalCluster {
    let mut functions = ImageCommands::default();
    functions.add("example.com/f:v1", vec!["cat".to_owned()], "example.com").unwrap();
    let wrapper = ["sh", "-c", script].map(OsString::from).to_vec();
    LocalCluster::new(LocalOptions {
        wrapper,
        max_message: 1 << 20,
        log_level: 0,
        log_format: LogFormat::Text,
        functions,
        sandboxes: None,
    })
}

fn create(cluster: &LocalCluster) -> Creation {
    let name = PodName { image: "example.com/f:v1".into(), ..PodName::default() };
    cluster.create(name, "key".into(), PodRecipe::default(), now())
}

#[tokio::test]
async fn a_pod_that_dies_during_its_deletion_frees_its_name() {
    let cluster = cluster("read line");
    let (sender, mut events) = mpsc::unbounded_channel();
    cluster.subscribe(sender);
    assert!(matches!(create(&cluster), Creation::Ok(_)));
    let seen = |event| if let Event::Seen(pod) = event { Some(pod) } else { None };
    let pod = std::iter::from_fn(|| events.try_recv().ok()).find_map(seen).unwrap();
    let Pod { uid, resource_version, name, .. } = pod.clone();
    let delete = Action::Delete { uid, resource_version, name, reason: DeleteReason::Expired };
    let deleted = cluster.execute(delete).await;
    assert!(matches!(deleted, Some(Event::Deleted { result: WriteOutcome::Ok, .. })));
    cluster.0.state.lock().failed(&pod.uid, Reason::new("exited", "signal: killed"));
    let mut gone = None;
    while !matches!(&gone, Some(Event::Gone(uid)) if *uid == pod.uid) {
        gone = timeout(Duration::from_secs(20), events.recv()).await.unwrap();
        assert!(!matches!(&gone, Some(Event::Seen(Pod { phase: Phase::Failed(_), .. }))));
    }
    assert!(matches!(create(&cluster), Creation::Ok(_)));
}

/// The wrapper must end by itself: a killed wrapper could not end the functions that it runs.
#[tokio::test]
async fn pods_end_by_themselves_when_the_cluster_is_dropped() {
    let directory = tempdir().unwrap();
    let path = |name| directory.path().join(name);
    let until_exists = async |name| {
        let exists = async {
            while !path(name).exists() {
                sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(Duration::from_secs(20), exists).await.unwrap();
    };
    let (begun, ended) = (path("begun"), path("ended"));
    let cluster = cluster(&format!(">{}; read line; >{}", begun.display(), ended.display()));
    assert!(matches!(create(&cluster), Creation::Ok(_)));
    until_exists("begun").await;
    drop(cluster);
    until_exists("ended").await;
}
