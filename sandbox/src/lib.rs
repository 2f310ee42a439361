//! Embedded server, seeding and live writers.
