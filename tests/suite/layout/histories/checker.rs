//! Is a history of one key that of one register? (Wing and Gong's search, with a memory of what was tried.)

use std::collections::HashSet;

/// A value of a key; `None`: it does not exist.
pub(crate) type Value = Option<String>;

/// What was asked and answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    /// A read that showed this.
    Read(Value),
    /// A change that was applied.
    Applied { expected: Value, new: Value },
    /// A change that was refused because the key had this value instead.
    Conflict { expected: Value, current: Value },
    /// A change whose answer was lost: it took place once after its begin, or never.
    Unknown { expected: Value, new: Value },
}

/// A call on one key, between two ticks of one clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) node: String,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) call: Call,
}

impl Operation {
    /// It need not have taken place.
    fn is_optional(&self) -> bool {
        matches!(self.call, Call::Unknown { .. })
    }

    /// The value after it, where it may take place on `state`.
    fn apply(&self, state: &Value) -> Option<Value> {
        match &self.call {
            Call::Read(value) => (state == value).then(|| state.clone()),
            Call::Applied { expected, new } | Call::Unknown { expected, new } => {
                (state == expected).then(|| new.clone())
            }
            Call::Conflict { expected, current } => {
                (state == current && current != expected).then(|| state.clone())
            }
        }
    }
}

/// Finds an order of the operations that one register explains; `Err` shows the history that has none.
pub(crate) fn check(key: &str, initial: Value, mut operations: Vec<Operation>) -> Result<(), String> {
    operations.sort_by_key(|operation| operation.begin);
    assert!(operations.len() <= 128, "{} operations on {key}: spread them over more keys", operations.len());
    let mut search = Search { operations: &operations, tried: HashSet::new() };
    if search.go(0, initial.clone()) {
        return Ok(());
    }
    let mut shown = format!("no order explains the history of {key:?}, which begins with {initial:?}:\n");
    for one in &operations {
        shown.push_str(&format!("  {:>6}–{:<6} {:<10} {:?}\n", one.begin, one.end, one.node, one.call));
    }
    Err(shown)
}

struct Search<'a> {
    operations: &'a [Operation],
    tried: HashSet<(u128, Value)>,
}

impl Search<'_> {
    fn go(&mut self, done: u128, state: Value) -> bool {
        let open = |n: usize| done & (1 << n) == 0;
        let left = || self.operations.iter().enumerate().filter(|(n, _)| open(*n));
        // Nothing that ended before another one began may come after it.
        let Some(first_end) = left().filter(|(_, one)| !one.is_optional()).map(|(_, one)| one.end).min()
        else {
            return true;
        };
        if !self.tried.insert((done, state.clone())) {
            return false;
        }
        let next: Vec<_> = left()
            .filter(|(_, one)| one.begin < first_end)
            .filter_map(|(n, one)| one.apply(&state).map(|after| (n, after)))
            .collect();
        next.into_iter().any(|(n, after)| self.go(done | (1 << n), after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn history(operations: &[(u64, u64, Call)]) -> Result<(), String> {
        let operations = operations.iter().map(|(begin, end, call)| Operation {
            node: "n".to_owned(),
            begin: *begin,
            end: *end,
            call: call.clone(),
        });
        check("k", value("0"), operations.collect())
    }

    fn applied(expected: &str, new: &str) -> Call {
        Call::Applied { expected: value(expected), new: value(new) }
    }

    fn unknown(expected: &str, new: &str) -> Call {
        Call::Unknown { expected: value(expected), new: value(new) }
    }

    fn read(text: &str) -> Call {
        Call::Read(value(text))
    }

    #[test]
    fn what_one_register_explains_is_accepted() {
        history(&[(0, 1, read("0")), (2, 3, applied("0", "1")), (4, 5, read("1"))]).unwrap();
        // A read beside a write may see either value.
        history(&[(0, 9, applied("0", "1")), (1, 2, read("0")), (3, 4, read("1"))]).unwrap();
        // A lost answer: it took place, also long after; or never.
        history(&[(0, 1, unknown("0", "1")), (2, 3, read("0")), (4, 5, read("1"))]).unwrap();
        history(&[(0, 1, unknown("0", "1")), (2, 3, read("0"))]).unwrap();
        history(&[(0, 1, applied("0", "")), (2, 3, applied("", "2")), (4, 5, read("2"))]).unwrap();
        let conflict = Call::Conflict { expected: value("9"), current: value("0") };
        history(&[(0, 1, conflict)]).unwrap();
    }

    #[test]
    fn what_no_register_explains_is_refused() {
        assert!(history(&[(0, 1, applied("0", "1")), (2, 3, read("0"))]).is_err(), "a lost write");
        assert!(history(&[(0, 1, applied("0", "")), (2, 3, read("0"))]).is_err(), "a revived key");
        assert!(history(&[(0, 1, applied("0", "1")), (2, 3, applied("0", "2"))]).is_err(), "two winners");
        let back = [(0, 9, applied("0", "1")), (1, 2, read("1")), (3, 4, read("0"))];
        assert!(history(&back).is_err(), "a read that goes back");
        let late = [(0, 1, read("1")), (2, 3, unknown("0", "1"))];
        assert!(history(&late).is_err(), "an effect before its cause");
        let conflict = Call::Conflict { expected: value("0"), current: value("0") };
        assert!(history(&[(0, 1, conflict)]).is_err(), "a conflict without one");
        let twice = [(0, 1, unknown("0", "1")), (2, 3, applied("1", "0")), (4, 5, read("1"))];
        assert!(history(&twice).is_err(), "one write that took place twice");
    }
}
