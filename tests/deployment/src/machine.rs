//! Lints of one state machine: guards of every task, names, transitions, variables, the event budget, the barrier.

use std::collections::{BTreeMap, BTreeSet};

use metashift::ErrorKind;
use metashift::error::Class;
use serde_json::{Map, Value};

use crate::{Findings, expression};

/// Most segments of a plan, and so most iterations of a map over segments.
pub const MOST_SEGMENTS: u64 = 256;

/// Events that an execution's history may hold: the service ends an execution that exceeds them.
pub const MOST_EVENTS: u64 = 25_000;

/// Most bytes of state that the project allows itself (the service allows 256 KiB).
pub const MOST_STATE: usize = 32_768;

/// Names that are not the project's own and that Retry and Catch may use.
pub const PLATFORM_ERRORS: &[&str] = &[
    "Lambda.AWSLambdaException",
    "Lambda.ClientExecutionTimeoutException",
    "Lambda.SdkClientException",
    "Lambda.ServiceException",
    "Lambda.TooManyRequestsException",
    "States.ALL",
    "States.Timeout",
];

/// One state, with the states it lives beside.
#[derive(Debug, Clone, Copy)]
pub struct State<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its definition.
    pub body: &'a Value,
    /// The map that it is a part of.
    pub map: Option<&'a str>,
}

impl<'a> State<'a> {
    fn kind(&self) -> &'a str {
        text(self.body, "Type")
    }

    fn list(&self, field: &str) -> &'a [Value] {
        list(self.body, field)
    }

    fn invokes_lambda(&self) -> bool {
        text(self.body, "Resource").ends_with(":lambda:invoke")
    }

    /// Where it goes, and what is assigned on the way.
    fn edges(&self) -> Vec<(&'a str, BTreeSet<&'a str>)> {
        let assigned = |value: &'a Value| -> BTreeSet<&'a str> {
            fields(value, "Assign").map(|(name, _)| name).collect()
        };
        let mut edges = Vec::new();
        for field in ["Next", "Default"] {
            if let Some(next) = self.body.get(field).and_then(Value::as_str) {
                edges.push((next, assigned(self.body)));
            }
        }
        for field in ["Choices", "Catch"] {
            edges.extend(self.list(field).iter().map(|entry| (text(entry, "Next"), assigned(entry))));
        }
        edges
    }
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn number(value: &Value, field: &str) -> Option<u64> {
    value.get(field).and_then(Value::as_u64)
}

fn fields<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let object: Option<&'a Map<String, Value>> = value.get(field).and_then(Value::as_object);
    object.into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

fn error_names(entry: &Value) -> impl Iterator<Item = &str> {
    list(entry, "ErrorEquals").iter().filter_map(Value::as_str)
}

/// Every state, the outer ones first.
pub fn states(machine: &Value) -> Vec<State<'_>> {
    let outer: Vec<_> =
        fields(machine, "States").map(|(name, body)| State { name, body, map: None }).collect();
    let inner = outer.iter().filter(|state| state.kind() == "Map").flat_map(|state| {
        let processor = state.body.get("ItemProcessor").unwrap_or(&Value::Null);
        fields(processor, "States").map(|(name, body)| State { name, body, map: Some(state.name) })
    });
    let inner: Vec<_> = inner.collect();
    outer.into_iter().chain(inner).collect()
}

fn start<'a>(machine: &'a Value, map: Option<&str>) -> &'a str {
    match map {
        None => text(machine, "StartAt"),
        Some(map) => machine
            .pointer(&format!("/States/{map}/ItemProcessor/StartAt"))
            .and_then(Value::as_str)
            .unwrap_or_default(),
    }
}

/// Every task has a time-out, retries and a catch for everything; every map has that catch.
pub fn unguarded(machine: &Value) -> Findings {
    let mut found = Findings::new();
    for state in states(machine) {
        let task = state.kind() == "Task";
        if task && number(state.body, "TimeoutSeconds").is_none() {
            found.push(format!("{} has no TimeoutSeconds", state.name));
        }
        if task && state.list("Retry").is_empty() {
            found.push(format!("{} has no Retry", state.name));
        }
        let catches_all = state.list("Catch").last().is_some_and(|last| error_names(last).eq(["States.ALL"]));
        if (task || state.kind() == "Map") && !catches_all {
            found.push(format!("{} does not catch States.ALL", state.name));
        }
    }
    found
}

