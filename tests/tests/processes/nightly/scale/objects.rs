//! Function pods and their Services as an API server returns them. They have all fields that the
//! kubelet, the control plane and our runners write.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;

/// The function namespace of the fake cluster.
pub(crate) const NAMESPACE: &str = "functions";
/// The time from a pod's last use until it may be collected.
const LIFETIME: Duration = Duration::from_mins(30);

/// A ready pod with its Service.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// The number of the pod's image.
    pub(crate) image: usize,
    /// The pod's slot among the pods of the image.
    pub(crate) slot: usize,
    /// The pod's number among all pods. It determines the pod's IP address.
    pub(crate) number: usize,
    /// The resource version of its last change.
    pub(crate) version: u64,
    /// When reclaim-after, the time after which the pod may be deleted, was last written.
    pub(crate) pushed: SystemTime,
    /// The reclaim-after that a runner has written, if any.
    pub(crate) reclaim_after: Option<String>,
}

/// The reference of an image.
pub(crate) fn image(number: usize) -> String {
    format!("registry.example/krm-functions/function-{number}:v0.4.1")
}

// === impl Pod ===

impl Pod {
    pub(crate) fn new(image: usize, slot: usize, number: usize, version: u64) -> Self {
        Self { image, slot, number, version, pushed: SystemTime::now(), reclaim_after: None }
    }

    pub(crate) fn name(&self) -> String {
        format!("function-{}-v041-{}-1ab4667a", self.image, self.slot)
    }

    fn uid(&self) -> String {
        format!("5f0c1d6e-7a4b-4c8d-9e1f-{:012x}", self.number)
    }

    /// An address of this machine: all of 127/8 is local.
    fn ip(&self, network: u8) -> Ipv4Addr {
        let [_, a, b, c] = u32::try_from(self.number + 1).unwrap().to_be_bytes();
        Ipv4Addr::new(127, network + a, b, c)
    }

    /// The pod as JSON, about 6 KB.
    pub(crate) fn json(&self) -> String {
        let (name, uid, version, image) = (self.name(), self.uid(), self.version, image(self.image));
        let (slot, ip) = (self.slot, self.ip(1));
        let now = self.pushed;
        let created = time(now - Duration::from_mins(5));
        let reclaim = self.reclaim_after.clone().unwrap_or_else(|| time(now + LIFETIME));
        // The pod's configuration is newer than the runner's, so the runner does not replace the
        // pod.
        let config_time = time(now + Duration::from_hours(1));
        let digest = format!("sha256:{:064x}", self.image);
        let mut json = String::with_capacity(7 * 1024);
        let _ = write!(
            json,
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}","namespace":"{NAMESPACE}","uid":"{uid}","resourceVersion":"{version}","generation":1,"creationTimestamp":"{created}","labels":{{"app.kubernetes.io/managed-by":"porch-fn-runner","fn.kpt.dev/image":"{name}"}},"annotations":{{"cluster-autoscaler.kubernetes.io/safe-to-evict":"true","fn.kpt.dev/config-time":"{config_time}","fn.kpt.dev/entrypoint":"[\"/usr/local/bin/function\"]","fn.kpt.dev/image-digest":"{digest}","fn.kpt.dev/image-reference":"{image}","fn.kpt.dev/reclaim-after":"{reclaim}","fn.kpt.dev/resolved-at":"{created}","fn.kpt.dev/shard-key":"{image}","fn.kpt.dev/slot":"{slot}","fn.kpt.dev/template-version":"4f1c9a60b2d8e375"}},"managedFields":[{managed}]}},"spec":{spec},"status":{{"phase":"Running","hostIP":"10.0.0.7","hostIPs":[{{"ip":"10.0.0.7"}}],"podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}],"startTime":"{created}","qosClass":"Burstable","conditions":[{conditions}],"containerStatuses":[{wrapper},{function}]}}}}"#,
            managed = managed_fields(&created),
            spec = spec(&image, &digest),
            conditions = conditions(&created),
            wrapper = container_status("wrapper-server", "registry.example/wrapper-server:v1", &created),
            function = container_status("function", &image, &created),
        );
        json
    }

    /// The pod's Service as JSON.
    pub(crate) fn service(&self) -> String {
        let (name, uid, version) = (self.name(), self.uid(), self.version);
        let (ip, created) = (self.ip(101), time(self.pushed));
        format!(
            r#"{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"{name}","namespace":"{NAMESPACE}","uid":"{uid}-s","resourceVersion":"{version}","creationTimestamp":"{created}","labels":{{"app.kubernetes.io/managed-by":"porch-fn-runner"}},"ownerReferences":[{{"apiVersion":"v1","kind":"Pod","name":"{name}","uid":"{uid}","controller":false,"blockOwnerDeletion":false}}]}},"spec":{{"clusterIP":"{ip}","clusterIPs":["{ip}"],"type":"ClusterIP","ports":[{{"port":9446,"protocol":"TCP","targetPort":9446}}],"selector":{{"fn.kpt.dev/image":"{name}"}},"internalTrafficPolicy":"Cluster","ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","publishNotReadyAddresses":true,"sessionAffinity":"None"}},"status":{{"loadBalancer":{{}}}}}}"#
        )
    }
}

