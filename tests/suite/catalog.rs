//! Catalog migrations through the command and the library.
