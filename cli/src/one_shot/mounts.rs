//! `--mount` in Docker's syntax, as `porch-fn run` documents it and as callers of an engine write
//! it. No I/O.

use std::path::Path;

use porch_fn_sandbox::Mount;

const OWN: &str = "type=bind,src=PATH,dst=PATH[,rw] or type=tmpfs,dst=PATH";
const ENGINES: &str = "type=bind,source=PATH,target=PATH[,readonly] or type=tmpfs,target=PATH";

/// Reads a mount. In `porch-fn run`, a bind without `rw` is read-only, like on kpt's own command line.
/// In an engine, one without `readonly` is writable: kpt and kustomize write nothing else for a
/// writable mount.
pub(crate) fn parse(text: &str, is_engines: bool) -> Result<Mount, String> {
    let (default_type, form) = if is_engines { ("", ENGINES) } else { ("bind", OWN) };
    let problem = |what: &str| Err(format!("{text:?}: {what}; write {form}"));
    let (mut kind, mut source, mut target, mut access) = (None, None, None, None);
    for option in text.split(',') {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let is_repeated = match (name, value) {
            ("type", value) => kind.replace(value).is_some(),
            ("src" | "source", path) => source.replace(path).is_some(),
            ("dst" | "destination" | "target", path) => target.replace(path).is_some(),
            ("rw", "" | "true") | ("readonly" | "ro", "false") => access.replace(true).is_some(),
            ("readonly" | "ro", "" | "true") | ("rw", "false") => access.replace(false).is_some(),
            _ => return problem(&format!("{option:?} is not known")),
        };
        if is_repeated {
            return problem(&format!("{name} is given twice"));
        }
    }
    let source = source.unwrap_or_default();
    let (source, is_writable) = match kind.unwrap_or(default_type) {
        "bind" if Path::new(source).is_relative() => return problem("the source is not an absolute path"),
        "bind" => (Some(source.into()), is_engines),
        "tmpfs" if !source.is_empty() => return problem("a tmpfs has no source"),
        "tmpfs" => (None, true),
        "" => return problem("type is required"),
        _ => return problem("only the types bind and tmpfs exist"),
    };
    let target = Path::new(target.unwrap_or_default());
    if target.is_relative() {
        return problem("the target is not an absolute path");
    }
    Ok(Mount { source, target: target.to_owned(), is_writable: access.unwrap_or(is_writable) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(is_writable: bool) -> Mount {
        Mount { source: Some("/a".into()), target: "/b".into(), is_writable }
    }

    fn tmpfs(is_writable: bool) -> Mount {
        Mount { source: None, target: "/b".into(), is_writable }
    }

    fn parse_own(text: &str) -> Result<Mount, String> {
        parse(text, false)
    }

    fn parse_engines(text: &str) -> Result<Mount, String> {
        parse(text, true)
    }

    #[test]
    fn a_bind_that_does_not_say_so_is_writable_only_for_an_engine() {
        for (text, own, engines) in [
            ("type=bind,src=/a,dst=/b", bind(false), bind(true)),
            ("type=bind,source=/a,target=/b,readonly", bind(false), bind(false)),
            ("type=bind,source=/a,destination=/b,ro=true", bind(false), bind(false)),
            ("type=bind,src=/a,dst=/b,rw", bind(true), bind(true)),
            ("type=bind,src=/a,dst=/b,readonly=false", bind(true), bind(true)),
            ("rw=false,target=/b,source=/a,type=bind", bind(false), bind(false)),
            ("type=tmpfs,dst=/b", tmpfs(true), tmpfs(true)),
            ("type=tmpfs,source=,target=/b,readonly", tmpfs(false), tmpfs(false)),
        ] {
            assert_eq!((parse_own(text), parse_engines(text)), (Ok(own), Ok(engines)), "{text}");
        }
        assert_eq!(parse_own("src=/a,dst=/b"), Ok(bind(false)));
    }

    #[test]
    fn everything_else_is_refused_with_the_form() {
        for (text, problem) in [
            ("type=volume,src=a,dst=/b", "only the types bind and tmpfs exist"),
            ("type=,src=/a,dst=/b", "type is required"),
            ("type=bind,src=/a", "the target is not an absolute path"),
            ("type=bind,src=/a,dst=", "the target is not an absolute path"),
            ("type=bind,src=/a,dst=b", "the target is not an absolute path"),
            ("type=bind,dst=/b", "the source is not an absolute path"),
            ("type=bind,src=a,dst=/b", "the source is not an absolute path"),
            ("type=tmpfs,src=/a,dst=/b", "a tmpfs has no source"),
            ("type=bind,src=/a,dst=/b,x=1", "\"x=1\" is not known"),
            ("type=bind,src=/a,dst=/b,rw=1", "\"rw=1\" is not known"),
            ("type=bind,src=/a,dst=/b,target=/c", "target is given twice"),
            ("type=bind,src=/a,dst=/b,rw,ro", "ro is given twice"),
            ("type=bind,type=bind,src=/a,dst=/b", "type is given twice"),
        ] {
            let own = format!("{text:?}: {problem}; write {OWN}");
            assert_eq!(parse_own(text), Err(own));
            let engines = format!("{text:?}: {problem}; write {ENGINES}");
            assert_eq!(parse_engines(text), Err(engines));
        }
        assert!(parse_engines("src=/a,dst=/b").unwrap_err().contains("type is required"));
    }
}
