//! The ring as a drawing: how much of it each runner owns, and the owner of each small slice. Pure.

use porch_fn_ring::Ring;

/// Slices that the ring is cut into: a drawing shows no more.
const SLICES: u16 = 720;

/// The ring of one membership.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Picture {
    /// The share of all keys that each runner owns, in the order of the ring's nodes. They add up to 1.
    pub(crate) shares: Vec<f64>,
    /// The owners of the slices: runs of a node and a number of slices, all around the ring.
    pub(crate) slices: Vec<(u16, u16)>,
}

impl Picture {
    /// Draws `ring`.
    pub(crate) fn of(ring: &Ring) -> Self {
        let points = ring.points();
        Self { shares: shares(&points, ring.nodes().len()), slices: slices(&points) }
    }
}

fn shares(points: &[(u64, u16)], nodes: usize) -> Vec<f64> {
    let mut widths = vec![0_u128; nodes];
    let mut before = points.last().map_or(0, |&(position, _)| position);
    for &(position, node) in points {
        if let Some(width) = widths.get_mut(usize::from(node)) {
            // Each point owns the hashes after the previous one; the first also owns those after the last.
            *width += u128::from(position.wrapping_sub(before));
        }
        before = position;
    }
    let all = 2_f64.powi(64);
    widths.into_iter().map(|width| width as f64 / all).collect()
}

fn slices(points: &[(u64, u16)]) -> Vec<(u16, u16)> {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    let half = u64::MAX / (u64::from(SLICES) * 2);
    for slice in 0..u64::from(SLICES) {
        let middle = half * (slice * 2 + 1);
        let place = points.partition_point(|&(position, _)| position < middle);
        let Some(&(_, node)) = points.get(place).or_else(|| points.first()) else { return runs };
        match runs.last_mut() {
            Some((last, length)) if *last == node => *length += 1,
            _ => runs.push((node, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use porch_fn_ring::Identity;

    const QUARTER: u64 = 1 << 62;

    #[test]
    fn a_point_owns_what_lies_before_it_and_the_first_what_lies_behind_the_last() {
        let points = [(QUARTER, 1), (2 * QUARTER, 0), (3 * QUARTER, 1)];
        assert_eq!(shares(&points, 2), [0.25, 0.75]);
        assert_eq!(slices(&points), [(1, 180), (0, 180), (1, 360)]);
    }

    #[test]
    fn a_real_ring_is_drawn_as_it_is_looked_up() {
        let ring = Ring::new((0..7).map(|n| Identity::from(format!("10.0.0.{n}:9445")))).unwrap();
        let picture = Picture::of(&ring);
        assert!((picture.shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!(picture.slices.iter().map(|&(_, length)| length).sum::<u16>(), SLICES);
        // Shares are what lookups come to.
        let keys = 20_000;
        let mut owned = [0.0; 7];
        for key in 0..keys {
            owned[usize::from(ring.preference(&key.to_string())[0])] += 1.0 / f64::from(keys);
        }
        for (share, owned) in picture.shares.iter().zip(owned) {
            assert!((share - owned).abs() < 0.015, "{share} {owned}");
        }
    }

    #[test]
    fn nobody_owns_an_empty_ring() {
        let ring = Ring::new([]).unwrap();
        assert_eq!(Picture::of(&ring), Picture::default());
    }
}
