//! Queries, waiting followers and wake-ups of the cache.

use serde_json::{Value, json};

use super::*;
use crate::source::git::spec::wanted as read;

const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

fn wanted(fields: Value) -> RepositorySpec {
    let mut spec = json!({"stack": "dev", "projectRepo": "https://example.com/app"});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    read(&serde_json::from_value(spec).unwrap(), "apps").unwrap().unwrap()
}

fn main() -> RepositorySpec {
    wanted(json!({"branch": "main"}))
}

fn name(name: &str) -> Follower {
    ("apps".to_owned(), name.to_owned())
}

fn tip(commit: &str) -> Tip {
    Tip { name: Some("main".to_owned()), commit: commit.to_owned() }
}

fn content(commit: &str, wanted: &[&RepositorySpec]) -> Fetched {
    Fetched {
        commit: commit.to_owned(),
        digest: Digest::of(commit.as_bytes()),
        warnings: Vec::new(),
        selections: wanted.iter().filter_map(|w| Some((w.paths.clone()?, Ok(format!("sha256:{commit}"))))).collect(),
    }
}

fn asked(request: &str, is_new: bool) -> Question {
    Question { request: Some(request.to_owned()), is_new, known: None }
}

/// Looks up the repository for one Stack. Returns the revision or the error message.
fn look(answers: &mut Cache, stack: &str, wanted: &RepositorySpec, question: &Question) -> String {
    answers.enlist(&name(stack), wanted, question);
    match answers.answer(&name(stack), wanted, question) {
        Ok(resolved) => resolved.revision,
        Err(error) => error.to_string(),
    }
}

fn question() -> Question {
    asked("", false)
}

fn covers(answers: &mut Cache, wanted: &RepositorySpec) -> u64 {
    match answers.need(&wanted.key, false) {
        Need::Ask(covers) => covers,
        other => panic!("{other:?}"),
    }
}

fn is_at_rest(answers: &mut Cache, wanted: &RepositorySpec) -> bool {
    matches!(answers.need(&wanted.key, false), Need::Wait(_))
}

/// Returns a cache in which Stack `a` has the artifact of commit A.
fn settled() -> Cache {
    let (mut answers, main) = (Cache::default(), main());
    assert!(look(&mut answers, "a", &main, &question()).starts_with("asking"));
    let count = covers(&mut answers, &main);
    assert_eq!(answers.told(&main.key, count, Ok(tip(A))), [name("a")]);
    assert!(look(&mut answers, "a", &main, &question()).starts_with("fetching revision main@sha1:aaa"));
    assert!(matches!(answers.need(&main.key, false), Need::Fetch(..)));
    assert_eq!(answers.fetched(&main.key, &tip(A), Ok(content(A, &[]))), [name("a")]);
    assert_eq!(look(&mut answers, "a", &main, &question()), format!("main@sha1:{A}"));
    assert!(is_at_rest(&mut answers, &main));
    answers
}

#[test]
fn stacks_with_the_same_source_share_one_query_and_one_fetch() {
    let (mut answers, main) = (settled(), main());
    for stack in ["b", "c", "d"] {
        assert!(!answers.enlist(&name(stack), &main, &question()), "it is followed already");
        assert_eq!(look(&mut answers, stack, &main, &question()), format!("main@sha1:{A}"));
    }
    assert!(is_at_rest(&mut answers, &main), "nobody has to ask for it");
}

#[test]
fn a_moved_tip_is_fetched_before_stacks_are_woken() {
    let (mut answers, main) = (settled(), main());
    assert!(answers.told(&main.key, 1, Ok(tip(A))).is_empty(), "nothing has changed");
    assert!(answers.told(&main.key, 1, Ok(tip(B))).is_empty());
    assert!(matches!(answers.need(&main.key, false), Need::Fetch(tip, _) if tip.commit == B));
    assert_eq!(answers.fetched(&main.key, &tip(B), Ok(content(B, &[]))), [name("a")]);
    assert_eq!(look(&mut answers, "a", &main, &question()), format!("main@sha1:{B}"));
}

