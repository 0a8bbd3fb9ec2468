//! Tests of every spelling and every mistake.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};

use clap::Parser;

use super::*;

#[derive(Debug, Parser, PartialEq)]
#[command(name = "porch-fn-router", version = "1.2.3")]
struct Flags {
    /// The port.
    ///
    /// 0 means any.
    #[arg(long, default_value_t = 9445)]
    port: u16,
    #[arg(long, default_value_t = true)]
    warm_up_pod_cache: bool,
    #[arg(long)]
    enable_private_registries: bool,
    #[arg(long, default_value = "30m")]
    pod_ttl: GoDuration,
    #[arg(long, default_value = "")]
    disable_runtimes: CommaList,
    #[arg(long, default_value = "./functions")]
    functions: String,
    #[arg(long, value_parser = ["text", "json"], default_value = "text")]
    log_format: String,
    #[arg(long, env = "PORCH_FN_TEST_ADMIN_PORT", default_value_t = 9464)]
    admin_port: u16,
    #[arg(short, default_value = "table")]
    output: String,
    #[arg(short = 'n', long, default_value = "")]
    namespace: String,
}

#[derive(Debug, Parser)]
#[command(name = "wrapper-server")]
struct Wrapper {
    #[arg(long, default_value_t = 9446)]
    port: u16,
    #[arg(last = true, required = true)]
    entrypoint: Vec<OsString>,
}

