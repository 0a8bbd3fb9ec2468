//! The kubelet's and the scheduler's own words about a pod: they go to our log, each once, and nowhere else.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use crate::pods::kubernetes::crash::{Complaint, Crash, complaints, crashes};

/// Lines about what one pod waits for.
const MAX_COMPLAINTS: usize = 16;

/// What was logged about a pod.
#[derive(Debug, Default)]
pub(super) struct Logged {
    /// Restarts of each container whose end was logged.
    crashes: BTreeMap<String, i32>,
    /// Container and reason of what it waits for.
    complaints: BTreeSet<(Option<String>, String)>,
}

/// A line for the log.
#[derive(Debug)]
pub(super) struct News {
    pod: String,
    what: What,
}

#[derive(Debug)]
enum What {
    Crash(Crash),
    Complaint(Complaint),
}

impl Logged {
    /// Adds what `object` says and was not logged yet.
    pub(super) fn add_news(&mut self, name: &str, object: &Pod, news: &mut Vec<News>) {
        for crash in crashes(object) {
            let logged = self.crashes.entry(crash.container.clone()).or_insert(-1);
            if *logged < crash.restarts {
                *logged = crash.restarts;
                news.push(News { pod: name.to_owned(), what: What::Crash(crash) });
            }
        }
        for complaint in complaints(object) {
            let key = (complaint.container.clone(), complaint.reason.clone());
            if self.complaints.len() < MAX_COMPLAINTS && self.complaints.insert(key) {
                news.push(News { pod: name.to_owned(), what: What::Complaint(complaint) });
            }
        }
    }
}

impl News {
    pub(super) fn log(&self) {
        let pod = &self.pod;
        match &self.what {
            What::Crash(Crash { container, exit_code, reason, message, .. }) => tracing::warn!(
                pod,
                container,
                exit_code,
                reason,
                last_lines = message,
                "a container of a function pod ended"
            ),
            What::Complaint(Complaint { container, reason, message: why }) => {
                tracing::warn!(pod, container, reason, why, "a function pod waits");
            }
        }
    }
}
