//! `--registry-mirror`: other registries that have the images of a registry. No I/O.

use porch_fn_image::Image;
use reqwest::Url;

use crate::docker_config::path_of;

/// The mirror of each registry, if it has one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirrors(Vec<Mirror>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Mirror {
    /// The registry, as in the names of its images.
    registry: String,
    /// The mirror's host and port, and the repository that contains the mirrored ones.
    place: String,
    /// The mirror's host and port, if it speaks plain HTTP.
    plain: Option<String>,
}

// === impl Mirrors ===

impl Mirrors {
    /// Reads `HOST=URL` for each mirror. The URL may have a path, such as the project of a
    /// Harbor proxy cache: images `HOST/NAME` are then at `URL/NAME`.
    ///
    /// # Errors
    /// A text that names `--registry-mirror`.
    pub fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        texts.into_iter().map(Mirror::parse).collect::<Result<_, _>>().map(Self)
    }

    /// The mirrors that speak plain HTTP, as in `--insecure-registries`.
    pub(crate) fn plain(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|mirror| mirror.plain.as_deref())
    }

    /// The same image at its registry's mirror.
    pub(super) fn of(&self, image: &Image) -> Option<Image> {
        let mirror = self.0.iter().find(|mirror| mirror.registry == image.registry())?;
        let rest = image.as_str().strip_prefix(image.registry())?;
        debug_assert!(rest[1..].starts_with(path_of(image)));
        Image::parse(&format!("{}{rest}", mirror.place), "").ok()
    }
}

// === impl Mirror ===

impl Mirror {
    fn parse(text: &str) -> Result<Self, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_has_the_images_below_its_path() {
        let mirrors = Mirrors::parse([
            "ghcr.io=https://mirror.example.com",
            "docker.io=http://harbor.example.com:8080/hub/",
        ])
        .unwrap();
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
            assert_eq!(mirrors.of(&image).map(|image| image.as_str().to_owned()), expected);
        }
        assert_eq!(mirrors.plain().collect::<Vec<_>>(), ["harbor.example.com:8080"]);
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
            let error = Mirrors::parse([text]).unwrap_err();
            assert!(error.contains("--registry-mirror") && error.contains("HOST=URL"), "{error}");
        }
    }
}
