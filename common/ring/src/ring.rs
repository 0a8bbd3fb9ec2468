//! The hash ring. It maps a key to a preference order: runners that may serve the key, best first.
//!
//! Each position has a preference order, which is computed once per membership change. A lookup is
//! one hash, one binary search and one slice.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

/// Version of the mapping from (runners, key) to a preference order. If you change the hashed
/// bytes, the hash, [`VIRTUAL_NODES`] or the tie rule, raise this version and regenerate the golden
/// vectors: each such change moves every image.
pub const HASH_SCHEME: u32 = 1;

/// Positions per runner. This number does not depend on the number of runners: otherwise each
/// membership change would move every image.
pub const VIRTUAL_NODES: u16 = 256;

/// Up to this many runners, a preference order lists all of them.
pub const FULL_LIST_NODES: usize = 50;

/// Length of a preference order with more than [`FULL_LIST_NODES`] runners.
pub const SUCCESSORS: usize = 16;

/// Largest number of runners on one ring: a preference order holds 16-bit indices.
pub const MAX_NODES: usize = u16::MAX as usize;

/// An immutable hash ring over a set of runners. A membership change builds a new ring.
///
/// It needs at most about 14 MB of memory with 1,000 runners, and 1.6 MB with 50.
#[derive(Debug)]
pub struct Ring {
    nodes: Vec<Arc<str>>,
    /// Each point's position, in order, and its runner.
    points: Vec<(u64, u16)>,
    /// One row of `row_len` node indices per point, in ring order.
    preferences: Vec<u16>,
    row_len: usize,
}

impl Ring {
    /// Builds the ring of these runners. Their names are the addresses from discovery: `host:port`,
    /// IPv6 in brackets. Duplicates count once, and the order of the input does not matter. Two
    /// spellings of one address are two runners. Runners above [`MAX_NODES`] are left out.
    pub fn new(nodes: impl IntoIterator<Item: Into<Arc<str>>>) -> Self {
        let mut nodes: Vec<Arc<str>> = nodes.into_iter().map(Into::into).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.truncate(MAX_NODES);

        let row_len = if nodes.len() <= FULL_LIST_NODES { nodes.len() } else { SUCCESSORS };
        let points = positions(&nodes);
        let preferences = preferences(&points, row_len);
        Self { nodes, points, preferences, row_len }
    }

    /// The runners on the ring, sorted. [`preference`](Self::preference) returns indices into them.
    pub fn nodes(&self) -> &[Arc<str>] {
        &self.nodes
    }

    /// Returns the runners for `key`, best first, as indices into [`nodes`](Self::nodes). With at
    /// most [`FULL_LIST_NODES`] runners, the list has all of them. With more, it has the first
    /// [`SUCCESSORS`]. It is empty only if the ring is empty.
    ///
    /// If a caller skips some runners, the others are in the same order as on a ring without the
    /// skipped runners. So a caller need not build a new ring when a runner becomes unhealthy.
    pub fn preference(&self, key: &str) -> &[u16] {
        let hash = xxh3_64(key.as_bytes());
        let next = self.points.partition_point(|&(position, _)| position < hash);
        // The first point owns the hashes after the last one, too.
        let start = if next == self.points.len() { 0 } else { next * self.row_len };
        self.preferences.get(start..start + self.row_len).unwrap_or_default()
    }

    /// Returns each point's position, in order, and its runner as an index into
    /// [`nodes`](Self::nodes), to draw the ring. Each point owns the hashes after the previous
    /// point up to its own; the first point also owns those after the last.
    pub fn points(&self) -> &[(u64, u16)] {
        &self.points
    }

    /// The runner that owns `key`; `None` when the ring is empty.
    pub fn owner(&self, key: &str) -> Option<&str> {
        let &first = self.preference(key).first()?;
        self.nodes.get(usize::from(first)).map(|node| &**node)
    }
}

/// Returns a number that identifies a set of runners, or 0 for no runners. `nodes` must be sorted.
/// The number has 48 bits, so that a metric, which is a 64-bit float, holds it exactly.
pub fn fingerprint(nodes: &[Arc<str>]) -> u64 {
    if nodes.is_empty() {
        return 0;
    }
    let text = format!("{HASH_SCHEME}\n{}", nodes.join("\n"));
    (xxh3_64(text.as_bytes()) >> 16).max(1)
}

/// All virtual nodes in ring order. Equal positions are ordered by node.
fn positions(nodes: &[Arc<str>]) -> Vec<(u64, u16)> {
    let mut positions = Vec::with_capacity(nodes.len() * usize::from(VIRTUAL_NODES));
    let mut bytes = Vec::new();
    for (node, index) in nodes.iter().zip(0..) {
        for virtual_node in 0..VIRTUAL_NODES {
            // The number has a fixed width, so no two (name, number) pairs have the same bytes.
            bytes.clear();
            bytes.extend_from_slice(node.as_bytes());
            bytes.extend_from_slice(&virtual_node.to_le_bytes());
            positions.push((xxh3_64(&bytes), index));
        }
    }
    positions.sort_unstable();
    positions
}

/// The first `row_len` distinct nodes from each position on, one row per position.
///
/// The row of a position is the row of the next position, with the position's own node moved to the
/// front. So the rows are computed backwards: each row costs one move instead of a search around
/// the ring.
fn preferences(positions: &[(u64, u16)], row_len: usize) -> Vec<u16> {
    if row_len == 0 {
        return Vec::new();
    }
    // The ring is closed: the next position after the last one is the first one. So begin with the
    // row of the first position. Every node has positions, so the row fills up.
    let mut row = Vec::with_capacity(row_len);
    for &(_, node) in positions {
        if !row.contains(&node) {
            row.push(node);
            if row.len() == row_len {
                break;
            }
        }
    }

    let mut flat = vec![0; positions.len() * row_len];
    for (&(_, node), out) in positions.iter().zip(flat.chunks_exact_mut(row_len)).rev() {
        // If the node is not in the row, the last node of the row drops out.
        let at = row.iter().position(|&held| held == node).unwrap_or(row_len - 1);
        row.copy_within(..at, 1);
        row[0] = node;
        out.copy_from_slice(&row);
    }
    flat
}
