//! corruption
