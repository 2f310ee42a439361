//! The commands that a message names, spelled so that they do what they say when they are pasted: with the flags by which
//! this one was told which table, where and how.

use clap::ArgMatches;
use clap::parser::ValueSource;

/// Flags that every `metashift layout` command of a message repeats, where this command was given them.
const TABLE_FLAGS: [&str; 5] = ["table", "companion", "endpoint", "region", "layout"];

/// Commands that start the deployed state machine unless they are told `--local`.
const STARTING: [&str; 2] = ["run", "repair"];

const PREFIX: &str = "metashift layout ";

/// What the named commands repeat.
#[derive(Debug, Clone, Default)]
pub(crate) struct Again {
    flags: String,
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
        let mut flags = String::new();
        for flag in TABLE_FLAGS.into_iter().filter(|flag| known(flag) && given(flag)) {
            let value = innermost.get_raw(flag).and_then(|mut values| values.next());
            let value = value.map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
            flags.extend([" --", flag, " ", &quoted(&value)]);
        }
        let server = known("endpoint") && innermost.contains_id("endpoint");
        let local = server || (known("local") && innermost.get_flag("local"));
        Self { flags, local }
    }

    /// `text` with every `metashift layout …` in it spelled out.
    pub(crate) fn spelled(&self, text: &str) -> String {
        let mut parts = text.split(PREFIX);
        let mut spelled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !(c.is_ascii_lowercase() || c == '-')).unwrap_or(part.len());
            let (command, rest) = part.split_at(end);
            spelled.push_str(PREFIX);
            spelled.push_str(command);
            spelled.push_str(&self.flags);
            if self.local && STARTING.contains(&command) && !rest.starts_with(" --local") {
                spelled.push_str(" --local");
            }
            spelled.push_str(rest);
        }
        spelled
    }
}

/// A value as a shell takes it.
fn quoted(value: &str) -> String {
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
        let again = Again { flags: " --table a --endpoint http://h:1".to_owned(), local: true };
        assert_eq!(
            again.spelled("list them with metashift layout rejects, then metashift layout run; metashift layout run --local -x"),
            "list them with metashift layout rejects --table a --endpoint http://h:1, then metashift layout run --table a \
             --endpoint http://h:1 --local; metashift layout run --table a --endpoint http://h:1 --local -x"
        );
        assert_eq!(Again::default().spelled("metashift layout run goes on"), "metashift layout run goes on");
        assert_eq!(again.spelled("metashift catalog run S"), "metashift catalog run S");
    }

    #[test]
    fn a_value_survives_the_shell() {
        assert_eq!(quoted("lake_prefix-v2"), "lake_prefix-v2");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