#[test]
fn a_reconcile_request_waits_for_a_query_sent_after_it() {
    let (mut answers, main) = (settled(), main());
    look(&mut answers, "b", &main, &question());
    assert!(look(&mut answers, "a", &main, &asked("now", true)).starts_with("asking"));
    assert!(look(&mut answers, "a", &main, &asked("now", true)).starts_with("asking"), "it is the same request");
    assert_eq!(look(&mut answers, "b", &main, &question()), format!("main@sha1:{A}"), "others do not wait for it");
    let count = covers(&mut answers, &main);
    assert_eq!(answers.told(&main.key, count, Ok(tip(A))), [name("a")], "only who waits is woken");
    assert_eq!(look(&mut answers, "a", &main, &asked("now", true)), format!("main@sha1:{A}"));
    assert!(is_at_rest(&mut answers, &main));
    assert!(look(&mut answers, "c", &main, &asked("now", true)).starts_with("asking"), "a newcomer's request is new");
    assert_eq!(
        look(&mut answers, "d", &main, &asked("old", false)),
        format!("main@sha1:{A}"),
        "an answered one is not"
    );
}

#[test]
fn a_revision_already_run_is_not_fetched_for_its_digest() {
    let (mut answers, main) = (Cache::default(), main());
    let digest = Digest::of(b"as it was");
    let known = |revision: &str| Question {
        known: Some(Known { revision: revision.to_owned(), digest: digest.clone(), selection: None }),
        ..question()
    };
    look(&mut answers, "a", &main, &known(A));
    let count = covers(&mut answers, &main);
    answers.told(&main.key, count, Ok(tip(A)));
    for revision in [A.to_owned(), format!("main@sha1:{A}")] {
        let resolved = answers.answer(&name("a"), &main, &known(&revision)).unwrap();
        assert_eq!(resolved.digest, digest, "{revision}");
    }
    assert!(is_at_rest(&mut answers, &main));
    assert!(look(&mut answers, "a", &main, &known(B)).starts_with("fetching"));
}

#[test]
fn a_failure_is_reported_once_and_cleared_by_the_next_answer() {
    let (mut answers, main) = (settled(), main());
    assert_eq!(answers.told(&main.key, 1, Err(Unavailable::NotYet("it is away".to_owned()))), [name("a")]);
    assert!(answers.told(&main.key, 1, Err(Unavailable::NotYet("it is away".to_owned()))).is_empty(), "once is enough");
    assert_eq!(look(&mut answers, "a", &main, &question()), "it is away");
    assert_eq!(answers.told(&main.key, 1, Ok(tip(A))), [name("a")]);
    assert_eq!(look(&mut answers, "a", &main, &question()), format!("main@sha1:{A}"), "the artifact is still there");
    answers.told(&main.key, 1, Ok(tip(B)));
    assert_eq!(answers.fetched(&main.key, &tip(B), Err(Unavailable::NotYet("too large".to_owned()))), [name("a")]);
    assert_eq!(look(&mut answers, "a", &main, &question()), "too large");
    assert!(is_at_rest(&mut answers, &main), "it is not tried again before its time");
    answers.told(&main.key, 1, Ok(tip(B)));
    assert!(matches!(answers.need(&main.key, false), Need::Fetch(..)));
}

#[test]
fn one_fetch_yields_a_digest_per_path_selection() {
    let (mut answers, main) = (settled(), main());
    let web = wanted(json!({"branch": "main", "paths": ["/web/"]}));
    assert!(look(&mut answers, "w", &web, &question()).starts_with("fetching"), "its paths were not looked at");
    let Need::Fetch(_, choices) = answers.need(&main.key, false) else { panic!("nothing to fetch") };
    assert_eq!(choices, [web.paths.clone().unwrap()]);
    answers.fetched(&main.key, &tip(A), Ok(content(A, &[&web])));
    let resolved = answers.answer(&name("w"), &web, &question()).unwrap();
    let SourceOrigin::Git(origin) = resolved.origin else { panic!("not of Git") };
    assert_eq!(origin.selection, Some(format!("sha256:{A}")));
}

