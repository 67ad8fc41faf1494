//! Tests when the cache requires a query to the server, which followers wait, and which followers must be reconciled.

use serde_json::{Value, json};

use super::*;

const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

fn spec(fields: Value) -> RepositorySpec {
    let mut spec = json!({"stack": "dev", "projectRepo": "https://example.com/app"});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    RepositorySpec::of_stack(&serde_json::from_value(spec).unwrap(), "apps").unwrap().unwrap()
}

fn main() -> RepositorySpec {
    spec(json!({"branch": "main"}))
}

fn name(name: &str) -> Follower {
    ("apps".to_owned(), name.to_owned())
}

fn tip(commit: &str) -> Tip {
    Tip { name: Some("main".to_owned()), commit: commit.to_owned(), is_tag: false }
}

fn content(commit: &str, specs: &[&RepositorySpec]) -> Fetched {
    Fetched {
        commit: commit.to_owned(),
        digest: Digest::of(commit.as_bytes()),
        warnings: Vec::new(),
        metadata: SourceMetadata { author: Some("Ada".to_owned()), ..SourceMetadata::default() },
        selections: specs.iter().filter_map(|w| Some((w.paths.clone()?, Ok(format!("sha256:{commit}"))))).collect(),
    }
}

fn request(request: &str, is_new: bool) -> Lookup {
    Lookup { request: Some(request.to_owned()), is_new, known: None }
}

/// Adds a follower and resolves its repository. Returns the revision or the error message.
fn resolve(cache: &mut Cache, stack: &str, spec: &RepositorySpec, lookup: &Lookup) -> String {
    cache.add_follower(&name(stack), spec, lookup);
    match cache.resolve(&name(stack), spec, lookup) {
        Ok(resolved) => resolved.revision,
        Err(error) => error.to_string(),
    }
}

fn lookup() -> Lookup {
    request("", false)
}

fn requests(cache: &mut Cache, spec: &RepositorySpec) -> u64 {
    match cache.next_action(&spec.key, false) {
        NextAction::Query(requests) => requests,
        other => panic!("{other:?}"),
    }
}

fn is_at_rest(cache: &mut Cache, spec: &RepositorySpec) -> bool {
    matches!(cache.next_action(&spec.key, false), NextAction::Wait(_))
}

/// Returns a cache in which Stack `a` has the artifact of commit A.
fn settled() -> Cache {
    let (mut cache, main) = (Cache::default(), main());
    assert!(resolve(&mut cache, "a", &main, &lookup()).starts_with("querying"));
    let count = requests(&mut cache, &main);
    assert_eq!(cache.record_tip(&main.key, count, Ok(tip(A))), [name("a")]);
    assert!(resolve(&mut cache, "a", &main, &lookup()).starts_with("fetching revision main@sha1:aaa"));
    assert!(matches!(cache.next_action(&main.key, false), NextAction::Fetch(..)));
    assert_eq!(cache.record_fetch(&main.key, &tip(A), Ok(content(A, &[]))), [name("a")]);
    assert_eq!(resolve(&mut cache, "a", &main, &lookup()), format!("main@sha1:{A}"));
    assert!(is_at_rest(&mut cache, &main));
    cache
}

#[test]
fn stacks_with_the_same_source_share_one_query_and_one_fetch() {
    let (mut cache, main) = (settled(), main());
    for stack in ["b", "c", "d"] {
        assert!(!cache.add_follower(&name(stack), &main, &lookup()), "the repository is already followed");
        assert_eq!(resolve(&mut cache, stack, &main, &lookup()), format!("main@sha1:{A}"));
    }
    assert!(is_at_rest(&mut cache, &main), "no query is needed");
}

#[test]
fn a_moved_tip_is_fetched_before_stacks_are_reconciled() {
    let (mut cache, main) = (settled(), main());
    assert!(cache.record_tip(&main.key, 1, Ok(tip(A))).is_empty(), "the tip has not changed");
    assert!(cache.record_tip(&main.key, 1, Ok(tip(B))).is_empty());
    assert!(matches!(cache.next_action(&main.key, false), NextAction::Fetch(tip, _) if tip.commit == B));
    assert_eq!(cache.record_fetch(&main.key, &tip(B), Ok(content(B, &[]))), [name("a")]);
    assert_eq!(resolve(&mut cache, "a", &main, &lookup()), format!("main@sha1:{B}"));
}