/// Every retrier says how often, how long at most and with full jitter; States.ALL stands alone and last.
pub fn loose_retries(machine: &Value) -> Findings {
    let mut found = Findings::new();
    for state in states(machine) {
        for (index, retrier) in state.list("Retry").iter().enumerate() {
            let at = format!("{}'s retrier {index}", state.name);
            let Some(attempts) = number(retrier, "MaxAttempts") else {
                found.push(format!("{at} has no MaxAttempts"));
                continue;
            };
            if attempts > 0 {
                if text(retrier, "JitterStrategy") != "FULL" {
                    found.push(format!("{at} does not say JitterStrategy FULL"));
                }
                let interval = number(retrier, "IntervalSeconds").unwrap_or(0);
                if interval < 1 || number(retrier, "MaxDelaySeconds").is_none_or(|most| most <= interval) {
                    found.push(format!("{at} has no MaxDelaySeconds above its IntervalSeconds"));
                }
                if retrier.get("BackoffRate").and_then(Value::as_f64).is_none_or(|rate| rate < 1.5) {
                    found.push(format!("{at} does not back off"));
                }
            }
            let all = error_names(retrier).any(|name| name == "States.ALL");
            if all && (list(retrier, "ErrorEquals").len() > 1 || index + 1 < state.list("Retry").len()) {
                found.push(format!("{at} names States.ALL, which has to stand alone and last"));
            }
        }
    }
    found
}

/// Every task that invokes a function names every error kind once and retries it as its class says: `RetryLater`
/// is retried, `SomebodyElse` at most three times, nothing else at all. What has no name (a crash) is `States.ALL`.
pub fn misjudged_errors(machine: &Value) -> Findings {
    let mut found = Findings::new();
    for state in states(machine).into_iter().filter(State::invokes_lambda) {
        for kind in ErrorKind::ALL {
            let attempts: Vec<_> = state
                .list("Retry")
                .iter()
                .filter(|retrier| error_names(retrier).any(|name| name == kind.name()))
                .filter_map(|retrier| number(retrier, "MaxAttempts"))
                .collect();
            let fits = match (kind.class(), attempts.as_slice()) {
                (Class::RetryLater, [attempts]) => *attempts >= 1,
                (Class::SomebodyElse, [attempts]) => (1..=3).contains(attempts),
                (_, [attempts]) => *attempts == 0,
                _ => false,
            };
            if !fits {
                found.push(format!("{} retries {kind} {attempts:?} times", state.name));
            }
        }
        if state.list("Retry").last().is_none_or(|last| !error_names(last).eq(["States.ALL"])) {
            found.push(format!("{} has no retrier for crashes", state.name));
        }
    }
    found
}

/// Every name in a Retry, a Catch or a Fail.
pub fn names(machine: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for state in states(machine) {
        for entry in state.list("Retry").iter().chain(state.list("Catch")) {
            names.extend(error_names(entry).map(str::to_owned));
        }
        let error = text(state.body, "Error");
        if state.kind() == "Fail" && expression::body(error).is_none() {
            names.insert(error.to_owned());
        }
    }
    names
}

/// The rule: a machine's names are exactly the code's error kinds and the platform's names listed here. Neither may
/// be missing: a kind that no machine names would never be retried or reported as what it is.
pub fn unknown_or_missing_names(machine: &Value) -> Findings {
    let known: BTreeSet<String> = ErrorKind::ALL
        .iter()
        .map(|kind| kind.name())
        .chain(PLATFORM_ERRORS.iter().copied())
        .map(str::to_owned)
        .collect();
    let used = names(machine);
    let unknown = used.difference(&known).map(|name| format!("{name} is no error of the code"));
    let missing = known.difference(&used).map(|name| format!("{name} is named nowhere"));
    unknown.chain(missing).collect()
}

/// States that do not exist, are reached by nothing, end nowhere, or share a name.
pub fn broken_transitions(machine: &Value) -> Findings {
    let mut found = Findings::new();
    let all = states(machine);
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for state in &all {
        *count.entry(state.name).or_default() += 1;
    }
    found.extend(
        count.iter().filter(|(_, n)| **n > 1).map(|(name, _)| format!("two states are called {name}")),
    );
    let scopes: BTreeSet<Option<&str>> = all.iter().map(|state| state.map).collect();
    for scope in scopes {
        let members: BTreeMap<&str, State<'_>> =
            all.iter().filter(|state| state.map == scope).map(|state| (state.name, *state)).collect();
        let mut reached = BTreeSet::new();
        let mut open = vec![start(machine, scope)];
        while let Some(name) = open.pop() {
            if !reached.insert(name) {
                continue;
            }
            match members.get(name) {
                Some(state) => open.extend(state.edges().into_iter().map(|(next, _)| next)),
                None => found.push(format!("{name:?} is no state of {}", scope.unwrap_or("the machine"))),
            }
        }
        for (name, state) in &members {
            if !reached.contains(name) {
                found.push(format!("{name} is reached by nothing"));
            }
            let ends = state.body.get("End") == Some(&Value::Bool(true))
                || matches!(state.kind(), "Succeed" | "Fail");
            if ends != state.edges().is_empty() && state.kind() != "Map" && state.kind() != "Task"
                || !ends && state.edges().is_empty()
            {
                found.push(format!("{name} has to end or to go on"));
            }
        }
    }
    found
}

