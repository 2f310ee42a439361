//! Checks of the deployment against the code: state machines, template, policies, metrics, examples.
//!
//! A lint takes a document and returns what is wrong with it, one sentence a finding. Its test runs it on the
//! real document, which has to be clean, and on one that was broken on purpose, which has to be caught.

pub mod calls;
pub mod examples;
pub mod expression;
pub mod field_cases;
pub mod machine;
pub mod project;
pub mod template;
pub mod yaml;

/// What a lint found: one sentence each, empty when all is well.
pub type Findings = Vec<String>;