#[test]
fn a_reconcile_request_waits_for_a_query_sent_after_it() {
    let (mut cache, main) = (settled(), main());
    resolve(&mut cache, "b", &main, &lookup());
    assert!(resolve(&mut cache, "a", &main, &request("now", true)).starts_with("querying"));
    assert!(resolve(&mut cache, "a", &main, &request("now", true)).starts_with("querying"), "the request is not new");
    assert_eq!(
        resolve(&mut cache, "b", &main, &lookup()),
        format!("main@sha1:{A}"),
        "other Stacks do not wait for the request"
    );
    let count = requests(&mut cache, &main);
    assert_eq!(cache.record_tip(&main.key, count, Ok(tip(A))), [name("a")], "only waiting followers are reconciled");
    assert_eq!(resolve(&mut cache, "a", &main, &request("now", true)), format!("main@sha1:{A}"));
    assert!(is_at_rest(&mut cache, &main));
    assert!(
        resolve(&mut cache, "c", &main, &request("now", true)).starts_with("querying"),
        "the request of a new follower is new"
    );
    assert_eq!(
        resolve(&mut cache, "d", &main, &request("old", false)),
        format!("main@sha1:{A}"),
        "a handled request is not new"
    );
}

#[test]
fn a_revision_with_a_known_digest_is_not_fetched_again() {
    let (mut cache, main) = (Cache::default(), main());
    let digest = Digest::of(b"previous content");
    let known = |revision: &str| Lookup {
        known: Some(KnownArtifact {
            revision: revision.to_owned(),
            digest: digest.clone(),
            selection: None,
            metadata: None,
        }),
        ..lookup()
    };
    resolve(&mut cache, "a", &main, &known(A));
    let count = requests(&mut cache, &main);
    cache.record_tip(&main.key, count, Ok(tip(A)));
    for revision in [A.to_owned(), format!("main@sha1:{A}")] {
        let resolved = cache.resolve(&name("a"), &main, &known(&revision)).unwrap();
        assert_eq!(resolved.digest, digest, "{revision}");
    }
    assert!(is_at_rest(&mut cache, &main));
    assert!(resolve(&mut cache, "a", &main, &known(B)).starts_with("fetching"));
}

#[test]
fn the_author_is_known_from_the_fetch_or_from_the_last_run_of_the_commit() {
    let author = |cache: &mut Cache, lookup: &Lookup| {
        let metadata = cache.resolve(&name("a"), &main(), lookup).unwrap().metadata.unwrap();
        assert_eq!((metadata.head.as_deref(), metadata.head_name.as_deref()), (Some(A), Some("refs/heads/main")));
        assert_eq!(metadata.repository_url.as_deref(), Some("https://example.com/app"));
        assert_eq!(metadata.directory.as_deref(), Some("."));
        metadata.author
    };
    assert_eq!(author(&mut settled(), &lookup()).as_deref(), Some("Ada"), "the commit was fetched");
    for (head, expected) in [(A, Some("Grace")), (B, None)] {
        let metadata = SourceMetadata {
            head: Some(head.to_owned()),
            author: Some("Grace".to_owned()),
            ..SourceMetadata::default()
        };
        let known = KnownArtifact {
            revision: A.to_owned(),
            digest: Digest::of(b"previous content"),
            selection: None,
            metadata: Some(metadata),
        };
        let lookup = Lookup { known: Some(known), ..lookup() };
        let (mut cache, main) = (Cache::default(), main());
        resolve(&mut cache, "a", &main, &lookup);
        let count = requests(&mut cache, &main);
        cache.record_tip(&main.key, count, Ok(tip(A)));
        assert_eq!(author(&mut cache, &lookup).as_deref(), expected, "the last run used commit {head}");
    }
}

#[test]
fn a_failure_is_reported_once_and_cleared_by_the_next_response() {
    let (mut cache, main) = (settled(), main());
    assert_eq!(cache.record_tip(&main.key, 1, Err(Unavailable::NotYet("server is down".to_owned()))), [name("a")]);
    assert!(
        cache.record_tip(&main.key, 1, Err(Unavailable::NotYet("server is down".to_owned()))).is_empty(),
        "the same error does not reconcile the follower again"
    );
    assert_eq!(resolve(&mut cache, "a", &main, &lookup()), "server is down");
    assert_eq!(cache.record_tip(&main.key, 1, Ok(tip(A))), [name("a")]);
    assert_eq!(resolve(&mut cache, "a", &main, &lookup()), format!("main@sha1:{A}"), "the artifact is still cached");
    cache.record_tip(&main.key, 1, Ok(tip(B)));
    assert_eq!(cache.record_fetch(&main.key, &tip(B), Err(Unavailable::NotYet("too large".to_owned()))), [name("a")]);
    assert_eq!(resolve(&mut cache, "a", &main, &lookup()), "too large");
    assert!(is_at_rest(&mut cache, &main), "no retry before the backoff ends");
    cache.record_tip(&main.key, 1, Ok(tip(B)));
    assert!(matches!(cache.next_action(&main.key, false), NextAction::Fetch(..)));
}