/// An expression of a state, where it stands, and whether a result or an error is at hand there.
struct Placed<'a> {
    at: String,
    text: &'a str,
    members: &'static [&'static str],
    sibling: Option<(&'a str, BTreeSet<&'a str>)>,
}

fn collect<'a>(
    value: &'a Value,
    at: &str,
    members: &'static [&'static str],
    sibling: Option<(&'a str, BTreeSet<&'a str>)>,
    out: &mut Vec<Placed<'a>>,
) {
    match value {
        Value::String(string) => {
            if let Some(text) = expression::body(string) {
                out.push(Placed { at: at.to_owned(), text, members, sibling });
            } else if string.contains("{%") || string.contains("%}") {
                out.push(Placed { at: at.to_owned(), text: "'", members, sibling });
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, at, members, sibling.clone(), out)),
        Value::Object(object) => {
            object.values().for_each(|item| collect(item, at, members, sibling.clone(), out));
        }
        _ => {}
    }
}

const BEFORE: &[&str] = &["input", "context"];
const AFTER: &[&str] = &["input", "context", "result"];
const CAUGHT: &[&str] = &["input", "context", "errorOutput"];

fn placed<'a>(state: &State<'a>) -> Vec<Placed<'a>> {
    let mut out = Vec::new();
    let has_result = matches!(state.kind(), "Task" | "Map" | "Pass");
    let after = if has_result { AFTER } else { BEFORE };
    let mut outcome = |value: &'a Value, at: &str, members: &'static [&'static str]| {
        let names: BTreeSet<&str> = fields(value, "Assign").map(|(name, _)| name).collect();
        for (name, assigned) in fields(value, "Assign") {
            let others = names.iter().copied().filter(|other| *other != name).collect();
            collect(assigned, &format!("{at}, Assign {name}"), members, Some((name, others)), &mut out);
        }
        if let Some(output) = value.get("Output") {
            collect(output, &format!("{at}, Output"), members, None, &mut out);
        }
    };
    outcome(state.body, state.name, after);
    for entry in state.list("Catch") {
        outcome(entry, &format!("{}, Catch", state.name), CAUGHT);
    }
    for entry in state.list("Choices") {
        outcome(entry, &format!("{}, Choices", state.name), BEFORE);
    }
    for field in ["Arguments", "Items", "ItemSelector", "Seconds", "Error", "Cause"] {
        if let Some(value) = state.body.get(field) {
            collect(value, &format!("{}, {field}", state.name), BEFORE, None, &mut out);
        }
    }
    for entry in state.list("Choices") {
        collect(
            entry.get("Condition").unwrap_or(&Value::Null),
            &format!("{}, Condition", state.name),
            BEFORE,
            None,
            &mut out,
        );
    }
    out
}

