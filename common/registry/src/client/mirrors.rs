//! `--registry-mirror`: other registries that have the images of a registry. With those of
//! `--insecure-registries`, they may speak plain HTTP. No I/O.

use porch_fn_image::Image;
use reqwest::Url;

/// How many characters of an invalid item an error quotes.
const MAX_QUOTED: usize = 100;

/// The mirror of a registry.
#[derive(Debug, Clone)]
pub struct Mirror {
    /// The registry, as in the names of its images.
    registry: String,
    /// The mirror's host and port, and the repository that contains the mirrored ones.
    place: String,
    /// The mirror's host and port, if it speaks plain HTTP.
    plain: Option<String>,
}

// === impl Mirror ===

impl Mirror {
    /// The same image at this mirror, if it is one of the image's registry.
    pub(super) fn image(&self, image: &Image) -> Option<Image> {
        let rest = image.as_str().strip_prefix(&self.registry)?.strip_prefix('/')?;
        Image::parse(&format!("{}/{rest}", self.place), "").ok()
    }

    /// Reads `HOST=URL`. The URL may have a path, such as the project of a Harbor proxy cache:
    /// images `HOST/NAME` are then at `URL/NAME`.
    ///
    /// # Errors
    /// A text that names `--registry-mirror`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let problem = |what: &str| {
            format!(
                "--registry-mirror {text:?}: {what}; write HOST=URL, such as ghcr.io=https://mirror.example.com"
            )
        };
        let (registry, url) = text.split_once('=').ok_or_else(|| problem("it has no ="))?;
        let url = Url::parse(url).map_err(|_| problem("what follows = is not a URL"))?;
        let has_more = url.query().is_some() || url.fragment().is_some() || !url.username().is_empty();
        let (Some(host), "http" | "https", false) = (url.host_str(), url.scheme(), has_more) else {
            return Err(problem("the URL must be http or https, without a user, a query or a fragment"));
        };
        // Without a port, a single word would be the name of a repository.
        let host = format!("{host}:{}", url.port_or_known_default().unwrap_or(443));
        let place = format!("{host}{}", url.path().trim_end_matches('/'));
        let registry = registry.to_ascii_lowercase();
        if Image::parse(&format!("{registry}/x"), "").is_ok_and(|image| image.registry() == registry)
            && Image::parse(&format!("{place}/x"), "").is_ok()
        {
            let plain = (url.scheme() == "http").then_some(host);
            Ok(Self { registry, place, plain })
        } else {
            Err(problem("what is before = is not a registry, or the URL's path is not a repository"))
        }
    }
}

/// The registries that speak plain HTTP, each `host` or `host:port`, for [`roots`](crate::roots()).
/// `insecure` is `--insecure-registries`. A registry that no image can have would be ignored in
/// silence, so it is an error.
///
/// # Errors
/// The first item that could not be the registry of an image, and what to write.
pub fn plain_registries(insecure: &[String], mirrors: &[Mirror]) -> Result<Vec<String>, String> {
    if let Some(item) = insecure.iter().find(|item| !is_registry(item)) {
        let item: String = item.chars().take(MAX_QUOTED).collect();
        return Err(format!(
            "--insecure-registries: {item:?} is no registry: write host, host:port or [IPv6 address]:port, without a scheme or \
             a path, several of them separated by commas"
        ));
    }
    Ok(insecure.iter().chain(mirrors.iter().filter_map(|mirror| mirror.plain.as_ref())).cloned().collect())
}

/// Whether an image reference could have `item` as its registry. Image references recognise a
/// registry by a dot or a port. An item may have neither, so this adds a port.
fn is_registry(item: &str) -> bool {
    let has_port = item.rsplit(']').next().is_some_and(|behind| behind.contains(':'));
    let registry = if has_port { item.to_owned() } else { format!("{item}:80") };
    Image::parse(&format!("{registry}/image:tag"), "")
        .is_ok_and(|image| image.registry() == registry.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_has_the_images_below_its_path() {
        let mirrors = ["ghcr.io=https://mirror.example.com", "docker.io=http://harbor.example.com:8080/hub/"]
            .map(|text| Mirror::parse(text).unwrap());
        let digest = format!("sha256:{}", "a".repeat(64));
        for (image, expected) in [
            ("ghcr.io/kptdev/f:v1", Some("mirror.example.com:443/kptdev/f:v1".to_owned())),
            (
                &format!("ghcr.io/kptdev/f@{digest}"),
                Some(format!("mirror.example.com:443/kptdev/f@{digest}")),
            ),
            ("docker.io/library/x:1", Some("harbor.example.com:8080/hub/library/x:1".to_owned())),
            ("quay.io/x/y:1", None),
        ] {
            let image = Image::parse(image, "").unwrap();
            let mirrored = mirrors.iter().find_map(|mirror| mirror.image(&image));
            assert_eq!(mirrored.map(|image| image.as_str().to_owned()), expected);
        }
        assert_eq!(mirrors.map(|mirror| mirror.plain), [None, Some("harbor.example.com:8080".to_owned())]);
    }

    #[test]
    fn errors_name_the_flag_and_the_form() {
        for text in [
            "ghcr.io",
            "ghcr.io=mirror",
            "ghcr.io=ftp://m",
            "ghcr.io=https://u@m",
            "g h=https://m",
            "=https://m",
        ] {
            let error = Mirror::parse(text).unwrap_err();
            assert!(error.contains("--registry-mirror") && error.contains("HOST=URL"), "{error}");
        }
    }

    #[test]
    fn insecure_registries_are_hosts() {
        let good = "localhost registry registry:5000 a.b A.b:80 127.0.0.1 127.0.0.1:65535 [::1] [::1]:5000 \
                    index.docker.io docker.io my-registry.svc.cluster.local:5000";
        for good in good.split(' ') {
            let given = ["x.y".to_owned(), good.to_owned()];
            assert_eq!(plain_registries(&given, &[]).unwrap(), given);
        }
        let wrong = "http://a.b https://a.b:80 a.b/ a.b/team a.b:80/team a.b: a.b:0 a.b:65536 a.b:x a.b:+1 :5000 ::1 [::1 \
                     [::1]5000 [::1]: [a.b]:80 a_b -a.b a..b *.b me@a.b a.b?c a.b#c a.b:80@sha256 ä.b";
        for wrong in wrong.split(' ').chain(["a b"]) {
            let error = plain_registries(&["x.y".to_owned(), wrong.to_owned()], &[]).expect_err(wrong);
            assert!(error.starts_with("--insecure-registries: ") && !error.contains('\n'), "{error}");
            assert!(error.contains(&format!("{wrong:?} is no registry: write host, host:port")), "{error}");
        }
        let error = plain_registries(&["/".repeat(5000)], &[]).unwrap_err();
        assert!(error.len() < 400, "{error}");
    }
}
