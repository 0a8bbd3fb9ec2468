//! Random numbers that are the same in each run, for generated tests.

/// A xorshift generator. The seed is not 0.
#[derive(Debug)]
pub struct Random(pub u64);

// === impl Random ===

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}
