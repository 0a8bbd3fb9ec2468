//! Content on its way into the store. It is hashed, and gets the hash as its name: no other name is
//! trusted.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;

use porch_fn_image::is_digest;
use porch_fn_registry::{Hashed, MAX_DOCUMENT, has_digest};

use crate::error::{OnDisk as _, StoreError};
use crate::unpack::BUFFER;

/// Whether a file's content has this digest.
pub(crate) fn is_intact(file: &Path, digest: &str) -> Result<bool, StoreError> {
    let buffered = |file| BufReader::with_capacity(BUFFER, file);
    let found = File::open(file).and_then(|file| Hashed::new(buffered(file), digest).finish());
    Ok(found.on_disk("cannot read", file)? == digest)
}

pub(crate) fn has_size(file: &Path, size: u64) -> bool {
    fs::metadata(file).is_ok_and(|file| file.len() == size)
}

/// A small file. Larger ones count as absent.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(metadata) if metadata.len() > MAX_DOCUMENT => Ok(None),
        _ => fs::read(path).map(Some).on_disk("cannot read", path),
    }
}

/// The name of a file by the digest of its content, in the store and in archives.
pub(crate) fn name_of(digest: &str) -> String {
    digest.replace(':', "-")
}

/// A document of a folder of blobs. `None`: it is not there, or does not have its digest.
pub(crate) fn document_in(folder: &Path, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
    let bytes = if is_digest(digest) { read(&folder.join(name_of(digest)))? } else { None };
    Ok(bytes.filter(|bytes| has_digest(bytes, digest)))
}
