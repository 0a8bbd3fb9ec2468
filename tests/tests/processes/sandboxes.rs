//! Function images in sandboxes, as root and as an ordinary user.

mod engine;
mod hostile;
mod images;
mod run;
mod trees;
mod up;

use std::process::Output;

use porch_fn_tests::image::{Image, Layer};

const NAME: &str = "example.com/functions/f:v1";

/// An image with a shell and a few programs of this machine, whose process is this script.
fn shell(script: &str) -> Image {
    Image::new(&["/function"]).layer(programs()).layer(Layer::new().script("function", script))
}

fn programs() -> Layer {
    Layer::of_programs(&[
        "sh", "cat", "id", "ls", "touch", "sleep", "head", "bash", "env", "dd", "grep", "setpriv", "setsid",
        "tr", "unshare",
    ])
}

fn stdout(ended: &Output) -> String {
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

fn stderr(ended: &Output) -> String {
    String::from_utf8_lossy(&ended.stderr).into_owned()
}
