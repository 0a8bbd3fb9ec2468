//! The images in reports: which ones are reported, and in what form. No I/O.

use std::collections::HashMap;

use porch_fn_pool::{FunctionStats, ImageKey};
use porch_fn_proto::shard::{DescribeResponse, ImagePods};
use porch_fn_text::cut;

use crate::pods::number;

/// The most images in one answer, which keeps it below 1 MiB.
const MAX_IMAGES: usize = 1000;
/// Longest image name reported, in bytes.
const MAX_IMAGE_BYTES: usize = 600;

/// Chooses the images whose last start failed, and the busiest others. The pool forgets an image soon
/// after a failed start, or when its last pod is gone. Such an image has only its last start, which
/// the router compares with other runners' starts. The answer has only `images`, sorted by name, and
/// `truncated`.
pub(super) fn report(stats: Vec<FunctionStats>, starts: HashMap<ImageKey, ImagePods>) -> DescribeResponse {
    let mut known = starts;
    for stats in stats {
        let pods = known.entry(stats.image).or_default();
        pods.ready = number(stats.ready);
        pods.starting = number(stats.starting);
        pods.terminating = number(stats.terminating);
        pods.in_flight = number(stats.in_flight);
        pods.waiting = number(stats.waiting);
    }
    let named = known.into_iter().map(|(image, pods)| {
        let image = cut(image.as_str(), MAX_IMAGE_BYTES, "").into_owned();
        ImagePods { image, ..pods }
    });
    let mut images: Vec<_> = named.collect();
    let weight = |one: &ImagePods| {
        let pods = one.ready + one.starting + one.terminating;
        (one.start_error.is_some(), one.in_flight + one.waiting, pods)
    };
    let truncated = images.iter().filter(|one| weight(one) != (false, 0, 0)).count() > MAX_IMAGES;
    images.sort_by(|a, b| weight(b).cmp(&weight(a)).then_with(|| a.image.cmp(&b.image)));
    images.truncate(MAX_IMAGES);
    images.sort_by(|a, b| a.image.cmp(&b.image));
    DescribeResponse { images, truncated, ..DescribeResponse::default() }
}

#[cfg(test)]
mod tests {
    use porch_fn_proto::shard::StartError;
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

    fn failed(text: &str) -> ImagePods {
        let error = StartError { at_ms: 5, text: text.to_owned() };
        ImagePods { start_error: Some(error), ..ImagePods::default() }
    }

    fn succeeded() -> ImagePods {
        ImagePods { started_at_ms: 9, ..ImagePods::default() }
    }

    #[test]
    fn an_image_has_its_pods_and_its_last_start() {
        let starts = [("f:v1", succeeded()), ("g:v1", failed("no node"))];
        let starts = starts.map(|(image, start)| (ImageKey::from(image), start)).into();
        let DescribeResponse { images, truncated, .. } = report(vec![stats("f:v1", 4, 5)], starts);
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
        let g = ImagePods { image: "g:v1".to_owned(), ..failed("no node") };
        assert_eq!((images, truncated), (vec![f, g], false));
    }

    #[test]
    fn a_bounded_report_has_the_busiest_images_and_the_start_errors() {
        let long = "é".repeat(1000);
        let mut all: Vec<_> = (0..3000).map(|n| stats(&format!("{n:04}{long}"), 0, n % 7)).collect();
        all.push(stats("zz", 1, 0));
        let starts = (0..100).map(|n| (ImageKey::from(format!("a{n}")), failed(&"x".repeat(1000))));
        let over: HashMap<_, _> = (0..1001).map(|n| (ImageKey::from(n.to_string()), succeeded())).collect();
        let only_over = report(Vec::new(), over.clone());
        assert_eq!((only_over.images.len(), only_over.truncated), (MAX_IMAGES, false));
        let DescribeResponse { images, truncated, .. } = report(all, starts.chain(over).collect());
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
}
