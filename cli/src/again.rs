//! The commands that a message names, spelled so that they do what they say when they are pasted: with the flags by which
//! this one was told which table, where and how.

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::connect::environment_names_a_server;

/// Flags that every `metashift layout` command of a message repeats, where this command was given them.
const TABLE_FLAGS: [&str; 5] = ["table", "companion", "endpoint", "region", "layout"];

/// Flags of the commands that start the deployed state machine.
const MACHINE_FLAGS: [&str; 1] = ["state_machine"];

/// Commands that start the deployed state machine unless they are told `--local`.
const STARTING: [&str; 2] = ["run", "repair"];

const PREFIX: &str = "metashift ";

/// What the named commands repeat.
#[derive(Debug, Clone, Default)]
pub(crate) struct Again {
    /// Of every `layout` command.
    flags: String,
    /// Of every command that starts the state machine, unless it is local.
    machine: String,
    /// Of `catalog run`, whose state machine is looked for in a region.
    region: String,
    local: bool,
}

impl Again {
    /// By the flags of this command.
    pub(crate) fn of(matches: &ArgMatches) -> Self {
        let mut innermost = matches;
        while let Some((_, deeper)) = innermost.subcommand() {
            innermost = deeper;
        }
        let known = |flag: &str| innermost.try_contains_id(flag).unwrap_or(false);
        let given = |flag: &str| innermost.value_source(flag) == Some(ValueSource::CommandLine);
        let spelled = |flags: &[&str]| {
            let mut spelled = String::new();
            for flag in flags.iter().filter(|flag| known(flag) && given(flag)) {
                let value = innermost.get_raw(flag).and_then(|mut values| values.next());
                let value = value.map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
                spelled.extend([" --", &flag.replace('_', "-"), " ", &quoted(&value)]);
            }
            spelled
        };
        let (flags, machine, region) = (spelled(&TABLE_FLAGS), spelled(&MACHINE_FLAGS), spelled(&["region"]));
        let server = known("endpoint") && (innermost.contains_id("endpoint") || environment_names_a_server());
        let local = server || (known("local") && innermost.get_flag("local"));
        Self { flags, machine, region, local }
    }

    #[cfg(test)]
    pub(crate) fn with_flags(self, flags: &str) -> Self {
        Self { flags: flags.to_owned(), ..self }
    }

    /// `text` with every `metashift layout …` and `metashift catalog run …` in it spelled out.
    pub(crate) fn spelled(&self, text: &str) -> String {
        let mut parts = text.split(PREFIX);
        let mut spelled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            spelled.push_str(PREFIX);
            let (group, after) = word(part);
            let (command, rest) = word(after.strip_prefix(' ').unwrap_or_default());
            if command.is_empty() || !matches!((group, command), ("layout", _) | ("catalog", "run")) {
                spelled.push_str(part);
                continue;
            }
            spelled.extend([group, " ", command]);
            spelled.push_str(if group == "layout" { &self.flags } else { "" });
            if STARTING.contains(&command) {
                if self.local && !rest.contains(" --local") {
                    spelled.push_str(" --local");
                } else if !self.local {
                    spelled.push_str(&self.machine);
                    spelled.push_str(if group == "catalog" { &self.region } else { "" });
                }
            }
            spelled.push_str(rest);
        }
        spelled
    }
}

/// The word that a text begins with, and the rest.
fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_lowercase() || c == '-')).unwrap_or(text.len());
    text.split_at(end)
}

/// A value as a shell takes it.
pub(crate) fn quoted(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_command_goes_to_the_same_table_and_stays_local() {
        let flags = " --table a --endpoint http://h:1".to_owned();
        let again = Again { flags, local: true, ..Again::default() };
        assert_eq!(
            again.spelled("list them with metashift layout rejects, then metashift layout run; metashift layout run --local -x"),
            "list them with metashift layout rejects --table a --endpoint http://h:1, then metashift layout run --table a \
             --endpoint http://h:1 --local; metashift layout run --table a --endpoint http://h:1 --local -x"
        );
        assert_eq!(Again::default().spelled("metashift layout run goes on"), "metashift layout run goes on");
        assert_eq!(again.spelled("metashift catalog run S"), "metashift catalog run --local S");
        assert_eq!(again.spelled("metashift catalog status S"), "metashift catalog status S");
        assert_eq!(again.spelled("metashift report, metashift "), "metashift report, metashift ");
    }

    #[test]
    fn a_named_command_goes_to_the_same_state_machine() {
        let (machine, region) = (" --state-machine arn:x".to_owned(), " --region eu-west-1".to_owned());
        let again = Again { machine, region, ..Again::default() };
        assert_eq!(
            again.spelled("metashift layout run, metashift layout status, metashift catalog run S"),
            "metashift layout run --state-machine arn:x, metashift layout status, metashift catalog run --state-machine arn:x \
             --region eu-west-1 S"
        );
    }

    #[test]
    fn a_value_survives_the_shell() {
        assert_eq!(quoted("lake_prefix-v2"), "lake_prefix-v2");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("a b;$(c)"), "'a b;$(c)'");
        assert_eq!(quoted("~/x"), "'~/x'");
    }
}
