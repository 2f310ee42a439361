//! One file a command.

pub(crate) mod catalog;
pub(crate) mod demo;
pub(crate) mod layout;
pub(crate) mod report;
pub(crate) mod sandbox;

use metashift::{Error, ErrorKind, Result};

/// The manual page of the command and of every subcommand, one after another.
pub(crate) fn manual(mut command: clap::Command) -> Result<()> {
    fn render(command: &clap::Command, to: &mut Vec<u8>) -> std::io::Result<()> {
        clap_mangen::Man::new(command.clone()).render(to)?;
        command.get_subcommands().try_for_each(|sub| render(sub, to))
    }
    command.build();
    let mut page = Vec::new();
    render(&command, &mut page)
        .map_err(|error| Error::new(ErrorKind::Internal, "the manual page has no form").because(error))?;
    crate::output::put(String::from_utf8_lossy(&page));
    Ok(())
}