/// Variables that some path leaves unassigned before they are read, parts of `$states` that are not there,
/// expressions that Step Functions does not understand, and assignments that depend on the order within one Assign.
pub fn undefined_variables(machine: &Value) -> Findings {
    let all = states(machine);
    let universe: BTreeSet<&str> =
        all.iter().flat_map(|state| state.edges().into_iter().flat_map(|(_, names)| names)).collect();
    let universe: BTreeSet<&str> = universe
        .into_iter()
        .chain(all.iter().flat_map(|state| fields(state.body, "Assign").map(|(name, _)| name)))
        .collect();
    let mut known: BTreeMap<(Option<&str>, &str), BTreeSet<&str>> = BTreeMap::new();
    for state in &all {
        known.insert((state.map, state.name), universe.clone());
    }
    known.insert((None, start(machine, None)), BTreeSet::new());
    loop {
        let mut changed = false;
        for state in &all {
            let here = known.get(&(state.map, state.name)).cloned().unwrap_or_default();
            let mut flows: Vec<(Option<&str>, &str, BTreeSet<&str>)> = state
                .edges()
                .into_iter()
                .map(|(next, assigned)| (state.map, next, here.union(&assigned).copied().collect()))
                .collect();
            if state.kind() == "Map" {
                flows.push((Some(state.name), start(machine, Some(state.name)), here.clone()));
            }
            for (scope, next, flow) in flows {
                if let Some(entry) = known.get_mut(&(scope, next)) {
                    let met: BTreeSet<&str> = entry.intersection(&flow).copied().collect();
                    changed |= met.len() != entry.len();
                    *entry = met;
                }
            }
        }
        if !changed {
            break;
        }
    }
    let mut found = Findings::new();
    for state in &all {
        let here = known.get(&(state.map, state.name)).cloned().unwrap_or_default();
        for expression in placed(state) {
            let uses = expression::read(expression.text);
            found.extend(uses.problems.iter().map(|problem| format!("{}: {problem}", expression.at)));
            for variable in &uses.variables {
                if !here.contains(variable.as_str()) {
                    found.push(format!("{}: ${variable} may be unassigned", expression.at));
                }
                if let Some((_, others)) = &expression.sibling
                    && others.contains(variable.as_str())
                {
                    found.push(format!(
                        "{}: ${variable} is assigned beside it and has its old value",
                        expression.at
                    ));
                }
            }
            for member in uses.states.iter().filter(|member| !expression.members.contains(&member.as_str())) {
                found.push(format!("{}: there is no $states.{member}", expression.at));
            }
        }
        if let Some(map) = state.map {
            let outer = known.get(&(None, map)).cloned().unwrap_or_default();
            let own = state.edges().into_iter().flat_map(|(_, names)| names).collect::<BTreeSet<_>>();
            found.extend(
                own.intersection(&outer)
                    .map(|name| format!("{}: ${name} hides the outer variable", state.name)),
            );
        }
    }
    found
}

/// Most events that one visit of a state adds to the history, all retries used.
fn events(state: &State<'_>) -> u64 {
    let retries: u64 = state.list("Retry").iter().filter_map(|retrier| number(retrier, "MaxAttempts")).sum();
    match state.kind() {
        "Task" => 2 + 3 * (1 + retries),
        "Map" => 4,
        "Fail" => 1,
        _ => 2,
    }
}

/// Every loop is bounded, and what a whole execution may spend stays under the history's limit even if every
/// attempt of every task fails as often as its retries allow.
pub fn event_budget(machine: &Value) -> Findings {
    let mut found = Findings::new();
    let all = states(machine);
    let entry = machine.pointer(&format!("/States/{}", start(machine, None))).unwrap_or(&Value::Null);
    let limit = |name: &str| entry.pointer(&format!("/Assign/limits/{name}")).and_then(Value::as_u64);
    let outer: Vec<_> = all.iter().filter(|state| state.map.is_none()).copied().collect();
    let twice: u64 = outer.iter().map(|state| 2 * events(state)).sum();
    let looping: Vec<_> = outer.iter().filter(|state| returns_to(state, &outer)).collect();
    for state in &looping {
        let cycle: Vec<_> = looping
            .iter()
            .filter(|other| reaches(state, other.name, &outer) && reaches(other, state.name, &outer))
            .collect();
        let conditions: Vec<&str> = cycle
            .iter()
            .flat_map(|state| state.list("Choices").iter().map(|rule| text(rule, "Condition")))
            .collect();
        let turn: u64 = cycle.iter().map(|state| events(state)).sum();
        let counted = conditions
            .iter()
            .filter_map(|condition| condition.split_once("$asked >= "))
            .find_map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok());
        let spent =
            conditions.iter().any(|condition| condition.contains("$used + $limits.turn > $limits.events"));
        let once = conditions.iter().any(|condition| condition.contains("$phase = "));
        match counted {
            Some(turns) if turns * turn > 20_000 => {
                found.push(format!("{}: {turns} turns of {turn} events", state.name));
            }
            Some(_) => {}
            None if spent && limit("turn").is_none_or(|most| turn > most) => {
                found.push(format!(
                    "{}: a turn may take {turn} events, limits.turn says {:?}",
                    state.name,
                    limit("turn")
                ));
            }
            None if spent || once => {}
            None => found.push(format!("{} is in a loop without a bound", state.name)),
        }
    }
    let maps: Vec<_> = outer.iter().filter(|state| state.kind() == "Map").collect();
    if maps.is_empty() && limit("events").is_none() {
        return found;
    }
    let (Some(most), Some(turn), Some(iteration)) = (limit("events"), limit("turn"), limit("iteration"))
    else {
        found.push("the first state assigns no limits".to_owned());
        return found;
    };
    if most > 20_000 || most + twice > MOST_EVENTS {
        found.push(format!("{most} events in maps and {twice} outside exceed the limits"));
    }
    for map in maps {
        let inner: Vec<_> = all.iter().filter(|state| state.map == Some(map.name)).collect();
        let waits = inner.iter().filter(|state| state.kind() == "Wait").count() as u64;
        let worst: u64 = inner
            .iter()
            .map(|state| match state.kind() {
                "Task" | "Wait" => events(state),
                "Choice" => events(state) * (1 + waits),
                _ => 0,
            })
            .sum();
        let around: u64 =
            2 + inner.iter().filter(|state| state.kind() == "Pass").map(|state| events(state)).sum::<u64>();
        if worst > turn || around > iteration {
            found.push(format!(
                "{}: a turn may take {worst} and an iteration {around} events more than the limits say",
                map.name
            ));
        }
        let iterations = match text(map.body, "Items") {
            "{% [0..$plan.segments - 1] %}" => MOST_SEGMENTS,
            "{% [0..2 * $plan.segments - 1] %}" => 2 * MOST_SEGMENTS,
            other => {
                found.push(format!("{}: no bound is known for {other}", map.name));
                continue;
            }
        };
        if iterations * (turn + iteration) > most {
            found.push(format!(
                "{}: a fresh execution has no room for one turn of each of {iterations} iterations",
                map.name
            ));
        }
        let stops = inner.iter().flat_map(|state| state.list("Choices")).any(|rule| {
            let condition = text(rule, "Condition");
            condition.contains("$turns >= $turnLimit")
                && condition.contains("$used + $limits.turn > $allowance")
        });
        let counts = inner.iter().filter(|state| state.kind() == "Task").all(|state| {
            state
                .body
                .pointer("/Assign/used")
                .and_then(Value::as_str)
                .is_some_and(|used| used.contains("3 * $states.context.State.RetryCount"))
        });
        if !stops || !counts {
            found.push(format!("{}: its turns do not stop at what they have spent", map.name));
        }
        let before: Vec<_> =
            outer.iter().filter(|state| state.edges().iter().any(|(next, _)| *next == map.name)).collect();
        let gated = matches!(before.as_slice(), [gate] if gate.list("Choices").iter().any(|rule|
            text(rule, "Condition").contains("$limits.events - $spent >=") && fields(rule, "Assign").any(|(name, _)| name == "allowance")
                && fields(rule, "Assign").any(|(name, _)| name == "turnLimit")));
        if !gated {
            found.push(format!("{} is entered without asking for room", map.name));
        }
    }
    found
}

