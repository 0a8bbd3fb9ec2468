//! Compiles the filters of system calls, so that no sandbox has to do it at its start.

use std::env;
use std::fs::{self, File};
use std::path::Path;

use seccompiler::{TargetArch, compile_from_json};

fn main() {
    let arch = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets it");
    let target = TargetArch::try_from(&*arch).expect("a processor with a profile");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    for (source, name) in [(&*arch, "function"), ("host_network", "host_network")] {
        let source = format!("src/seccomp/{source}.json");
        println!("cargo::rerun-if-changed={source}");
        let file = File::open(&source).unwrap_or_else(|error| panic!("{source}: {error}"));
        let programs = compile_from_json(file, target).unwrap_or_else(|error| panic!("{source}: {error}"));
        let mut array = "&[\n".to_owned();
        for it in &programs[name] {
            let fields = format!("code: {}, jt: {}, jf: {}, k: {}", it.code, it.jt, it.jf, it.k);
            array += &["sock_filter {", &*fields, "},\n"].concat();
        }
        array.push(']');
        fs::write(Path::new(&out).join(format!("{name}.rs")), array).expect("a folder");
    }
}
