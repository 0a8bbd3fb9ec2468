//! The registries that speak plain HTTP: those of `--insecure-registries`, and mirrors. A registry
//! that no image can have would be ignored in silence, so it is an error.

use porch_fn_image::Image;

use crate::Mirror;

/// How many characters of an invalid item an error quotes.
const MAX_QUOTED: usize = 100;

/// The registries that speak plain HTTP, each `host` or `host:port`, for [`roots`](crate::roots()).
/// `insecure` is `--insecure-registries`.
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
