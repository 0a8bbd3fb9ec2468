//! Unpacks arbitrary layers. Nothing may be written outside the layer's folder, and nothing that has
//! set-id bits or is a device of the machine may be in it.

#![no_main]

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use porch_fn_images::unpack::{Limits, decompressed, unpack};

const LIMITS: Limits = Limits { entries: 64, bytes: 1 << 20 };

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
        // Overlayfs's mark for a whiteout is the device 0/0.
        assert!(!kind.is_block_device() && !kind.is_fifo() && !kind.is_socket());
        assert!(!kind.is_char_device() || metadata.rdev() == 0);
        if kind.is_dir() {
            check(&entry.path());
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let outer = outer();
    let layer = outer.join("layer");
    fs::create_dir(&layer).unwrap();
    if let Ok(tar) = decompressed(with_checksums(data).as_slice()) {
        let _ = unpack(tar, File::open(&layer).unwrap().as_fd(), None, LIMITS);
    }
    check(&layer);
    let left: Vec<_> = fs::read_dir(&outer).unwrap().collect();
    assert_eq!(left.len(), 1, "something is beside the layer");
    fs::remove_dir_all(layer).unwrap();
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
