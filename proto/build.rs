//! Compiles the `.proto` files with protox, so that building needs cargo and nothing else.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=evaluator.proto");
    println!("cargo:rerun-if-changed=shard.proto");
    let descriptors = protox::compile(["evaluator.proto", "shard.proto"], ["."])?;
    tonic_prost_build::configure()
        // Package bytes are large: keep them as slices of the buffer they arrived in.
        .bytes(".")
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
