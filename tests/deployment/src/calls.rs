//! What each step calls.
/// x
pub const X: u8 = 0;