fn reaches(from: &State<'_>, target: &str, among: &[State<'_>]) -> bool {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = from.edges().into_iter().map(|(next, _)| next).collect();
    while let Some(name) = open.pop() {
        if name == target {
            return true;
        }
        if seen.insert(name) {
            open.extend(
                among
                    .iter()
                    .filter(|state| state.name == name)
                    .flat_map(|state| state.edges().into_iter().map(|(next, _)| next)),
            );
        }
    }
    false
}

fn returns_to(state: &State<'_>, among: &[State<'_>]) -> bool {
    reaches(state, state.name, among)
}

/// From install-barrier on no end is reached but through release-barrier, the read checks after the marker, or a
/// hand-over; and nothing installs a barrier before its watchdog was started.
pub fn unreleased_barrier(machine: &Value) -> Findings {
    let mut found = Findings::new();
    let all = states(machine);
    let invoking = |step: &str| -> BTreeSet<&str> {
        all.iter()
            .filter(|state| {
                state.body.pointer("/Arguments/FunctionName").and_then(Value::as_str) == Some(step)
            })
            .map(|state| state.map.unwrap_or(state.name))
            .collect()
    };
    let installing = invoking("${InstallBarrierArn}");
    if installing.is_empty() {
        return found;
    }
    let safe: BTreeSet<&str> = invoking("${ReleaseBarrierArn}")
        .into_iter()
        .chain(invoking("${VerifyPrefixReadsArn}"))
        .chain(["HandedOver"])
        .collect();
    for state in &all {
        for (next, _) in state.edges().into_iter().filter(|(next, _)| installing.contains(next)) {
            let watched = |name: &str| {
                text(machine.pointer(&format!("/States/{name}")).unwrap_or(&Value::Null), "Resource")
                    .ends_with(":states:startExecution")
            };
            let caught = all.iter().any(|other| {
                watched(other.name)
                    && other.list("Catch").iter().any(|entry| text(entry, "Next") == state.name)
            });
            if !watched(state.name) && !caught {
                found.push(format!("{} reaches {next} without a watchdog", state.name));
            }
        }
    }
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = installing.iter().copied().collect();
    while let Some(name) = open.pop() {
        if safe.contains(name) || !seen.insert(name) {
            continue;
        }
        for state in all.iter().filter(|state| state.map.is_none() && state.name == name) {
            let next = state.edges();
            if next.is_empty() {
                found.push(format!("{name} ends a run whose barrier may stand"));
            }
            open.extend(next.into_iter().map(|(next, _)| next));
        }
    }
    found
}