#[test]
fn one_fetch_produces_a_digest_for_each_path_selection() {
    let (mut cache, main) = (settled(), main());
    let web = spec(json!({"branch": "main", "paths": ["/web/"]}));
    assert!(resolve(&mut cache, "w", &web, &lookup()).starts_with("fetching"), "the paths have not been compared yet");
    let NextAction::Fetch(_, choices) = cache.next_action(&main.key, false) else { panic!("expected a fetch") };
    assert_eq!(choices, [web.paths.clone().unwrap()]);
    cache.record_fetch(&main.key, &tip(A), Ok(content(A, &[&web])));
    let resolved = cache.resolve(&name("w"), &web, &lookup()).unwrap();
    let SourceOrigin::Git(origin) = resolved.origin else { panic!("expected a Git origin") };
    assert_eq!(origin.selection, Some(format!("sha256:{A}")));
}

#[test]
fn a_changed_reference_is_polled_and_an_unused_one_is_forgotten() {
    let (mut cache, main) = (settled(), main());
    let dev = spec(json!({"branch": "dev"}));
    assert!(cache.add_follower(&name("a"), &dev, &lookup()));
    assert!(matches!(cache.next_action(&main.key, false), NextAction::Stop));
    assert!(matches!(cache.next_action(&dev.key, false), NextAction::Query(_)));
    cache.forget(&name("a"));
    assert!(matches!(cache.next_action(&dev.key, false), NextAction::Stop));
    assert!(cache.repositories.is_empty() && cache.followers.is_empty());
}

#[test]
fn a_commit_hash_is_fetched_without_querying_the_server() {
    let (mut cache, pinned) = (Cache::default(), spec(json!({"commit": A})));
    assert_eq!(
        resolve(&mut cache, "a", &pinned, &lookup()),
        format!("fetching revision sha1:{A} of https://example.com/app")
    );
    assert!(matches!(cache.next_action(&pinned.key, false), NextAction::Fetch(..)));
    cache.record_fetch(&pinned.key, &tip(A), Ok(content(A, &[])));
    assert_eq!(resolve(&mut cache, "a", &pinned, &request("now", true)), format!("sha1:{A}"));
    assert!(is_at_rest(&mut cache, &pinned));
}

#[test]
fn missing_artifact_bytes_are_fetched_again() {
    let (mut cache, main) = (settled(), main());
    let resolved = cache.resolve(&name("a"), &main, &lookup()).unwrap();
    let SourceOrigin::Git(origin) = resolved.origin else { panic!("expected a Git origin") };
    cache.fetch_again(&origin);
    assert!(matches!(cache.next_action(&main.key, false), NextAction::Fetch(..)));
    assert!(resolve(&mut cache, "a", &main, &lookup()).starts_with("fetching"));
}

#[test]
fn missing_artifact_bytes_are_fetched_again_although_the_cache_contains_an_earlier_commit() {
    let (mut cache, main) = (settled(), main());
    let failed = || Unavailable::NotYet("server is down".to_owned());
    cache.record_tip(&main.key, 1, Ok(tip(B)));
    cache.record_fetch(&main.key, &tip(B), Err(failed()));
    cache.record_tip(&main.key, 1, Err(failed()));
    cache.record_tip(&main.key, 1, Ok(tip(B)));
    let digest = Digest::of(b"previous content");
    let known = KnownArtifact { revision: B.to_owned(), digest, selection: None, metadata: None };
    let resolved = cache.resolve(&name("a"), &main, &Lookup { known: Some(known), ..lookup() });
    let SourceOrigin::Git(origin) = resolved.unwrap().origin else { panic!("expected a Git origin") };
    cache.fetch_again(&origin);
    assert!(matches!(cache.next_action(&main.key, false), NextAction::Fetch(tip, _) if tip.commit == B));
}

#[test]
fn a_failed_fetch_is_retried_only_on_schedule_or_on_request() {
    let (mut cache, pinned) = (Cache::default(), spec(json!({"commit": A})));
    let known = KnownArtifact {
        revision: A.to_owned(),
        digest: Digest::of(b"previous content"),
        selection: None,
        metadata: None,
    };
    let with_known = |id: &str| Lookup { known: Some(known.clone()), ..request(id, false) };
    cache.add_follower(&name("a"), &pinned, &with_known(""));
    let resolved = cache.resolve(&name("a"), &pinned, &with_known("")).unwrap();
    let SourceOrigin::Git(origin) = resolved.origin else { panic!("expected a Git origin") };
    cache.fetch_again(&origin);
    assert!(matches!(cache.next_action(&pinned.key, false), NextAction::Fetch(..)));
    assert_eq!(
        cache.record_fetch(&pinned.key, &tip(A), Err(Unavailable::NotYet("server is down".to_owned()))),
        [name("a")]
    );
    assert_eq!(
        resolve(&mut cache, "a", &pinned, &with_known("")),
        "server is down",
        "a known digest is not sufficient"
    );
    assert!(is_at_rest(&mut cache, &pinned));
    assert!(resolve(&mut cache, "a", &pinned, &with_known("now")).starts_with("sha1:"));
    assert!(matches!(cache.next_action(&pinned.key, false), NextAction::Fetch(..)), "a user requested a retry");
}

