//! Compiles the `.proto` files with protox, so that the build needs only cargo.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=evaluator.proto");
    println!("cargo:rerun-if-changed=shard.proto");
    let descriptors = protox::compile(["evaluator.proto", "shard.proto"], ["."])?;
    tonic_prost_build::configure()
        // Packages are large: keep them as slices of the received buffer.
        .bytes(".")
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
