//! Tests that idle connections to pods are closed, and opened again for a call.

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{self, pause, resume, timeout};

use super::*;
use crate::pods::kubernetes::fake::{self, FakeRegistry};

const PATIENCE: Duration = Duration::from_secs(20);

/// A pod that serves on a random loopback address, so that tests do not share addresses.
struct Setup {
    store: Store,
    listener: TcpListener,
    uid: Uid,
    ip: IpAddr,
}

impl Setup {
    async fn new(connect: Connect) -> Self {
        let ip = IpAddr::from([127, fastrand::u8(1..), fastrand::u8(..), fastrand::u8(1..255)]);
        let listener = TcpListener::bind((ip, names::PORT)).await.unwrap();
        let (events, _) = mpsc::unbounded_channel();
        let store = Store::new(connect, fake::images(FakeRegistry::default()).0, events);
        store.record_pod(&fake::pod("pod", 1, &json!({ "phase": "Running", "podIP": ip.to_string() })));
        let setup = Self { store, listener, uid: "pod".into(), ip };
        setup.put_service(ip);
        setup
    }

    /// Creates a setup with an open connection, like after a probe.
    async fn probed(connect: Connect) -> (Self, TcpStream) {
        let setup = Self::new(connect).await;
        setup.store.locate(&setup.uid).unwrap().sender().await.unwrap();
        let stream = setup.accepted().await;
        assert!(setup.store.connection(&setup.uid).is_some());
        (setup, stream)
    }

    fn put_service(&self, ip: IpAddr) {
        let service = json!({
            "metadata": {
                "name": "fn", "uid": "service", "resourceVersion": "1",
                "labels": { names::MANAGED_BY: names::MANAGER },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "fn", "uid": "pod" }],
            },
            "spec": { "clusterIP": ip.to_string() },
        });
        self.store.replace_services(&[serde_json::from_value(service).unwrap()]);
    }

    async fn accepted(&self) -> TcpStream {
        timeout(PATIENCE, self.listener.accept()).await.expect("no connection").unwrap().0
    }

    /// Advances the time in two steps, and closes idle connections after each.
    async fn advance(&self, by: Duration) {
        pause();
        time::advance(by / 2).await;
        self.store.close_idle();
        time::advance(by / 2).await;
        self.store.close_idle();
        resume();
    }
}

fn by_service() -> Connect {
    Connect::Service { suffix: "functions.svc.cluster.local".to_owned() }
}

/// Waits until the other side has closed the stream.
async fn wait_until_closed(mut stream: TcpStream) {
    let rest = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
    rest.expect("the connection stays open").unwrap();
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_reopened_by_the_next_call() {
    let (it, stream) = Setup::probed(by_service()).await;
    it.advance(IDLE / 10 * 9).await;
    assert!(it.store.connection(&it.uid).expect("closed too early").is_up());

    it.advance(IDLE).await;
    wait_until_closed(stream).await;
    let reopened = it.store.connection(&it.uid).expect("no connection");
    assert!(!reopened.is_up());
    assert!(it.store.connection(&it.uid).is_some(), "concurrent calls get the connection too");
    reopened.sender().await.unwrap();
    let stream = it.accepted().await;
    drop(reopened);
    it.advance(IDLE).await;
    wait_until_closed(stream).await;
}

#[tokio::test]
async fn a_connection_with_a_call_stays() {
    let (it, _stream) = Setup::probed(by_service()).await;
    let held = it.store.connection(&it.uid).unwrap();
    it.advance(IDLE * 3).await;
    assert!(held.is_up());
    assert!(Arc::ptr_eq(&held, &it.store.connection(&it.uid).unwrap()));
}

#[tokio::test]
async fn calls_get_no_lost_connection_and_no_new_address_before_a_probe() {
    let (it, stream) = Setup::probed(by_service()).await;
    let lost = it.store.connection(&it.uid).unwrap();
    drop(stream);
    let gone = async {
        while lost.is_up() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap();
    drop(lost);
    assert!(it.store.connection(&it.uid).is_none());
    it.advance(IDLE * 2).await;
    assert!(it.store.connection(&it.uid).is_none(), "an idle time does not change this");

    let (it, stream) = Setup::probed(by_service()).await;
    it.advance(IDLE).await;
    wait_until_closed(stream).await;
    it.put_service("127.0.0.1".parse().unwrap());
    assert!(it.store.connection(&it.uid).is_none(), "another address");
    it.put_service(it.ip);
    assert!(it.store.connection(&it.uid).is_none());
}

/// Without a probe, the call could reach the wrong pod: another pod may have got the address
/// already, and the watch may not have reported it yet.
#[tokio::test]
async fn calls_get_no_closed_connection_to_a_pods_own_address_before_a_probe() {
    let (it, stream) = Setup::probed(Connect::PodIp).await;
    it.advance(IDLE).await;
    wait_until_closed(stream).await;
    assert!(it.store.connection(&it.uid).is_none());
}