/// A cause is taken only where it may be missing, empty, no JSON, or 32 KB long.
pub fn trusted_causes(machine: &Value) -> Findings {
    let mut found = Findings::new();
    for state in states(machine) {
        for expression in placed(&state) {
            let text = expression.text;
            if !text.contains("errorOutput") {
                continue;
            }
            for field in ["Error", "Cause"] {
                let whole = format!("$states.errorOutput.{field}");
                let guarded = format!("$exists({whole}) ? ");
                let cut = format!("$substring($string({whole}), 0, ");
                if text.contains(&whole) && !text.contains(&guarded) {
                    found.push(format!("{}: {field} may be missing", expression.at));
                }
                if field == "Cause" && text.contains(&whole) && !text.contains(&cut) {
                    found.push(format!("{}: {field} may be 32 KB", expression.at));
                }
            }
            if text.contains("$parse(") || text.contains("errorOutput.Cause.") {
                found.push(format!("{}: a cause may be no JSON", expression.at));
            }
        }
    }
    found
}

/// The list of a map's results stays under the state's limit with the most iterations and the largest numbers.
pub fn large_results(machine: &Value) -> Findings {
    let mut found = Findings::new();
    let all = states(machine);
    for map in all.iter().filter(|state| state.kind() == "Map") {
        let iterations =
            if text(map.body, "Items").contains("2 *") { 2 * MOST_SEGMENTS } else { MOST_SEGMENTS };
        for report in
            all.iter().filter(|state| state.map == Some(map.name) && state.body.get("End").is_some())
        {
            let Some(output) = report.body.get("Output").and_then(Value::as_object) else {
                found.push(format!("{} returns its whole input", report.name));
                continue;
            };
            let each: usize = output
                .iter()
                .map(|(name, value)| {
                    let digits = match (name.as_str(), value.as_str().and_then(expression::body)) {
                        ("status", _) => 10,
                        ("events", _) => 5,
                        (_, Some(text)) if text.starts_with("$counts.") => 12,
                        _ => MOST_STATE,
                    };
                    name.len() + 4 + digits
                })
                .sum();
            let bytes = usize::try_from(iterations).unwrap_or(usize::MAX).saturating_mul(each + 2);
            if bytes > MOST_STATE {
                found.push(format!("{}: {iterations} results may take {bytes} bytes", map.name));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::project::{MACHINES, machine};

    type Lint = fn(&Value) -> Findings;

    fn assert_clean(lint: Lint) {
        for name in MACHINES {
            let found = lint(&machine(name).unwrap());
            assert!(found.is_empty(), "{name}: {found:#?}");
        }
    }

    /// Breaks the layout machine at `pointer` and expects a finding that holds `wanted`.
    fn assert_caught(lint: Lint, pointer: &str, change: impl FnOnce(&mut Value), wanted: &str) {
        let mut broken = machine("dynamodb-layout").unwrap();
        change(broken.pointer_mut(pointer).unwrap_or_else(|| panic!("nothing at {pointer}")));
        let found = lint(&broken);
        assert!(
            found.iter().any(|finding| finding.contains(wanted)),
            "no finding holds {wanted:?}: {found:#?}"
        );
    }

    fn remove(field: &'static str) -> impl FnOnce(&mut Value) {
        move |value| {
            assert!(value.as_object_mut().unwrap().remove(field).is_some());
        }
    }

    fn put(replacement: Value) -> impl FnOnce(&mut Value) {
        move |value| *value = replacement
    }

    const PAGE: &str = "/States/Backfill/ItemProcessor/States/BackfillPage";

    #[test]
    fn every_task_has_a_time_out_retries_and_a_catch() {
        assert_clean(unguarded);
        assert_caught(unguarded, PAGE, remove("TimeoutSeconds"), "BackfillPage has no TimeoutSeconds");
        assert_caught(unguarded, "/States/HandOver", remove("Retry"), "HandOver has no Retry");
        assert_caught(unguarded, "/States/Verify", remove("Catch"), "Verify does not catch");
        let some = put(json!(["Throttled"]));
        assert_caught(unguarded, "/States/Preflight/Catch/0/ErrorEquals", some, "Preflight does not catch");
    }

    #[test]
    fn every_retry_is_bounded_and_jittered() {
        assert_clean(loose_retries);
        let retry = "/States/Preflight/Retry/0";
        assert_caught(
            loose_retries,
            &format!("{retry}/JitterStrategy"),
            put(json!("HALF")),
            "JitterStrategy",
        );
        assert_caught(loose_retries, retry, remove("MaxDelaySeconds"), "MaxDelaySeconds");
        assert_caught(loose_retries, retry, remove("MaxAttempts"), "MaxAttempts");
        assert_caught(loose_retries, &format!("{retry}/BackoffRate"), put(json!(1)), "back off");
        assert_caught(
            loose_retries,
            &format!("{retry}/ErrorEquals"),
            put(json!(["Throttled", "States.ALL"])),
            "alone",
        );
    }

    #[test]
    fn an_error_is_retried_as_its_class_says() {
        assert_clean(misjudged_errors);
        let taken = format!("{PAGE}/Retry/1/MaxAttempts");
        assert_caught(misjudged_errors, &taken, put(json!(4)), "retries Superseded [4]");
        assert_caught(
            misjudged_errors,
            &format!("{PAGE}/Retry/2/MaxAttempts"),
            put(json!(1)),
            "retries AccessDenied [1]",
        );
        assert_caught(
            misjudged_errors,
            &format!("{PAGE}/Retry/0/ErrorEquals"),
            put(json!(["Throttled"])),
            "retries Contended []",
        );
        assert_caught(
            misjudged_errors,
            &format!("{PAGE}/Retry/3/ErrorEquals"),
            put(json!(["States.Timeout"])),
            "crashes",
        );
    }

    #[test]
    fn the_names_in_retry_catch_and_fail_are_the_codes() {
        assert_clean(unknown_or_missing_names);
        assert_caught(
            unknown_or_missing_names,
            "/States/NoPlan/Error",
            put(json!("NoPlan")),
            "NoPlan is no error",
        );
        let mut broken = serde_json::to_string(&machine("dynamodb-layout").unwrap()).unwrap();
        broken = broken.replace("\"Corruption\"", "\"Internal\"");
        let found = unknown_or_missing_names(&serde_json::from_str(&broken).unwrap());
        assert_eq!(found, ["Corruption is named nowhere"]);
    }

    #[test]
    fn every_state_exists_is_reached_and_ends_or_goes_on() {
        assert_clean(broken_transitions);
        assert_caught(
            broken_transitions,
            "/States/FinishRepair/Next",
            put(json!("Nowhere")),
            "\"Nowhere\" is no state",
        );
        assert_caught(
            broken_transitions,
            "/States/Planned/Choices/0/Next",
            put(json!("Paused")),
            "PlanReported is reached by nothing",
        );
        assert_caught(broken_transitions, "/States/Done", remove("End"), "Done has to end");
        let inner = "/States/Backfill/ItemProcessor/States/BackfillWait/Next";
        assert_caught(broken_transitions, inner, put(json!("Done")), "\"Done\" is no state of Backfill");
        let twin = |value: &mut Value| {
            value["Done"] = json!({ "Type": "Pass", "End": true });
        };
        assert_caught(
            broken_transitions,
            "/States/Backfill/ItemProcessor/States",
            twin,
            "two states are called Done",
        );
    }

    #[test]
    fn every_variable_is_assigned_on_every_path_before_it_is_read() {
        assert_clean(undefined_variables);
        assert_caught(
            undefined_variables,
            "/States/Start/Assign",
            remove("spent"),
            "$spent may be unassigned",
        );
        assert_caught(
            undefined_variables,
            "/States/BackfillBudget/Choices/0/Assign",
            remove("turnLimit"),
            "$turnLimit may be unassigned",
        );
        assert_caught(undefined_variables, &format!("{PAGE}/Assign"), remove("status"), "$status");
        let early = put(json!("{% $states.result.x %}"));
        assert_caught(
            undefined_variables,
            "/States/FinishRepair/Arguments/Payload",
            early,
            "no $states.result",
        );
        let caught = put(json!("{% $states.result.x %}"));
        assert_caught(
            undefined_variables,
            "/States/Preflight/Catch/0/Assign/failure/error",
            caught,
            "no $states.result",
        );
        let unbalanced = put(json!("{% $merge([$common %}"));
        assert_caught(
            undefined_variables,
            "/States/FinishRepair/Arguments/Payload",
            unbalanced,
            "not closed",
        );
        let unfinished = put(json!("{% $common"));
        assert_caught(
            undefined_variables,
            "/States/FinishRepair/Arguments/Payload",
            unfinished,
            "not closed",
        );
        let beside = put(json!("{% $turns * 8 %}"));
        assert_caught(undefined_variables, &format!("{PAGE}/Assign/used"), beside, "has its old value");
        let hidden = |value: &mut Value| value["spent"] = json!(0);
        assert_caught(undefined_variables, &format!("{PAGE}/Assign"), hidden, "hides the outer variable");
    }

    #[test]
    fn an_execution_stays_under_the_events_it_may_have() {
        assert_clean(event_budget);
        let limits = "/States/Start/Assign/limits";
        assert_caught(event_budget, &format!("{limits}/events"), put(json!(19_000)), "no room for one turn");
        assert_caught(event_budget, &format!("{limits}/events"), put(json!(24_000)), "exceed the limits");
        assert_caught(event_budget, &format!("{limits}/turn"), put(json!(31)), "a turn may take 32");
        assert_caught(
            event_budget,
            &format!("{PAGE}/Retry/0/MaxAttempts"),
            put(json!(4)),
            "a turn may take 35",
        );
        assert_caught(
            event_budget,
            &format!("{PAGE}/Assign/used"),
            put(json!("{% $used + 7 %}")),
            "do not stop",
        );
        assert_caught(
            event_budget,
            "/States/Backfill/ItemProcessor/States/BackfillTurn/Choices",
            put(json!([])),
            "do not stop",
        );
        assert_caught(
            event_budget,
            "/States/Rehearsed/Default",
            put(json!("Verify")),
            "without asking for room",
        );
        assert_caught(
            event_budget,
            "/States/Repair/Items",
            put(json!("{% [0..9999] %}")),
            "no bound is known",
        );
        assert_caught(
            event_budget,
            "/States/Rehearsed/Default",
            put(json!("RehearseBudget")),
            "in a loop without a bound",
        );
        assert_caught(event_budget, "/States/Start/Assign", remove("limits"), "assigns no limits");
        for (name, pointer, change, wanted) in [
            (
                "cutover-watchdog",
                "/States/AskAgain/Choices/0/Condition",
                json!("{% $asked >= 800 %}"),
                "800 turns",
            ),
            ("cutover-watchdog", "/States/AskAgain/Choices", json!([]), "without a bound"),
            ("catalog-format", "/States/Start/Assign/limits/turn", json!(20), "limits.turn says Some(20)"),
            (
                "catalog-format",
                "/States/Migrated/Choices/4/Condition",
                json!("{% $turns > 9 %}"),
                "without a bound",
            ),
        ] {
            let mut broken = machine(name).unwrap();
            *broken.pointer_mut(pointer).unwrap() = change;
            let found = event_budget(&broken);
            assert!(found.iter().any(|finding| finding.contains(wanted)), "{wanted}: {found:?}");
        }
    }

    #[test]
    fn no_run_ends_with_its_barrier_standing() {
        assert_clean(unreleased_barrier);
        assert_caught(
            unreleased_barrier,
            "/States/Verify/Catch/0/Next",
            put(json!("Failed")),
            "Failed ends a run",
        );
        assert_caught(
            unreleased_barrier,
            "/States/InstallBarrier/Catch/0/Next",
            put(json!("Failed")),
            "Failed ends a run",
        );
        assert_caught(
            unreleased_barrier,
            "/States/Verified/Choices/1/Next",
            put(json!("Paused")),
            "Paused ends a run",
        );
        assert_caught(
            unreleased_barrier,
            "/States/CheckRollout/Next",
            put(json!("InstallBarrier")),
            "CheckRollout reaches InstallBarrier",
        );
    }

    #[test]
    fn a_cause_may_be_missing_empty_no_json_or_huge() {
        assert_clean(trusted_causes);
        let cause = "/States/Preflight/Catch/0/Assign/failure/cause";
        assert_caught(trusted_causes, cause, put(json!("{% $states.errorOutput.Cause %}")), "may be missing");
        assert_caught(
            trusted_causes,
            cause,
            put(json!("{% $parse($states.errorOutput.Cause).errorMessage %}")),
            "no JSON",
        );
        let whole = put(json!("{% $exists($states.errorOutput.Cause) ? $states.errorOutput.Cause : '' %}"));
        assert_caught(trusted_causes, cause, whole, "32 KB");
    }

    #[test]
    fn the_results_of_a_map_stay_small() {
        assert_clean(large_results);
        let report = "/States/Verify/ItemProcessor/States/VerifyReport";
        assert_caught(large_results, report, remove("Output"), "whole input");
        let more = |value: &mut Value| value["lastKey"] = json!("{% $states.input.lastKey %}");
        assert_caught(large_results, &format!("{report}/Output"), more, "512 results may take");
    }
}
