//! The images and pods in reports: which ones are reported, and in what form. No I/O.

use std::collections::HashMap;

use porch_fn_pool::{FunctionStats, ImageKey, PodState, Time};
use porch_fn_proto::shard::{ImagePod, ImagePods, StartError};
use porch_fn_text::cut;

use crate::pods::{LastStart, PodReport};

/// The most images in one answer, which keeps it below 1 MiB.
const MAX_IMAGES: usize = 1000;
/// Longest image name reported, in bytes.
const MAX_IMAGE_BYTES: usize = 600;

/// The images of one report, sorted by name.
#[derive(Debug, Default)]
pub(super) struct Images {
    pub(super) images: Vec<ImagePods>,
    /// Whether there are more.
    pub(super) truncated: bool,
}

impl Images {
    /// Chooses the images whose last start failed, and the busiest others. The pool forgets an image
    /// soon after a failed start, or when its last pod is gone. Such an image has only its last
    /// start, which the router compares with other runners' starts.
    pub(super) fn new(stats: Vec<FunctionStats>, mut starts: HashMap<ImageKey, LastStart>) -> Self {
        let known = stats.into_iter().map(|stats| {
            let start = starts.remove(&stats.image).unwrap_or_default();
            with_start(pods(&stats), start)
        });
        let mut images: Vec<_> = known.collect();
        images.extend(starts.into_iter().map(|(image, start)| {
            let image = cut(image.as_str(), MAX_IMAGE_BYTES, "").into_owned();
            with_start(ImagePods { image, ..ImagePods::default() }, start)
        }));
        let weight = |one: &ImagePods| {
            let pods = one.ready + one.starting + one.terminating;
            (one.start_error.is_some(), one.in_flight + one.waiting, pods)
        };
        let truncated = images.iter().filter(|one| weight(one) != (false, 0, 0)).count() > MAX_IMAGES;
        images.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.image.cmp(&b.image)));
        images.truncate(MAX_IMAGES);
        images.sort_by(|a, b| a.image.cmp(&b.image));
        Self { images, truncated }
    }
}

fn pods(stats: &FunctionStats) -> ImagePods {
    ImagePods {
        image: cut(stats.image.as_str(), MAX_IMAGE_BYTES, "").into_owned(),
        ready: number(stats.ready),
        starting: number(stats.starting),
        terminating: number(stats.terminating),
        in_flight: number(stats.in_flight),
        waiting: number(stats.waiting),
        ..ImagePods::default()
    }
}

fn with_start(pods: ImagePods, LastStart { error, succeeded }: LastStart) -> ImagePods {
    ImagePods {
        start_error: error.map(|(at, text)| StartError { at_ms: at.as_millis(), text }),
        started_at_ms: succeeded.map_or(0, Time::as_millis),
        ..pods
    }
}

/// One pod, for the report about its image.
pub(super) fn image_pod(pod: PodReport) -> ImagePod {
    let state = match pod.state {
        PodState::Ready => "ready",
        PodState::Starting => "starting",
        PodState::Terminating => "terminating",
    };
    ImagePod {
        name: pod.name,
        state: state.to_owned(),
        age_ms: u64::try_from(pod.age.as_millis()).unwrap_or(u64::MAX),
        calls: number(pod.calls),
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use porch_fn_proto::shard::DescribeResponse;
    use prost::Message;

    use super::*;

    fn stats(image: &str, in_flight: usize, ready: usize) -> FunctionStats {
        FunctionStats {
            image: ImageKey::from(image),
            owned: true,
            ready,
            starting: 2,
            silent: 0,
            terminating: 1,
            in_flight,
            waiting: 3,
        }
    }

    fn failed(text: &str) -> LastStart {
        LastStart { error: Some((Time::from_millis(5), text.to_owned())), succeeded: None }
    }

    #[test]
    fn an_image_has_its_pods_and_its_last_start() {
        let succeeded = LastStart { error: None, succeeded: Some(Time::from_millis(9)) };
        let starts = [("f:v1", succeeded), ("g:v1", failed("no node"))];
        let starts = starts.map(|(image, start)| (ImageKey::from(image), start)).into();
        let Images { images, truncated } = Images::new(vec![stats("f:v1", 4, 5)], starts);
        let f = ImagePods {
            image: "f:v1".to_owned(),
            ready: 5,
            starting: 2,
            terminating: 1,
            in_flight: 4,
            waiting: 3,
            start_error: None,
            started_at_ms: 9,
        };
        let error = StartError { at_ms: 5, text: "no node".to_owned() };
        let g = ImagePods { image: "g:v1".to_owned(), start_error: Some(error), ..ImagePods::default() };
        assert_eq!((images, truncated), (vec![f, g], false));
    }

    #[test]
    fn a_bounded_report_has_the_busiest_images_and_the_start_errors() {
        let long = "é".repeat(1000);
        let mut all: Vec<_> = (0..3000).map(|n| stats(&format!("{n:04}{long}"), 0, n % 7)).collect();
        all.push(stats("zz", 1, 0));
        let starts = (0..100).map(|n| (ImageKey::from(format!("a{n}")), failed(&"x".repeat(1000))));
        let ended = LastStart { error: None, succeeded: Some(Time::from_millis(9)) };
        let over: HashMap<_, _> = (0..1001).map(|n| (ImageKey::from(n.to_string()), ended.clone())).collect();
        let only_over = Images::new(Vec::new(), over.clone());
        assert_eq!((only_over.images.len(), only_over.truncated), (MAX_IMAGES, false));
        let Images { images, truncated } = Images::new(all, starts.chain(over).collect());
        assert!(truncated);
        assert_eq!(images.len(), MAX_IMAGES);
        assert_eq!(images[MAX_IMAGES - 1].image, "zz");
        assert_eq!(images.iter().filter(|image| image.start_error.is_some()).count(), 100);
        let is_chosen =
            |image: &ImagePods| image.ready >= 4 || image.image == "zz" || image.start_error.is_some();
        assert!(images.iter().all(is_chosen));
        assert!(images.is_sorted_by(|a, b| a.image < b.image));
        let response = DescribeResponse { images, ..DescribeResponse::default() };
        assert!(response.encoded_len() < 1 << 20, "{}", response.encoded_len());
    }

    #[test]
    fn a_pod_has_its_state_and_age() {
        for (state, expected) in [
            (PodState::Ready, "ready"),
            (PodState::Starting, "starting"),
            (PodState::Terminating, "terminating"),
        ] {
            let pod = PodReport { name: "f-v1-0".to_owned(), state, age: Duration::from_secs(2), calls: 3 };
            let expected =
                ImagePod { name: "f-v1-0".to_owned(), state: expected.to_owned(), age_ms: 2000, calls: 3 };
            assert_eq!(image_pod(pod), expected);
        }
    }
}