#[derive(Debug, Parser)]
#[command(name = "porch-fn")]
enum Tool {
    Up {
        #[arg(long, default_value_t = 3)]
        runners: u32,
        #[arg(long)]
        quiet: bool,
    },
    Eval {
        #[arg(long)]
        image: String,
        #[arg(last = true)]
        pairs: Vec<String>,
    },
    Run {
        #[arg(short, long)]
        env: Vec<String>,
        image: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    #[command(hide = true)]
    Wrapper(Wrapper),
}

fn argv<'a>(args: &'a [&'a str]) -> impl Iterator<Item = OsString> + 'a {
    std::iter::once("/some/path/binary").chain(args.iter().copied()).map(OsString::from)
}

fn ok(args: &[&str]) -> Flags {
    parse(argv(args)).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

fn error<T: Parser>(args: &[&str]) -> String {
    match parse::<T>(argv(args)) {
        Err(error) => {
            assert_eq!(error.exit_code, 64, "{error}");
            assert!(!error.text.contains('\n'), "{error}");
            error.text
        }
        Ok(_) => panic!("{args:?}: accepted"),
    }
}

#[test]
fn every_spelling_sets_a_value() {
    let set = |change: fn(&mut Flags)| {
        let mut flags = ok(&[]);
        change(&mut flags);
        flags
    };
    let port = set(|flags| flags.port = 1);
    let functions = |value: &str| Flags { functions: value.to_owned(), ..ok(&[]) };
    let lists = |items: &[&str]| Flags {
        disable_runtimes: CommaList(items.iter().copied().map(str::to_owned).collect()),
        ..ok(&[])
    };
    let namespace = set(|flags| flags.namespace = "x".to_owned());
    let json = set(|flags| flags.output = "json".to_owned());
    for (args, expected) in [
        (&["--port=1"][..], &port),
        (&["--port", "1"], &port),
        (&["-port=1"], &port),
        (&["-port", "1"], &port),
        // The last value of a repeated flag counts.
        (&["--port=2", "-port", "1", "--warm-up-pod-cache=false", "-warm-up-pod-cache"], &port),
        // A flag that is not a boolean always takes the next argument.
        (&["--functions", "--port=1"], &functions("--port=1")),
        (&["-functions", "-x"], &functions("-x")),
        (&["-functions", "--"], &functions("--")),
        (&["-functions", "-"], &functions("-")),
        (&["--functions="], &functions("")),
        (&["--functions", ""], &functions("")),
        (&["--functions=a=b"], &functions("a=b")),
        (&["-disable-runtimes", "exec, pod,"], &lists(&["exec", "pod"])),
        (&["--disable-runtimes=exec", "--disable-runtimes=pod"], &lists(&["pod"])),
        (&["--disable-runtimes="], &lists(&[])),
        (&["-n", "x"], &namespace),
        (&["-n=x"], &namespace),
        (&["--namespace=x"], &namespace),
        (&["-namespace", "x"], &namespace),
        (&["--n", "x"], &namespace),
        (&["-o", "json"], &json),
        (&["-o=json"], &json),
        // A boolean flag does not take the next argument.
        (&["--warm-up-pod-cache", "--port=1"], &port),
    ] {
        assert_eq!(&ok(args), expected, "{args:?}");
    }
    let defaults = ok(&[]);
    assert!(defaults.warm_up_pod_cache && !defaults.enable_private_registries);
    for (values, expected) in [("1 t T TRUE true True", true), ("0 f F FALSE false False", false)] {
        for value in values.split(' ') {
            for dash in ["-", "--"] {
                let flags = ["warm-up-pod-cache", "enable-private-registries"]
                    .map(|flag| format!("{dash}{flag}={value}"));
                let flags = ok(&flags.each_ref().map(String::as_str));
                let read = (flags.warm_up_pod_cache, flags.enable_private_registries);
                assert_eq!(read, (expected, expected), "{value}");
            }
        }
    }
}

#[test]
fn values_may_be_other_than_utf8() {
    #[derive(Debug, Parser)]
    #[command(name = "x")]
    struct Paths {
        #[arg(long)]
        path: OsString,
    }
    let odd = OsString::from_vec(b"/a\xff".to_vec());
    let mut joined = OsString::from("-path=");
    joined.push(&odd);
    let args = [OsString::from("x"), joined];
    assert_eq!(parse::<Paths>(args).expect("a path").path, odd);

    let args = [OsString::from("x"), OsString::from("--port"), odd.clone()];
    let error = parse::<Flags>(args).expect_err("not a number").to_string();
    assert!(error.starts_with("porch-fn-router: invalid UTF-8"), "{error}");
    let args = [OsString::from("x"), OsString::from_vec(b"-\xff\n".to_vec())];
    assert_eq!(parse::<Flags>(args).expect_err("not a flag").exit_code, 64);
}

#[test]
fn commands_have_their_own_flags_and_arguments_after_two_dashes_are_unchanged() {
    let Ok(Tool::Up { runners: 5, quiet: true }) = parse(argv(&["up", "-runners", "5", "-quiet"])) else {
        panic!("another command")
    };
    let Ok(Tool::Eval { image, pairs, .. }) = parse(argv(&["eval", "-image", "-up", "--", "-a=b"])) else {
        panic!("another command")
    };
    assert_eq!((image.as_str(), pairs), ("-up", vec!["-a=b".to_owned()]));
    let rest = ["/bin/fn", "-port=2", "--help", "--", "x"];
    let Ok(Tool::Wrapper(wrapper)) = parse(argv(&[&["wrapper", "-port=1", "--"], &rest[..]].concat())) else {
        panic!("another command")
    };
    assert_eq!((wrapper.port, wrapper.entrypoint), (1, rest.map(OsString::from).to_vec()));
    assert!(error::<Wrapper>(&[]).contains("were not provided: <ENTRYPOINT>...; usage: "));
}

#[test]
fn arguments_of_another_program_are_unchanged() {
    for (words, args) in [
        (
            &["run", "-e", "A=1", "f:v1", "-env", "B", "sh", "-e", "x", "--", "-y"][..],
            &["sh", "-e", "x", "--", "-y"][..],
        ),
        (&["run", "-env=A=1", "f:v1", "--env", "B", "cat"], &["cat"]),
    ] {
        let Ok(Tool::Run { env, image, args: found }) = parse(argv(words)) else { panic!("{words:?}") };
        assert_eq!(
            (image.as_str(), env, found),
            (
                "f:v1",
                vec!["A=1".to_owned(), "B".to_owned()],
                args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>()
            ),
            "{words:?}"
        );
    }
}

#[test]
fn help_and_version_have_exit_code_0() {
    for args in [["-h"], ["-help"], ["--help"]] {
        let FlagError { text: help, exit_code } = parse::<Flags>(argv(&args)).expect_err("a text");
        assert_eq!(exit_code, 0);
        assert!(help.contains("--warm-up-pod-cache[=<true|false>]"), "{help}");
        assert!(help.contains("[default: 30m]"), "{help}");
        assert_eq!(help.contains("0 means any"), args != ["-h"], "{help}");
    }
    for args in [["-V"], ["-version"], ["--version"]] {
        let outcome = parse::<Flags>(argv(&args)).expect_err("a text");
        assert_eq!((outcome.text.as_str(), outcome.exit_code), ("porch-fn-router 1.2.3\n", 0), "{args:?}");
    }
    let help = parse::<Tool>(argv(&["up", "-h"])).expect_err("a text").text;
    assert!(help.contains("--runners"), "{help}");
    for args in [&[][..], &["--help"], &["help"]] {
        let FlagError { text: help, exit_code } = parse::<Tool>(argv(args)).expect_err("a text");
        assert!(exit_code == 0 && help.contains("Commands:"), "{args:?}: {help}");
    }
}

#[test]
fn each_error_is_one_line_that_names_the_flag() {
    let invalid_digit = "invalid digit found in string";
    for (args, expected) in [
        (&["--prot=1"][..], "unexpected argument '--prot' found; tip: a similar argument exists: '--port'"),
        (&["-prot", "1"], "unexpected argument '--prot' found; tip: a similar argument exists: '--port'"),
        // clap suggests `--pod-ttl`.
        (&["--dot-pult"], "unexpected argument '--dot-pult' found"),
        (&["-v=2"], "unexpected argument '-v' found"),
        (&["extra"], "unexpected argument 'extra' found"),
        (&["--warm-up-pod-cache", "false"], "unexpected argument 'false' found"),
        (&["-"], "unexpected argument '-' found"),
        (&["--=1"], "\"--=1\" is not a flag; flags are written --name=value"),
        (&["---port"], "\"---port\" is not a flag; flags are written --name=value"),
        (&["--port"], "a value is required for '--port <PORT>' but none was supplied"),
        (&["--port=a\nb"], &format!("invalid value 'a b' for '--port <PORT>': {invalid_digit}")),
        (
            &["--warm-up-pod-cache=yes"],
            "invalid value 'yes' for '--warm-up-pod-cache[=<true|false>]': \"yes\" is not a boolean; use true or false",
        ),
        (
            &["--pod-ttl=-1s"],
            "invalid value '-1s' for '--pod-ttl <POD_TTL>': \"-1s\" is negative; use 0 or forms such as 30m, 1h30m, 500ms",
        ),
        (
            &["--log-format=xml"],
            "invalid value 'xml' for '--log-format <LOG_FORMAT>' [possible values: text, json]",
        ),
    ] {
        assert_eq!(error::<Flags>(args), format!("porch-fn-router: {expected}"), "{args:?}");
    }
    for (args, expected) in [
        (&["upp"][..], "unrecognized subcommand 'upp'; tip: a similar subcommand exists: 'up'"),
        // The suggestion of clap, `eval`, is another word.
        (&["vale"], "unrecognized subcommand 'vale'"),
        (
            &["eval"],
            "the following required arguments were not provided: --image <IMAGE>; \
             usage: porch-fn eval --image <IMAGE> [-- <PAIRS>...]",
        ),
    ] {
        assert_eq!(error::<Tool>(args), format!("porch-fn: {expected}"), "{args:?}");
    }
    let line = error::<Flags>(&[&format!("--port={}", "x".repeat(10_000))]);
    assert!(line.len() < 400 && line.contains('\u{2026}'), "{line}");
}

#[test]
fn set_flags_are_distinguished_from_defaults() {
    let args = ["-port=9445", "--enable-private-registries", "-n=x"];
    let (_, set) = parse_with_set::<Flags>(argv(&args)).expect("accepted");
    assert!(["port", "enable-private-registries", "namespace"].into_iter().all(|flag| set.contains(flag)));
    assert!(!set.contains("pod-ttl") && !set.contains("help"));
}
