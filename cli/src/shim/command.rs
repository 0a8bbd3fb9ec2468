//! The command lines by which kpt and kustomize call a container engine. No I/O.
//!
//! kpt: `pkg/fn/runtime/container.go` and `container_utils.go`, `commands/fn/doc/cmdfndoc.go`, and
//! the scripts of its end-to-end tests. kustomize: `kyaml/fn/runtime/container/container.go`.

use std::ffi::OsString;

use crate::one_shot::{Run, RunFlags, mounts};

/// What an engine is asked. Images are as the caller writes them.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// `version`. `short`: only the client's number.
    Version { short: bool },
    /// `run`.
    Run(Run),
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

/// `run`. Without `--network`, an engine would have a network of its own, which no function gets.
#[derive(Debug, clap::Parser)]
#[command(name = "run", disable_help_flag = true)]
#[command(mut_arg("mount", |mount| mount.value_parser(|text: &str| mounts::parse(text, true))))]
#[command(mut_arg("network", |network| network.alias("net")), mut_arg("user", |user| user.short('u')))]
struct RunLine {
    #[command(flatten)]
    flags: RunFlags,
    #[arg(long, default_value_t = true)]
    rm: bool,
    #[arg(short, long, default_value_t = true)]
    interactive: bool,
    /// All three are attached anyway.
    #[arg(short, long)]
    attach: Vec<String>,
    /// Always so.
    #[arg(long, value_parser = ["no-new-privileges", "no-new-privileges=true", "no-new-privileges:true"])]
    security_opt: Vec<String>,
    /// The image, and the function's arguments.
    #[arg(required = true, trailing_var_arg = true)]
    image: Vec<String>,
}

const ANSWERED: &str = "only `version`, `version --format {{.Client.Version}}`, `run`, `pull IMAGE`, \
                        `tag IMAGE NAME`, `image inspect IMAGE`, `image rm IMAGE` and \
                        `image ls --filter reference=REPOSITORY --format {{.Tag}}` are answered";

pub(crate) fn parse(words: &[&str]) -> Result<Asked, String> {
    if let ["run", ..] = words {
        return run(words).map(Asked::Run);
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
    let line = porch_fn_flags::parse(words.iter().map(OsString::from));
    let RunLine { flags, rm, interactive, mut image, .. } = line.map_err(|error| error.to_string())?;
    if !(rm && interactive) {
        return Err("`run` is always with --rm and --interactive".to_owned());
    }
    let args = image.split_off(1);
    Ok(Run { image: image.concat(), args, flags })
}

#[cfg(test)]
mod tests {
    use porch_fn_sandbox::Mount;

    use super::*;
    use crate::one_shot::{NetworkArg, Pull};

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
            Ok(Asked::Run(run)) => run,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn runs_of_kpt_and_kustomize() {
        const KPT: &str = "run --rm -i --network none --user nobody --security-opt=no-new-privileges --pull";
        const KUSTOMIZE: &str = "run --rm -i -a STDIN -a STDOUT -a STDERR --network host --user 1000:1000 \
                                 --security-opt=no-new-privileges";
        let mount = |source, target: &str, is_writable| Mount { source, target: target.into(), is_writable };
        let data = |target, is_writable| mount(Some("/data".into()), target, is_writable);
        let of = |flags| Run { image: "a.b/f:v1".to_owned(), args: Vec::new(), flags };
        let nobody = || RunFlags { user: Some("nobody".to_owned()), ..RunFlags::default() };
        let with = |mounts: Vec<Mount>| of(RunFlags { mount: mounts, ..nobody() });
        let kustomize = || RunFlags {
            network: NetworkArg::Host,
            user: Some("1000:1000".to_owned()),
            ..RunFlags::default()
        };
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        for (line, expected) in [
            (format!("{KPT} missing a.b/f:v1"), of(nobody())),
            (format!("{KPT} never a.b/f:v1"), of(RunFlags { pull: Pull::Never, ..nobody() })),
            (format!("{KPT} always a.b/f:v1"), of(RunFlags { pull: Pull::Always, ..nobody() })),
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
                with(vec![data("/in", false), mount(None, "/t", true)]),
            ),
            (
                format!("{KPT} missing -e A=1 -e B= -e C a.b/f:v1"),
                of(RunFlags { env: words(&["A=1", "B=", "C"]), ..nobody() }),
            ),
            (
                "run --rm -i a.b/f:v1 --help".to_owned(),
                Run { args: words(&["--help"]), ..of(RunFlags::default()) },
            ),
            ("run --rm=true --interactive=true a.b/f:v1".to_owned(), of(RunFlags::default())),
            ("run --net=host -u 1000:1000 a.b/f:v1".to_owned(), of(kustomize())),
            (
                format!("{KUSTOMIZE} a.b/f:v1 arg --rm=x -e --user y -- -z"),
                Run { args: words(&["arg", "--rm=x", "-e", "--user", "y", "--", "-z"]), ..of(kustomize()) },
            ),
            (
                format!("{KUSTOMIZE} -e LOG_TO_STDERR=true -e B a.b/f:v1"),
                of(RunFlags { env: words(&["LOG_TO_STDERR=true", "B"]), ..kustomize() }),
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
            ("run --rm", "run: the following required arguments were not provided: <IMAGE>"),
            ("run --rm=false image", "--rm and --interactive"),
            ("run -i=x image", "'--interactive[=<true|false>]'"),
            ("run --privileged image", "unexpected argument '--privileged'"),
            ("run --memory 1g image", "unexpected argument '--memory'"),
            ("run -it image", "-it"),
            ("run --network bridge image", "'bridge'"),
            ("run --security-opt seccomp=unconfined image", "seccomp=unconfined"),
            ("run --pull", "a value is required for '--pull"),
            ("run --mount type=,source=/a,target=/b image", "type is required"),
            ("run --mount type=volume,source=v,target=/v image", "only the types bind and tmpfs exist"),
            ("run --mount type=bind,source=rel,target=/r image", "the source is not an absolute path"),
            ("run --mount type=bind,source=/a,target=,readonly image", "the target is not an absolute path"),
        ] {
            let error = asked(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
