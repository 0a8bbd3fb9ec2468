//! The command lines by which kpt and kustomize call a container engine. No I/O.
//!
//! kpt: `pkg/fn/runtime/container.go` and `container_utils.go`, `commands/fn/doc/cmdfndoc.go`, and
//! the scripts of its end-to-end tests. kustomize: `kyaml/fn/runtime/container/container.go`.

use crate::mounts::parse_engines;
use crate::one_shot::{NetworkArg, Pull, Run};

/// What an engine is asked. Images are as the caller writes them.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// `version`. `short`: only the client's number.
    Version { short: bool },
    /// `run`.
    Run(Box<Run>),
    /// Something about this image.
    Image(Verb, String),
}

/// What to do with an image of the store.
#[derive(Debug, PartialEq)]
pub(crate) enum Verb {
    /// `image ls`: lists the tags of its repository.
    Tags,
    /// `image inspect`.
    Inspect,
    /// `image rm`.
    Remove,
    /// `pull`.
    Pull,
    /// `tag`: gives it this name, too.
    Tag(String),
}

const ANSWERED: &str = "only `version`, `version --format {{.Client.Version}}`, `run`, `pull IMAGE`, \
                        `tag IMAGE NAME`, `image inspect IMAGE`, `image rm IMAGE` and \
                        `image ls --filter reference=REPOSITORY --format {{.Tag}}` are answered";

pub(crate) fn parse(words: &[&str]) -> Result<Asked, String> {
    if let ["run", rest @ ..] = words {
        return run(rest).map(|run| Asked::Run(Box::new(run)));
    }
    let is_repository = |name: &str| name.rsplit('/').next().is_some_and(|last| !last.contains([':', '@']));
    let (verb, image) = match *words {
        ["version"] => return Ok(Asked::Version { short: false }),
        ["version", "--format", "{{.Client.Version}}"] | ["version", "--format={{.Client.Version}}"] => {
            return Ok(Asked::Version { short: true });
        }
        ["image", "ls", "--filter", filter, "--format", "{{ .Tag }}" | "{{.Tag}}"]
            if let Some(name) = filter.strip_prefix("reference=")
                && is_repository(name) =>
        {
            (Verb::Tags, name)
        }
        // A flag is no name of an image, which is an error then.
        ["image", "inspect", image] => (Verb::Inspect, image),
        ["image", "rm", image] => (Verb::Remove, image),
        ["pull", image] => (Verb::Pull, image),
        ["tag", image, name] => (Verb::Tag(name.to_owned()), image),
        [] => return Err(ANSWERED.to_owned()),
        _ => return Err(format!("{:?} is not answered: {ANSWERED}", words.join(" "))),
    };
    Ok(Asked::Image(verb, image.to_owned()))
}

fn run(words: &[&str]) -> Result<Run, String> {
    let mut run = Run {
        image: String::new(),
        args: Vec::new(),
        // An engine's own default would be a network of its own, which no function gets.
        network: NetworkArg::None,
        user: None,
        pull: Pull::Missing,
        mount: Vec::new(),
        env: Vec::new(),
    };
    let mut words = words.iter().copied();
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            word.clone_into(&mut run.image);
            run.args = words.map(str::to_owned).collect();
            return Ok(run);
        }
        let (flag, joined) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word, None),
        };
        let mut value = || joined.or_else(|| words.next()).ok_or_else(|| format!("{flag} needs a value"));
        match flag {
            "--rm" | "-i" | "--interactive" => match joined {
                // Always so.
                None | Some("true") => {}
                Some(_) => return Err(format!("`{word}` is not answered: only `{flag}` is")),
            },
            // All three are attached anyway.
            "-a" | "--attach" => {
                value()?;
            }
            "--network" | "--net" => {
                run.network = match value()? {
                    "none" => NetworkArg::None,
                    "host" => NetworkArg::Host,
                    other => {
                        return Err(format!("the network {other:?} does not exist: only none and host do"));
                    }
                }
            }
            "-u" | "--user" => run.user = Some(value()?.to_owned()),
            "--security-opt" => match value()? {
                // Always so.
                "no-new-privileges" | "no-new-privileges=true" | "no-new-privileges:true" => {}
                other => return Err(format!("--security-opt {other} is not answered")),
            },
            "--pull" => {
                run.pull = match value()? {
                    "always" => Pull::Always,
                    "missing" => Pull::Missing,
                    "never" => Pull::Never,
                    other => {
                        return Err(format!("--pull {other} is not answered: always, missing and never are"));
                    }
                }
            }
            "--mount" => {
                run.mount.push(parse_engines(value()?).map_err(|problem| format!("--mount {problem}"))?);
            }
            "-e" | "--env" => run.env.push(value()?.to_owned()),
            other => return Err(format!("`run {other}` is not answered")),
        }
    }
    Err("`run` names no image".to_owned())
}

#[cfg(test)]
mod tests {
    use porch_fn_sandbox::{Mount, Source};

    use super::*;

    /// Splits at spaces, but for those of a template.
    fn asked(line: &str) -> Result<Asked, String> {
        let words: Vec<_> = line.split(' ').filter(|word| !word.is_empty()).collect();
        match words[..] {
            [ref first @ .., "{{", ".Tag", "}}"] => parse(&[first, &["{{ .Tag }}"]].concat()),
            _ => parse(&words),
        }
    }

