//! Suites that cross crates; see `tests/`.
