//! The command lines by which kpt and kustomize call a container engine. No I/O.
//!
//! kpt: `pkg/fn/runtime/container.go` and kustomize: `kyaml/fn/runtime/container/container.go`.

use crate::one_shot::{NetworkArg, Pull, Run, parse_mount};

/// What an engine is asked.
#[derive(Debug, PartialEq)]
pub(crate) enum Asked {
    /// `version`. `short`: only the client's number.
    Version { short: bool },
    /// `run`.
    Run(Box<Run>),
}

pub(crate) fn parse(words: &[&str]) -> Result<Asked, String> {
    match words {
        ["version"] => Ok(Asked::Version { short: false }),
        ["version", "--format", "{{.Client.Version}}"] | ["version", "--format={{.Client.Version}}"] => {
            Ok(Asked::Version { short: true })
        }
        ["version", ..] => {
            Err("only `version` and `version --format {{.Client.Version}}` are answered".to_owned())
        }
        ["run", rest @ ..] => run(rest).map(|run| Asked::Run(Box::new(run))),
        [] => Err("only `version` and `run` are answered".to_owned()),
        [other, ..] => Err(format!("only `version` and `run` are answered, and not {other:?}")),
    }
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
        let is_switch = matches!(flag, "--rm" | "-i" | "--interactive");
        let mut value = || joined.or_else(|| words.next()).ok_or_else(|| format!("{flag} needs a value"));
        match flag {
            _ if is_switch => {}
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
                run.mount.push(parse_mount(value()?).map_err(|problem| format!("--mount: {problem}"))?);
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

    fn asked(line: &str) -> Result<Asked, String> {
        parse(&line.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>())
    }

    #[test]
    fn the_lines_of_kpt_and_kustomize() {
        assert_eq!(asked("version"), Ok(Asked::Version { short: false }));
        assert_eq!(asked("version --format {{.Client.Version}}"), Ok(Asked::Version { short: true }));
        let kpt = "run --rm -i --network none --user nobody --security-opt=no-new-privileges --pull missing \
                   --mount type=bind,source=/a,target=/b,readonly -e A=1 -e B ghcr.io/kptdev/f:v1";
        let expected = Run {
            image: "ghcr.io/kptdev/f:v1".to_owned(),
            args: Vec::new(),
            network: NetworkArg::None,
            user: Some("nobody".to_owned()),
            pull: Pull::Missing,
            mount: vec![Mount { source: Source::Path("/a".into()), target: "/b".into(), is_writable: false }],
            env: vec!["A=1".to_owned(), "B".to_owned()],
        };
        assert_eq!(asked(kpt), Ok(Asked::Run(Box::new(expected))));
        let kustomize = "run --rm -i -a STDIN -a STDOUT -a STDERR --network host --user 1000:1000 \
                         --security-opt=no-new-privileges -e LOG_TO_STDERR=true image arg --rm";
        let Ok(Asked::Run(run)) = asked(kustomize) else { panic!("it is a run") };
        assert_eq!((run.network, run.user.as_deref()), (NetworkArg::Host, Some("1000:1000")));
        assert_eq!((run.image.as_str(), run.args), ("image", vec!["arg".to_owned(), "--rm".to_owned()]));
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (line, expected) in [
            ("", "only `version` and `run`"),
            ("build .", "\"build\""),
            ("version --format json", "{{.Client.Version}}"),
            ("run --rm", "names no image"),
            ("run --privileged image", "--privileged"),
            ("run --network bridge image", "\"bridge\""),
            ("run --security-opt seccomp=unconfined image", "seccomp=unconfined"),
            ("run --pull", "--pull needs a value"),
            ("run --mount type=volume,src=a,dst=/b image", "--mount"),
        ] {
            let error = asked(line).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