#[test]
fn a_repository_is_polled_at_the_shortest_interval_of_its_stacks() {
    let (mut cache, main) = (settled(), main());
    let seconds = |cache: &Cache| cache.interval(&main.key).unwrap().as_secs();
    let slow = spec(json!({"branch": "main", "resyncFrequencySeconds": 600}));
    resolve(&mut cache, "a", &slow, &lookup());
    assert_eq!(seconds(&cache), 600);
    resolve(&mut cache, "b", &spec(json!({"branch": "main", "resyncFrequencySeconds": 90})), &lookup());
    assert_eq!(seconds(&cache), 90);
    cache.forget(&name("b"));
    assert_eq!(seconds(&cache), 600);
}

#[test]
fn work_for_a_repository_is_canceled_when_no_stack_uses_it() {
    let (mut cache, main) = (settled(), main());
    resolve(&mut cache, "b", &main, &lookup());
    let work = cache.abandoned(&main.key);
    cache.forget(&name("a"));
    assert!(!work.is_cancelled(), "Stack b still follows the repository");
    cache.forget(&name("b"));
    assert!(work.is_cancelled());
    resolve(&mut cache, "c", &main, &lookup());
    assert!(!cache.abandoned(&main.key).is_cancelled(), "Stack c follows the repository before the task ends");
    cache.forget(&name("c"));
    assert!(cache.abandoned(&main.key).is_cancelled());
    assert!(matches!(cache.next_action(&main.key, false), NextAction::Stop));
}

#[test]
fn a_removed_repository_is_added_again_by_its_followers() {
    let (mut cache, main) = (settled(), main());
    assert!(!cache.add_follower(&name("b"), &main, &lookup()), "the repository has an async task");
    let mut followers = cache.remove(&main.key);
    followers.sort();
    assert_eq!(followers, [name("a"), name("b")]);
    assert!(matches!(cache.next_action(&main.key, false), NextAction::Stop));
    assert!(cache.add_follower(&name("a"), &main, &lookup()), "the repository requires another async task");
    assert_eq!(requests(&mut cache, &main), 1);
    assert_eq!(cache.remove(&main.key), [name("a")]);
    cache.forget(&name("a"));
    assert!(cache.remove(&main.key).is_empty());
}

#[test]
fn a_new_follower_does_not_use_a_response_older_than_its_interval() {
    let every = |seconds: u64| spec(json!({"branch": "main", "resyncFrequencySeconds": seconds}));
    let slow = every(3600);
    let (mut cache, main) = (settled(), main());
    resolve(&mut cache, "a", &slow, &lookup());
    assert_eq!(resolve(&mut cache, "b", &every(7200), &lookup()), format!("main@sha1:{A}"));
    assert!(is_at_rest(&mut cache, &main), "the other Stacks poll often enough");
    for stack in ["c", "d"] {
        assert!(resolve(&mut cache, stack, &every(60), &lookup()).starts_with("querying"), "{stack}");
        let count = requests(&mut cache, &main);
        assert_eq!(cache.record_tip(&main.key, count, Ok(tip(A))), [name(stack)]);
        assert_eq!(resolve(&mut cache, stack, &every(60), &lookup()), format!("main@sha1:{A}"));
        assert!(is_at_rest(&mut cache, &main));
        cache.forget(&name(stack));
    }
    let pinned = |seconds: u64| spec(json!({"commit": A, "resyncFrequencySeconds": seconds}));
    resolve(&mut cache, "e", &pinned(3600), &lookup());
    cache.record_fetch(&pinned(60).key, &tip(A), Ok(content(A, &[])));
    assert_eq!(resolve(&mut cache, "f", &pinned(60), &lookup()), format!("sha1:{A}"), "a commit hash needs no query");
}

#[test]
fn a_new_follower_waits_for_a_query_in_progress() {
    let (mut cache, main) = (settled(), main());
    resolve(&mut cache, "a", &spec(json!({"branch": "main", "resyncFrequencySeconds": 3600})), &request("now", true));
    let count = requests(&mut cache, &main);
    assert!(resolve(&mut cache, "b", &main, &lookup()).starts_with("querying"));
    assert_eq!(requests(&mut cache, &main), count, "no second query is needed");
}
