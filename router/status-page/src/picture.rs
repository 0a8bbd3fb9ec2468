//! The data for the drawing of the ring: the share of each runner, and the owner of each slice.
//! No I/O.

/// Number of slices that the ring is cut into. A drawing cannot show more.
const SLICES: u16 = 720;

/// The share of all keys that each of the `nodes` runners owns, in the order of the ring's nodes.
/// The sum of the shares is 1.
pub(crate) fn shares(points: &[(u64, u16)], nodes: usize) -> Vec<f64> {
    let mut widths = vec![0_u128; nodes];
    let mut before = points.last().map_or(0, |&(position, _)| position);
    for &(position, node) in points {
        // Each point owns the hashes after the previous one; the first also owns those after the
        // last.
        widths[usize::from(node)] += u128::from(position.wrapping_sub(before));
        before = position;
    }
    let all = 2_f64.powi(64);
    widths.into_iter().map(|width| width as f64 / all).collect()
}

/// The owners of the slices around the ring: each entry is a node, and the number of consecutive
/// slices that it owns.
pub(crate) fn slices(points: &[(u64, u16)]) -> Vec<(u16, u16)> {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    let half = u64::MAX / (u64::from(SLICES) * 2);
    for slice in 0..u64::from(SLICES) {
        let middle = half * (slice * 2 + 1);
        let place = points.partition_point(|&(position, _)| position < middle);
        let Some(&(_, node)) = points.get(place).or(points.first()) else { break };
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

    #[test]
    fn a_point_owns_the_part_before_it_and_the_first_point_also_the_end_of_the_ring() {
        let quarter = 1 << 62;
        let points = [(quarter, 1), (2 * quarter, 0), (3 * quarter, 1)];
        assert_eq!(shares(&points, 2), [0.25, 0.75]);
        assert_eq!(slices(&points), [(1, 180), (0, 180), (1, 360)]);
        assert_eq!((shares(&[], 0), slices(&[])), (Vec::new(), Vec::new()));
    }
}
