//! Unpacks two arbitrary layers, one on top of the other. Nothing may be written outside their folder,
//! and nothing that has set-id bits, is a device or a pipe may be in it.

#![no_main]

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use porch_fn_images::unpack::{Size, decompressed, unpack};

const LIMITS: Size = Size { entries: 64, bytes: 1 << 20 };

/// A folder in memory for this process.
fn outer() -> PathBuf {
    let outer = Path::new("/dev/shm").join(format!("porch-fn-fuzz-{}", std::process::id()));
    let _ = fs::create_dir(&outer);
    outer
}

fn check(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let metadata = fs::symlink_metadata(entry.path()).unwrap();
        let kind = metadata.file_type();
        assert!(metadata.mode() & 0o6000 == 0 || kind.is_symlink());
        assert!(kind.is_file() || kind.is_dir() || kind.is_symlink());
        if kind.is_dir() {
            check(&entry.path());
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let outer = outer();
    let root = outer.join("root");
    fs::create_dir(&root).unwrap();
    let blocks = with_checksums(data);
    for layer in blocks.chunks(blocks.len().div_ceil(1024).max(1) * 512) {
        if let Ok(tar) = decompressed(layer) {
            let _ = unpack(tar, File::open(&root).unwrap().as_fd(), LIMITS);
        }
    }
    check(&root);
    let left: Vec<_> = fs::read_dir(&outer).unwrap().collect();
    assert_eq!(left.len(), 1, "something is beside the root");
    fs::remove_dir_all(root).unwrap();
});

/// Corrects the checksum of each block that may be a header. Otherwise nearly all inputs would end
/// at the first header.
fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut blocks = data.to_vec();
    for block in blocks.chunks_exact_mut(512) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
    blocks
}
