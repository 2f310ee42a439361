//! Lost answers and resends, explored whole, and with one rule missing.

use metashift_model::answers::{Answers, Flaw, ONCE, TRUE};
use metashift_model::explore::{plain, whole};

#[test]
fn a_mutation_that_is_sent_again_under_its_token_is_answered_truly() {
    let explored = whole(Answers::new(None), &[], plain);
    println!("answers: {} states, depth {}", explored.states, explored.depth);
    assert_eq!(explored.violated, []);
    assert_eq!(explored.unreached, [""; 0]);
}

fn caught(flaw: Flaw) {
    let explored = whole(Answers::new(Some(flaw)), &[TRUE, ONCE], plain);
    println!("{flaw:?}: {} states", explored.states);
    for (name, path) in &explored.violated {
        println!("  {name}\n    {}", path.join("\n    "));
    }
    assert!(!explored.violated.is_empty(), "{flaw:?}");
}

#[test]
fn a_new_token_for_a_resend_commits_twice_or_says_refused_of_what_committed() {
    caught(Flaw::TokenPerResend);
}

#[test]
fn a_token_made_from_the_content_swallows_a_second_create() {
    caught(Flaw::TokenFromContent);
}

#[test]
fn a_refusal_that_is_believed_while_a_copy_is_on_its_way_lands_after_all() {
    caught(Flaw::TokenNotSpent);
}
