//! One file a command.

pub(crate) mod catalog;
pub(crate) mod demo;
pub(crate) mod layout;
pub(crate) mod report;
pub(crate) mod sandbox;

use metashift::error::Class;
use metashift::{Error, ErrorKind, Result};

/// Every exit code: what it means, and the names of the errors that end with it.
pub(crate) fn exit_codes() -> Vec<(u8, &'static str, Vec<&'static str>)> {
    let done = (0, "done, or nothing to do", Vec::new());
    let failed = Class::ALL
        .iter()
        .map(|class| (class.exit_code(), class.meaning(), class.kinds().map(ErrorKind::name).collect()));
    std::iter::once(done).chain(failed).collect()
}

/// The exit codes below the help.
pub(crate) fn exit_codes_in_help() -> String {
    let lines = exit_codes().into_iter().map(|(code, means, _)| format!("  {code:>3}  {means}\n"));
    format!("Exit codes:\n{}", lines.collect::<String>().trim_end())
}

/// The exit codes as a section of the manual page.
fn exit_codes_in_manual() -> String {
    let entries = exit_codes().into_iter().map(|(code, means, names)| {
        let names = if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) };
        format!(".TP\n\\fB{code}\\fR\n{means}{names}\n")
    });
    format!(".SH \"EXIT STATUS\"\n{}", entries.collect::<String>())
}

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
    page.extend(exit_codes_in_manual().into_bytes());
    crate::output::put(String::from_utf8_lossy(&page));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_lists_every_exit_code_with_the_errors_that_end_with_it() {
        let readme = include_str!("../../README.md");
        let section = readme.split("\n## ").find(|section| section.starts_with("Exit codes")).unwrap();
        let rows: Vec<_> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
        let expected = exit_codes().into_iter().map(|(code, means, names)| {
            let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
            let cells = [code.to_string(), means.to_owned(), names.join(" ")];
            cells.iter().fold("|".to_owned(), |row, cell| match &**cell {
                "" => row + " |",
                cell => row + " " + cell + " |",
            })
        });
        assert_eq!(rows, expected.collect::<Vec<_>>());
    }

    #[test]
    fn every_kind_of_error_ends_with_a_listed_code() {
        let listed: Vec<_> = exit_codes().into_iter().flat_map(|(_, _, names)| names).collect();
        assert_eq!(listed.len(), ErrorKind::ALL.len());
        let codes: Vec<_> = exit_codes().into_iter().map(|(code, ..)| code).collect();
        assert!(codes.is_sorted(), "{codes:?}");
        assert!(ErrorKind::ALL.iter().all(|kind| codes.contains(&kind.exit_code())));
    }
}