#[test]
fn a_changed_reference_is_followed_and_unused_ones_are_forgotten() {
    let (mut answers, main) = (settled(), main());
    let dev = wanted(json!({"branch": "dev"}));
    assert!(answers.enlist(&name("a"), &dev, &question()));
    assert!(matches!(answers.need(&main.key, false), Need::Nothing));
    assert!(matches!(answers.need(&dev.key, false), Need::Ask(_)));
    answers.forget(&name("a"));
    assert!(matches!(answers.need(&dev.key, false), Need::Nothing));
    assert!(answers.repositories.is_empty() && answers.followers.is_empty());
}

#[test]
fn a_commit_hash_is_fetched_without_querying_the_server() {
    let (mut answers, pinned) = (Cache::default(), wanted(json!({"commit": A})));
    assert_eq!(
        look(&mut answers, "a", &pinned, &question()),
        format!("fetching revision sha1:{A} of https://example.com/app")
    );
    assert!(matches!(answers.need(&pinned.key, false), Need::Fetch(..)));
    answers.fetched(&pinned.key, &tip(A), Ok(content(A, &[])));
    assert_eq!(look(&mut answers, "a", &pinned, &asked("now", true)), format!("sha1:{A}"));
    assert!(is_at_rest(&mut answers, &pinned));
}

#[test]
fn missing_artifact_bytes_are_fetched_again() {
    let (mut answers, main) = (settled(), main());
    let resolved = answers.answer(&name("a"), &main, &question()).unwrap();
    let SourceOrigin::Git(origin) = resolved.origin else { panic!("not of Git") };
    answers.fetch_again(&origin);
    assert!(matches!(answers.need(&main.key, false), Need::Fetch(..)));
    assert!(look(&mut answers, "a", &main, &question()).starts_with("fetching"));
}

#[test]
fn a_failed_refetch_is_retried_only_on_schedule_or_request() {
    let (mut answers, pinned) = (Cache::default(), wanted(json!({"commit": A})));
    let known = Known { revision: A.to_owned(), digest: Digest::of(b"as it was"), selection: None };
    let with_known = |request: &str| Question { known: Some(known.clone()), ..asked(request, false) };
    answers.enlist(&name("a"), &pinned, &with_known(""));
    let resolved = answers.answer(&name("a"), &pinned, &with_known("")).unwrap();
    let SourceOrigin::Git(origin) = resolved.origin else { panic!("not of Git") };
    answers.fetch_again(&origin);
    assert!(matches!(answers.need(&pinned.key, false), Need::Fetch(..)));
    assert_eq!(answers.fetched(&pinned.key, &tip(A), Err(Unavailable::NotYet("it is away".to_owned()))), [name("a")]);
    assert_eq!(look(&mut answers, "a", &pinned, &with_known("")), "it is away", "its digest alone is no help");
    assert!(is_at_rest(&mut answers, &pinned));
    assert!(look(&mut answers, "a", &pinned, &with_known("now")).starts_with("sha1:"));
    assert!(matches!(answers.need(&pinned.key, false), Need::Fetch(..)), "a person has asked for it");
}

#[test]
fn the_shortest_stack_interval_applies() {
    let (mut answers, main) = (settled(), main());
    let seconds = |answers: &Cache| answers.interval(&main.key).unwrap().as_secs();
    let slow = wanted(json!({"branch": "main", "resyncFrequencySeconds": 600}));
    look(&mut answers, "a", &slow, &question());
    assert_eq!(seconds(&answers), 600);
    look(&mut answers, "b", &wanted(json!({"branch": "main", "resyncFrequencySeconds": 90})), &question());
    assert_eq!(seconds(&answers), 90);
    answers.forget(&name("b"));
    assert_eq!(seconds(&answers), 600);
}

#[test]
fn work_is_canceled_when_the_last_stack_unfollows_the_repository() {
    let (mut answers, main) = (settled(), main());
    look(&mut answers, "b", &main, &question());
    let work = answers.abandoned(&main.key);
    answers.forget(&name("a"));
    assert!(!work.is_cancelled(), "b still follows it");
    answers.forget(&name("b"));
    assert!(work.is_cancelled());
    look(&mut answers, "c", &main, &question());
    assert!(!answers.abandoned(&main.key).is_cancelled(), "c follows it before the task has noticed");
    answers.forget(&name("c"));
    assert!(answers.abandoned(&main.key).is_cancelled());
    assert!(matches!(answers.need(&main.key, false), Need::Nothing));
}
