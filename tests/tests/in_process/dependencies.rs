//! What the programs of a cluster link. The runner's token creates pods, so it must not also run
//! images itself.

use std::process::Command;

/// All packages that this one is built from, with its default features.
fn dependencies(package: &str) -> String {
    let args = ["tree", "--offline", "--edges", "normal,build", "--prefix", "none", "--package", package];
    let ended = Command::new(env!("CARGO")).args(args).output().expect("cargo runs");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).expect("text")
}

#[test]
fn the_runner_links_neither_sandbox_nor_image_store() {
    for program in ["porch-fn-runner", "porch-fn-router", "wrapper-server"] {
        let packages = dependencies(program);
        assert!(packages.starts_with(program), "{packages}");
        for unwanted in ["porch-fn-sandbox ", "porch-fn-images ", "nix ", "seccompiler ", "tar "] {
            assert!(!packages.lines().any(|line| line.starts_with(unwanted)), "{program} has {unwanted}");
        }
    }
    let packages = dependencies("porch-fn");
    assert!(packages.contains("porch-fn-sandbox ") && packages.contains("porch-fn-images "));
}
