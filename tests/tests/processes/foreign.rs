//! Our binaries together with third-party programs: gRPC clients that use other libraries, KRM
//! functions that use other SDKs, kpt, kustomize, runc, a browser and Prometheus.

mod clients;
mod containers;
mod images;
mod kpt;
mod metrics;
mod packages;
mod status_page;

use porch_fn_tests::foreign;
use porch_fn_tests::image::{Image, Layer};

/// An image whose process returns its input.
fn cat() -> Image {
    Image::new(&["cat"]).layer(Layer::of_programs(&["cat"]))
}

/// The image of a KRM function of `tests/functions`.
fn function_image(name: &str) -> Image {
    let program = std::fs::read(foreign::function(name)).expect("a program");
    Image::new(&["/function"]).layer(Layer::new().file("function", 0o755, &program))
}
