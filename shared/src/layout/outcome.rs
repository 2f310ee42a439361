//! What a cancelled transaction means, decided from its reasons by action index and never from a message.

use super::transaction::{Role, Side, Transaction};

/// Why one action stood in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// It did not.
    None,
    /// Its condition failed; with the item's `val` where the item exists and `val` is binary.
    ConditionFailed(Option<Vec<u8>>),
    /// Another request on the item was in progress.
    Conflict,
    /// Throughput was exceeded.
    Throttled,
    /// The request itself is wrong for this item.
    Invalid,
    /// The caller may not do this.
    AccessDenied,
    /// A code that this version does not know.
    Other(String),
}

impl Reason {
    /// From a cancellation reason's `Code`.
    pub fn from_code(code: Option<&str>, current: Option<Vec<u8>>) -> Self {
        match code {
            None | Some("None") => Self::None,
            Some("ConditionalCheckFailed") => Self::ConditionFailed(current),
            Some("TransactionConflict") => Self::Conflict,
            Some("ThrottlingError" | "ProvisionedThroughputExceeded" | "RequestLimitExceeded") => {
                Self::Throttled
            }
            Some("ValidationError" | "ItemCollectionSizeLimitExceeded" | "DuplicateItem") => Self::Invalid,
            Some("AccessDenied") => Self::AccessDenied,
            Some(other) => Self::Other(other.to_owned()),
        }
    }
}

/// What a whole list of reasons says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancelled {
    /// An action can never succeed; its index.
    Invalid(usize),
    /// An action is not allowed; its index.
    AccessDenied(usize),
    /// An action failed with a code that is not known; its index.
    Unknown(usize),
    /// Throughput was exceeded: back off, send again.
    Throttled,
    /// Another request was in progress: back off, send again.
    Conflict,
    /// Only conditions failed; the indices.
    Conditions(Vec<usize>),
    /// No reason is given: nothing was applied, nothing says why.
    Unexplained,
}

/// Any reason that is not a failed condition decides first, the one that no retry mends before the others.
pub fn classify(reasons: &[Reason]) -> Cancelled {
    let position = |wanted: fn(&Reason) -> bool| reasons.iter().position(wanted);
    if let Some(index) = position(|reason| matches!(reason, Reason::Invalid)) {
        return Cancelled::Invalid(index);
    }
    if let Some(index) = position(|reason| matches!(reason, Reason::AccessDenied)) {
        return Cancelled::AccessDenied(index);
    }
    if let Some(index) = position(|reason| matches!(reason, Reason::Other(_))) {
        return Cancelled::Unknown(index);
    }
    if reasons.contains(&Reason::Throttled) {
        return Cancelled::Throttled;
    }
    if reasons.contains(&Reason::Conflict) {
        return Cancelled::Conflict;
    }
    let failed: Vec<_> = reasons
        .iter()
        .enumerate()
        .filter(|(_, reason)| matches!(reason, Reason::ConditionFailed(_)))
        .map(|(index, _)| index)
        .collect();
    if failed.is_empty() { Cancelled::Unexplained } else { Cancelled::Conditions(failed) }
}

/// Why a metadata node's mutation was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The target is not as expected; its value in the authority.
    Conflict(Option<Vec<u8>>),
    /// The guard is not as expected.
    GuardLost,
    /// The write barrier stands.
    BarrierHeld,
    /// v1's condition held and v2's did not, for this key.
    Divergence(String),
}

