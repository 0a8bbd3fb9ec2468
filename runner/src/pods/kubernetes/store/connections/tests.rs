//! Tests that idle connections to pods are closed, and opened again for a call.

use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{self, pause, resume, timeout};

use super::*;
use crate::pods::kubernetes::announce::Announcements;
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
        let store = Store::new(connect, None, fake::images(FakeRegistry::default()).0, events);
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

/// A new pod answers at its own address before its Service has an endpoint.
#[tokio::test]
async fn calls_use_the_direct_connection_until_it_is_idle() {
    let it = Setup::new(by_service()).await;
    it.put_service("192.0.2.1".parse().unwrap());
    let direct = it.store.locate_directly(&it.uid).unwrap();
    direct.sender().await.unwrap();
    let stream = it.accepted().await;
    assert!(it.store.connection(&it.uid).is_none(), "no probe has succeeded");
    assert!(it.store.use_direct(&it.uid));
    assert!(Arc::ptr_eq(&direct, &it.store.connection(&it.uid).unwrap()));
    assert!(direct.origin().to_string().starts_with("http://fn.functions.svc.cluster.local:"));
    drop(direct);
    it.advance(IDLE).await;
    wait_until_closed(stream).await;
    let reopened = it.store.connection(&it.uid).expect("calls may dial the Service");
    assert!(!reopened.is_up());

    let it = Setup::new(by_service()).await;
    assert!(it.store.locate_directly(&it.uid).is_some());
    it.store.replace_services(&[]);
    assert!(!it.store.use_direct(&it.uid), "without a Service, calls could not dial again");
}

#[tokio::test]
async fn a_pod_is_reached_at_the_address_that_it_announced() {
    let (events, _) = mpsc::unbounded_channel();
    let announcements = Announcements::new("10.0.0.1:9445".to_owned());
    announcements.expect("token".to_owned(), "pod".into());
    announcements.expect("other".to_owned(), "pod".into());
    let images = fake::images(FakeRegistry::default()).0;
    let store = Store::new(Connect::PodIp, Some(announcements), images, events);
    let address: IpAddr = "127.0.0.9".parse().unwrap();
    let uid = Uid::from("pod");
    let pending = |version| fake::pod("pod", version, &json!({ "phase": "Pending" }));
    store.record_pod(&pending(1));
    assert!(!store.announce("wrong", address) && store.locate(&uid).is_none());
    assert!(store.announce("token", address) && !store.announce("token", address));
    store.record_pod(&pending(2));
    let announced = store.locate(&uid).unwrap();
    assert_eq!(announced.origin().to_string(), format!("http://127.0.0.9:{}/", names::PORT));
    store.record_pod(&fake::pod("pod", 3, &json!({ "phase": "Running", "podIP": "127.0.0.8" })));
    let reported = store.locate(&uid).unwrap();
    assert_eq!(reported.origin().to_string(), format!("http://127.0.0.8:{}/", names::PORT));
    store.record_served(&uid);
    assert!(!store.announce("other", address), "the pod has served");
}