    fn run_of(line: &str) -> Run {
        match asked(line) {
            Ok(Asked::Run(run)) => *run,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn runs_of_kpt_and_kustomize() {
        const KPT: &str = "run --rm -i --network none --user nobody --security-opt=no-new-privileges --pull";
        const KUSTOMIZE: &str = "run --rm -i -a STDIN -a STDOUT -a STDERR --network host --user 1000:1000 \
                                 --security-opt=no-new-privileges";
        let mount = |source, target: &str, is_writable| Mount { source, target: target.into(), is_writable };
        let data = |target, is_writable| mount(Source::Path("/data".into()), target, is_writable);
        let of = |image: &str| Run {
            image: image.to_owned(),
            args: Vec::new(),
            network: NetworkArg::None,
            user: Some("nobody".to_owned()),
            pull: Pull::Missing,
            mount: Vec::new(),
            env: Vec::new(),
        };
        let with = |mounts: Vec<Mount>| Run { mount: mounts, ..of("a.b/f:v1") };
        let kustomize =
            || Run { network: NetworkArg::Host, user: Some("1000:1000".to_owned()), ..of("a.b/f:v1") };
        for (line, expected) in [
            (format!("{KPT} missing a.b/f:v1"), of("a.b/f:v1")),
            (format!("{KPT} never a.b/f"), Run { pull: Pull::Never, ..of("a.b/f") }),
            (format!("{KPT} always a.b/f:v1"), Run { pull: Pull::Always, ..of("a.b/f:v1") }),
            (
                format!("{KPT} missing --mount type=bind,source=/data,target=/in,readonly a.b/f:v1"),
                with(vec![data("/in", false)]),
            ),
            (
                format!("{KPT} missing --mount type=bind,source=/data,target=/in a.b/f:v1"),
                with(vec![data("/in", true)]),
            ),
            (
                format!(
                    "{KPT} missing --mount type=bind,source=/data,target=/in,readonly \
                     --mount=type=tmpfs,source=,target=/t a.b/f:v1"
                ),
                with(vec![data("/in", false), mount(Source::Tmpfs, "/t", true)]),
            ),
            (
                format!("{KPT} missing -e A=1 -e B= -e C a.b/f:v1"),
                Run { env: ["A=1", "B=", "C"].map(str::to_owned).to_vec(), ..of("a.b/f:v1") },
            ),
            (
                "run --rm -i a.b/f:v1 --help".to_owned(),
                Run { user: None, args: vec!["--help".to_owned()], ..of("a.b/f:v1") },
            ),
            ("run --rm=true --interactive=true a.b/f:v1".to_owned(), Run { user: None, ..of("a.b/f:v1") }),
            (
                format!("{KUSTOMIZE} a.b/f:v1 arg --rm=x"),
                Run { args: vec!["arg".to_owned(), "--rm=x".to_owned()], ..kustomize() },
            ),
            (
                format!("{KUSTOMIZE} -e LOG_TO_STDERR=true -e B a.b/f:v1"),
                Run { env: vec!["LOG_TO_STDERR=true".to_owned(), "B".to_owned()], ..kustomize() },
            ),
        ] {
            assert_eq!(run_of(&line), expected, "{line}");
        }
    }

    #[test]
    fn lines_that_manage_images() {
        let of = |verb, image: &str| Asked::Image(verb, image.to_owned());
        for (line, expected) in [
            ("version", Asked::Version { short: false }),
            ("version --format {{.Client.Version}}", Asked::Version { short: true }),
            ("version --format={{.Client.Version}}", Asked::Version { short: true }),
            ("image ls --filter reference=a.b:80/f --format {{ .Tag }}", of(Verb::Tags, "a.b:80/f")),
            ("image ls --filter reference=f --format {{.Tag}}", of(Verb::Tags, "f")),
            ("image inspect a.b/f:v1", of(Verb::Inspect, "a.b/f:v1")),
            ("image rm a.b/f:v1", of(Verb::Remove, "a.b/f:v1")),
            ("pull a.b/f:v1", of(Verb::Pull, "a.b/f:v1")),
            ("tag a.b/f:v1 g", of(Verb::Tag("g".to_owned()), "a.b/f:v1")),
        ] {
            assert_eq!(asked(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (line, expected) in [
            ("", "only `version`, "),
            ("build .", "\"build .\" is not answered: only `version`, "),
            ("version --format json", "{{.Client.Version}}"),
            ("image ls", "\"image ls\" is not answered"),
            ("image ls --filter reference=a.b/f:v1 --format {{ .Tag }}", "is not answered"),
            ("image ls --filter dangling=true --format {{ .Tag }}", "is not answered"),
            ("pull", "\"pull\" is not answered"),
            ("image rm a b", "is not answered"),
            ("run --rm", "names no image"),
            ("run --rm=false image", "`--rm=false` is not answered: only `--rm` is"),
            ("run -i=x image", "`-i=x` is not answered: only `-i` is"),
            ("run --privileged image", "--privileged"),
            ("run --network bridge image", "\"bridge\""),
            ("run --security-opt seccomp=unconfined image", "seccomp=unconfined"),
            ("run --pull", "--pull needs a value"),
            (
                "run --mount type=,source=/a,target=/b image",
                "--mount \"type=,source=/a,target=/b\": type is required",
            ),
            ("run --mount type=volume,source=v,target=/v image", "only the types bind and tmpfs exist"),
            ("run --mount type=bind,source=rel,target=/r image", "the source is not an absolute path"),
            ("run --mount type=bind,source=/a,target=,readonly image", "the target is not an absolute path"),
        ] {
            let error = asked(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