/// Reads a mutation's failed conditions.
///
/// The barrier speaks first, since it says that the node's whole view may be old; then the guard, then the target. A
/// v2 condition that failed alone is a divergence, whichever key it is about.
pub fn refusal(transaction: &Transaction, reasons: &[Reason], authority: Side) -> Option<Refusal> {
    let failed = |role: Role, side: Side| {
        transaction.actions.iter().zip(reasons).find_map(|(action, reason)| match reason {
            Reason::ConditionFailed(current) if action.role == role && action.side == side => {
                Some((action.key.as_str(), current.clone()))
            }
            _ => None,
        })
    };
    if failed(Role::Barrier, Side::V1).is_some() {
        return Some(Refusal::BarrierHeld);
    }
    let other = if authority == Side::V1 { Side::V2 } else { Side::V1 };
    if failed(Role::Guard, authority).is_some() {
        return Some(Refusal::GuardLost);
    }
    if let Some((_, current)) = failed(Role::Target, authority) {
        return Some(Refusal::Conflict(current));
    }
    let (key, _) = failed(Role::Guard, other).or_else(|| failed(Role::Target, other))?;
    Some(Refusal::Divergence(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::family::Layout;
    use super::super::transaction::{Change, Condition, after_marker, dual_before_marker, v1_only};
    use super::*;

    fn reasons(codes: &[&str]) -> Vec<Reason> {
        codes.iter().map(|code| Reason::from_code(Some(code), None)).collect()
    }

    #[test]
    fn each_list_of_reasons_has_its_own_meaning() {
        for (codes, meaning) in [
            (&["None", "ConditionalCheckFailed"][..], Cancelled::Conditions(vec![1])),
            (
                &["ConditionalCheckFailed", "None", "ConditionalCheckFailed"],
                Cancelled::Conditions(vec![0, 2]),
            ),
            (&["TransactionConflict", "None"], Cancelled::Conflict),
            (&["ThrottlingError", "None"], Cancelled::Throttled),
            (&["ProvisionedThroughputExceeded", "None"], Cancelled::Throttled),
            (&["ValidationError", "None"], Cancelled::Invalid(0)),
            (&["None", "AccessDenied"], Cancelled::AccessDenied(1)),
            (&["None", "SomethingNew"], Cancelled::Unknown(1)),
            (&["None", "None"], Cancelled::Unexplained),
            (&[], Cancelled::Unexplained),
            (&["TransactionConflict", "ThrottlingError"], Cancelled::Throttled),
            (&["TransactionConflict", "ValidationError"], Cancelled::Invalid(1)),
            (&["ConditionalCheckFailed", "TransactionConflict"], Cancelled::Conflict),
            (&["ConditionalCheckFailed", "ThrottlingError"], Cancelled::Throttled),
            (&["ConditionalCheckFailed", "ValidationError"], Cancelled::Invalid(1)),
        ] {
            assert_eq!(classify(&reasons(codes)), meaning, "{codes:?}");
        }
    }

    #[test]
    fn a_reason_without_a_code_is_no_reason() {
        assert_eq!(Reason::from_code(None, None), Reason::None);
    }

    /// Every subset of the five conditions of a guarded mutation before the marker, each to its outcome.
    #[test]
    fn every_combination_of_failed_conditions_before_the_marker_is_decided() {
        let layout = Layout::default();
        let change = Change { guard: Some(("g/k", b"g")), ..Change::new("t/k", Some(b"e"), Some(b"n")) };
        let transaction = dual_before_marker(&layout, &change);
        let (target_1, target_2, guard_1, guard_2, barrier) = (0, 1, 2, 3, 4);
        for failed in 0_u32..32 {
            let is = |index: usize| failed & (1 << index) != 0;
            let reasons: Vec<_> = (0..5)
                .map(|index| if is(index) { Reason::ConditionFailed(None) } else { Reason::None })
                .collect();
            let expected = if is(barrier) {
                Some(Refusal::BarrierHeld)
            } else if is(guard_1) {
                Some(Refusal::GuardLost)
            } else if is(target_1) {
                Some(Refusal::Conflict(None))
            } else if is(guard_2) {
                Some(Refusal::Divergence("g/k".to_owned()))
            } else if is(target_2) {
                Some(Refusal::Divergence("t/k".to_owned()))
            } else {
                None
            };
            assert_eq!(refusal(&transaction, &reasons, Side::V1), expected, "{failed:05b}");
        }
    }

    /// A signal has no condition, so it decides nothing: whatever else failed says what it says without one.
    #[test]
    fn a_signal_changes_no_outcome_in_any_combination_of_failed_conditions() {
        let layout = Layout::default();
        for guard in [None, Some(("g/k", &b"g"[..]))] {
            let plain = Change { guard, ..Change::new("t/k", Some(b"e"), Some(b"n")) };
            let signaled = Change { signal: Some(("s/k", b"s")), ..plain };
            for (with, without, authority) in [
                (v1_only(&signaled), v1_only(&plain), Side::V1),
                (dual_before_marker(&layout, &signaled), dual_before_marker(&layout, &plain), Side::V1),
                (after_marker(&layout, &signaled, true), after_marker(&layout, &plain, true), Side::V2),
                (after_marker(&layout, &signaled, false), after_marker(&layout, &plain, false), Side::V2),
            ] {
                let conditional = |transaction: &Transaction| -> Vec<usize> {
                    let actions = transaction.actions.iter().enumerate();
                    actions.filter(|(_, one)| one.condition != Condition::None).map(|(n, _)| n).collect()
                };
                let (of_with, of_without) = (conditional(&with), conditional(&without));
                assert_eq!(of_with.len(), of_without.len());
                for failed in 0_u32..1 << of_with.len() {
                    let reasons = |transaction: &Transaction, conditional: &[usize]| -> Vec<Reason> {
                        let mut reasons = vec![Reason::None; transaction.actions.len()];
                        for (bit, index) in conditional.iter().enumerate() {
                            if failed & (1 << bit) != 0 {
                                reasons[*index] = Reason::ConditionFailed(None);
                            }
                        }
                        reasons
                    };
                    let signaled = refusal(&with, &reasons(&with, &of_with), authority);
                    assert_eq!(signaled, refusal(&without, &reasons(&without, &of_without), authority));
                    assert_eq!(signaled.is_some(), failed != 0, "{failed:b} of {with:?}");
                }
            }
        }
    }

    #[test]
    fn a_signal_that_another_write_holds_is_waited_for_like_any_other_action() {
        let reasons = |signal: &str| {
            let codes = ["None", "None", signal, "None", "None"];
            classify(&codes.map(|code| Reason::from_code(Some(code), None)))
        };
        assert_eq!(reasons("TransactionConflict"), Cancelled::Conflict);
        assert_eq!(reasons("ThrottlingError"), Cancelled::Throttled);
        assert_eq!(reasons("AccessDenied"), Cancelled::AccessDenied(2));
        assert_eq!(reasons("ValidationError"), Cancelled::Invalid(2));
    }

    #[test]
    fn after_the_marker_v2_alone_refuses() {
        let layout = Layout::default();
        let change = Change { guard: Some(("g/k", b"g")), ..Change::new("t/k", Some(b"e"), Some(b"n")) };
        let transaction = after_marker(&layout, &change, true);
        let current = Reason::ConditionFailed(Some(b"newer".to_vec()));
        let decide = |reasons: &[Reason]| refusal(&transaction, reasons, Side::V2);
        assert_eq!(
            decide(&[current, Reason::None, Reason::None]),
            Some(Refusal::Conflict(Some(b"newer".to_vec())))
        );
        assert_eq!(
            decide(&[Reason::None, Reason::None, Reason::ConditionFailed(None)]),
            Some(Refusal::GuardLost)
        );
    }
}
