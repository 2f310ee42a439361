//! One file a command.

pub(crate) mod catalog;
pub(crate) mod demo;
pub(crate) mod layout;
pub(crate) mod sandbox;
