//! A command line, its arguments separated by zero bytes: flags, or one line that says why not.

#![no_main]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use libfuzzer_sys::fuzz_target;
use porch_fn_flags::{CommaList, FlagError, GoDuration, parse_bool, parse_with_set};

/// One flag of each kind.
#[derive(Debug, clap::Parser)]
#[command(name = "fuzz", version = "1")]
struct Flags {
    #[arg(long, default_value_t = 9445)]
    port: u16,
    #[arg(long, default_value_t = true)]
    warm_up_pod_cache: bool,
    #[arg(long)]
    all: bool,
    #[arg(long, default_value = "30m")]
    pod_ttl: GoDuration,
    #[arg(long, default_value = "")]
    disable_runtimes: CommaList,
    #[arg(long, value_delimiter = ',')]
    allowed_images: Vec<String>,
    #[arg(long, default_value = "./functions")]
    functions: std::path::PathBuf,
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=5))]
    log_level: u8,
    #[arg(long)]
    address: Option<std::net::IpAddr>,
    #[arg(long, value_parser = ["text", "json"], default_value = "text")]
    log_format: String,
    #[arg(short = 'n', long, alias = "ns", default_value = "")]
    namespace: String,
    #[arg(last = true)]
    rest: Vec<OsString>,
}

fuzz_target!(|data: &[u8]| {
    let args = data.split(|byte| *byte == 0).take(16).map(|arg| OsString::from_vec(arg.to_vec()));
    let args: Vec<_> = std::iter::once(OsString::from("fuzz")).chain(args).collect();
    match parse_with_set::<Flags>(args.iter().cloned()) {
        Ok((flags, set)) => {
            assert!(flags.log_level <= 5 && ["text", "json"].contains(&&*flags.log_format));
            assert!(set.contains("port") || flags.port == 9445);
        }
        Err(FlagError::Text(text)) => assert!(!text.is_empty()),
        Err(error @ FlagError::Usage { .. }) => {
            assert_eq!(error.exit_code(), 64);
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
    if let Some(text) = args[1].to_str() {
        let _ = parse_bool(text);
    }
});