fn time(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap();
    format!("{at:.0}")
}

fn managed_fields(created: &str) -> String {
    let fields = r#"{"f:metadata":{"f:annotations":{".":{},"f:fn.kpt.dev/config-time":{},"f:fn.kpt.dev/entrypoint":{},"f:fn.kpt.dev/image-digest":{},"f:fn.kpt.dev/image-reference":{},"f:fn.kpt.dev/reclaim-after":{},"f:fn.kpt.dev/slot":{}},"f:labels":{".":{},"f:app.kubernetes.io/managed-by":{},"f:fn.kpt.dev/image":{}}},"f:spec":{"f:automountServiceAccountToken":{},"f:containers":{"k:{\"name\":\"function\"}":{".":{},"f:args":{},"f:command":{},"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:readinessProbe":{},"f:resources":{},"f:securityContext":{},"f:volumeMounts":{}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:volumes":{}}}"#;
    let status = r#"{"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},"f:containerStatuses":{},"f:hostIP":{},"f:phase":{},"f:podIP":{},"f:startTime":{}}}"#;
    format!(
        r#"{{"manager":"porch-fn-runner","operation":"Update","apiVersion":"v1","time":"{created}","fieldsType":"FieldsV1","fieldsV1":{fields}}},{{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"{created}","fieldsType":"FieldsV1","fieldsV1":{status},"subresource":"status"}}"#
    )
}

fn spec(image: &str, digest: &str) -> String {
    let hardened = r#""imagePullPolicy":"IfNotPresent","securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"FallbackToLogsOnError""#;
    format!(
        r#"{{"automountServiceAccountToken":false,"containers":[{{"name":"wrapper-server","image":"registry.example/wrapper-server:v1","command":["/wrapper-server/wrapper-server","--idle"],"lifecycle":{{"postStart":{{"exec":{{"command":["/wrapper-server/wrapper-server","--copy-to=/wrapper-server-tools"]}}}}}},"resources":{{"limits":{{"memory":"32Mi"}},"requests":{{"cpu":"1m","memory":"8Mi"}}}},"volumeMounts":[{{"mountPath":"/wrapper-server-tools","name":"wrapper-server-tools"}}],{hardened}}},{{"name":"function","image":"{image}@{digest}","command":["/wrapper-server-tools/wrapper-server"],"args":["--port","9446","--max-request-body-size","6291456","--","/usr/local/bin/function"],"readinessProbe":{{"failureThreshold":3,"grpc":{{"port":9446,"service":""}},"periodSeconds":10,"successThreshold":1,"timeoutSeconds":1}},"resources":{{}},"volumeMounts":[{{"mountPath":"/wrapper-server-tools","name":"wrapper-server-tools","readOnly":true}}],{hardened}}}],"dnsPolicy":"ClusterFirst","enableServiceLinks":false,"nodeName":"node-7","preemptionPolicy":"PreemptLowerPriority","priority":0,"restartPolicy":"Always","schedulerName":"default-scheduler","securityContext":{{"seccompProfile":{{"type":"RuntimeDefault"}}}},"serviceAccount":"default","serviceAccountName":"default","terminationGracePeriodSeconds":30,"tolerations":[{{"effect":"NoExecute","key":"node.kubernetes.io/not-ready","operator":"Exists","tolerationSeconds":300}},{{"effect":"NoExecute","key":"node.kubernetes.io/unreachable","operator":"Exists","tolerationSeconds":300}}],"volumes":[{{"emptyDir":{{}},"name":"wrapper-server-tools"}}]}}"#
    )
}

fn conditions(at: &str) -> String {
    let types = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let one = |kind: &str| {
        format!(r#"{{"lastProbeTime":null,"lastTransitionTime":"{at}","status":"True","type":"{kind}"}}"#)
    };
    types.map(one).join(",")
}

fn container_status(name: &str, image: &str, at: &str) -> String {
    format!(
        r#"{{"name":"{name}","image":"{image}","imageID":"{image}@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","containerID":"containerd://e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","lastState":{{}},"ready":true,"restartCount":0,"started":true,"state":{{"running":{{"startedAt":"{at}"}}}},"volumeMounts":[{{"mountPath":"/wrapper-server-tools","name":"wrapper-server-tools"}}]}}"#
    )
}
