//! Checks of the deployment against the code.
