use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use tempfile::TempDir;

use super::*;

fn put(store: &Store, bytes: &[u8]) -> Pinned {
    let mut incoming = store.begin(Algorithm::Sha256).unwrap();
    incoming.append(bytes).unwrap();
    incoming.commit(&Digest::of(bytes)).unwrap()
}

fn read(pinned: &Pinned) -> Vec<u8> {
    let mut bytes = Vec::new();
    pinned.file().unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

fn files(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

fn usage(artifacts: usize, complete_bytes: u64, incoming_bytes: u64) -> Usage {
    Usage { artifacts, complete_bytes, incoming_bytes }
}

#[test]
fn committed_artifacts_are_stored_and_dropped_ones_leave_no_file() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    let digest = Digest::of(b"hello");
    assert!(!store.contains(&digest));
    assert!(store.open_artifact(&digest).unwrap().is_none());

    let mut dropped = store.begin(Algorithm::Sha256).unwrap();
    dropped.append(b"hello").unwrap();
    assert_eq!(store.usage(), usage(0, 0, 5));
    drop(dropped);
    assert_eq!(store.usage(), usage(0, 0, 0));
    assert_eq!(files(&directory.path().join("incoming")), 0);

    let mut incoming = store.begin(Algorithm::Sha256).unwrap();
    incoming.append(b"hel").unwrap();
    incoming.append(b"lo").unwrap();
    assert!(!store.contains(&digest), "an incomplete artifact is not stored");
    let pinned = incoming.commit(&digest).unwrap();
    assert_eq!((pinned.digest(), pinned.size(), read(&pinned)), (&digest, 5, b"hello".to_vec()));
    assert!(store.contains(&digest));
    assert_eq!(read(&store.open_artifact(&digest).unwrap().unwrap()), b"hello");
    assert_eq!(files(&directory.path().join("incoming")), 0);
}

#[test]
fn bytes_with_another_digest_are_rejected_and_not_stored() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    for expected in [Digest::of(b"other"), Digest::of_reader(Algorithm::Sha512, &b"hello"[..]).unwrap()] {
        let mut incoming = store.begin(Algorithm::Sha256).unwrap();
        incoming.append(b"hello").unwrap();
        let error = incoming.commit(&expected).unwrap_err();
        assert!(matches!(&error, StoreError::Mismatch { bytes: 5, .. }), "{error}");
        assert!(error.to_string().contains(&expected.to_string()));
        assert!(error.to_string().contains(&Digest::of(b"hello").to_string()));
    }
    assert_eq!(store.usage(), usage(0, 0, 0));
    assert_eq!(files(&directory.path().join("complete")), 0);
    assert_eq!(files(&directory.path().join("incoming")), 0);
}

#[test]
fn a_generated_artifact_gets_the_digest_of_its_bytes() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    let mut incoming = store.begin(Algorithm::Sha384).unwrap();
    std::io::copy(&mut &b"hello"[..], &mut incoming).unwrap();
    let pinned = incoming.commit_as_is().unwrap();
    assert_eq!(*pinned.digest(), Digest::of_reader(Algorithm::Sha384, &b"hello"[..]).unwrap());
}

#[test]
fn concurrent_writes_of_one_digest_result_in_one_artifact() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    let mut first = store.begin(Algorithm::Sha256).unwrap();
    let mut second = store.begin(Algorithm::Sha256).unwrap();
    first.append(b"hello").unwrap();
    second.append(b"hello").unwrap();
    let first = first.commit(&Digest::of(b"hello")).unwrap();
    let second = second.commit(&Digest::of(b"hello")).unwrap();
    assert_eq!(store.usage(), usage(1, 5, 0));
    assert_eq!(read(&first), read(&second));
}

#[test]
fn the_least_recently_used_artifact_is_evicted_when_space_is_needed() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 10).unwrap();
    drop(put(&store, b"aaaa"));
    drop(put(&store, b"bbbb"));
    drop(store.open_artifact(&Digest::of(b"aaaa")).unwrap());
    drop(put(&store, b"cccc"));
    assert!(store.contains(&Digest::of(b"aaaa")), "the most recently used artifact is kept");
    assert!(!store.contains(&Digest::of(b"bbbb")));
    assert!(store.contains(&Digest::of(b"cccc")));
    assert_eq!(store.usage(), usage(2, 8, 0));
    assert_eq!(files(&directory.path().join("complete")), 2);
}

#[test]
fn artifacts_in_use_are_not_evicted_even_if_the_store_is_full() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 10).unwrap();
    let pinned = put(&store, b"aaaa");
    let clone = pinned.clone();
    drop(pinned);
    let mut incoming = store.begin(Algorithm::Sha256).unwrap();
    incoming.append(b"bbbb").unwrap();

    let mut third = store.begin(Algorithm::Sha256).unwrap();
    third.append(b"cc").unwrap();
    let error = third.append(b"c").unwrap_err();
    assert!(matches!(error, StoreError::Full { capacity: 10, needed: 1, in_use: 4, incoming: 6 }), "{error}");
    assert_eq!(read(&clone), b"aaaa");

    drop(clone);
    third.append(b"c").unwrap();
    assert!(!store.contains(&Digest::of(b"aaaa")), "an unused artifact is evicted");
    drop(third);
    incoming.commit(&Digest::of(b"bbbb")).unwrap();
    assert_eq!(store.usage(), usage(1, 4, 0));
}

#[test]
fn a_restart_keeps_complete_artifacts_and_removes_incomplete_artifacts() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    drop(put(&store, b"kept"));
    drop(store);
    fs::write(directory.path().join("incoming/.tmpHalf"), b"half").unwrap();
    fs::write(directory.path().join("complete/notes.txt"), b"foreign file").unwrap();

    let store = Store::open(directory.path(), 100).unwrap();
    assert_eq!(store.usage(), usage(1, 4, 0));
    assert_eq!(files(&directory.path().join("incoming")), 0);
    assert_eq!(read(&store.open_artifact(&Digest::of(b"kept")).unwrap().unwrap()), b"kept");
    assert!(directory.path().join("complete/notes.txt").exists());
}

#[test]
fn a_damaged_file_of_an_earlier_process_is_treated_as_absent() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    let path = put(&store, b"whole").path().to_owned();
    drop(store);
    fs::write(&path, b"whale").unwrap();

    let store = Store::open(directory.path(), 100).unwrap();
    assert!(store.open_artifact(&Digest::of(b"whole")).unwrap().is_none());
    assert!(!path.exists());
    assert_eq!(store.usage(), usage(0, 0, 0));
    assert_eq!(read(&put(&store, b"whole")), b"whole");
}

#[test]
fn new_bytes_replace_an_unverified_file_of_an_earlier_process() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    let path = put(&store, b"whole").path().to_owned();
    drop(store);
    fs::write(&path, b"damaged").unwrap();

    let store = Store::open(directory.path(), 100).unwrap();
    assert_eq!(read(&put(&store, b"whole")), b"whole");
    assert_eq!(store.usage(), usage(1, 5, 0));
}

#[test]
fn a_missing_or_truncated_file_is_treated_as_absent() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    for damage in [|path: &Path| fs::remove_file(path), |path: &Path| fs::write(path, b"ho")] {
        let path = put(&store, b"hello").path().to_owned();
        damage(&path).unwrap();
        assert!(store.open_artifact(&Digest::of(b"hello")).unwrap().is_none());
        assert_eq!(store.usage(), usage(0, 0, 0));
    }
}

#[test]
fn a_discarded_artifact_is_removed_and_can_be_added_again() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    let old = put(&store, b"hello");
    store.discard(&Digest::of(b"hello")).unwrap();
    assert!(!store.contains(&Digest::of(b"hello")));
    let new = put(&store, b"hello");
    drop(old);
    assert_eq!(read(&new), b"hello");
    assert_eq!(store.usage(), usage(1, 5, 0));
}

#[test]
fn a_smaller_capacity_evicts_the_oldest_artifacts_at_startup() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    for (age, bytes) in [(2, b"old!"), (1, b"new!")] {
        let file = put(&store, bytes).file().unwrap();
        let modified = std::time::SystemTime::now() - std::time::Duration::from_secs(age * 60);
        file.set_modified(modified).unwrap();
    }
    drop(store);
    let store = Store::open(directory.path(), 5).unwrap();
    assert!(!store.contains(&Digest::of(b"old!")));
    assert!(store.contains(&Digest::of(b"new!")));
}

#[test]
fn two_processes_cannot_share_a_directory() {
    let directory = TempDir::new().unwrap();
    let first = Store::open(directory.path(), 100).unwrap();
    let error = Store::open(directory.path(), 100).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(first);
    Store::open(directory.path(), 100).unwrap();
}

#[test]
fn stored_files_are_readable_only_by_the_owner() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 100).unwrap();
    assert_eq!(put(&store, b"hello").file().unwrap().metadata().unwrap().mode() & 0o777, 0o600);
}

#[test]
fn concurrent_writes_do_not_exceed_the_capacity() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 4000).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let store = store.clone();
            scope.spawn(move || {
                for round in 0..25_u8 {
                    let bytes = [[thread, round % 10].as_slice(), &[0; 498]].concat();
                    assert_eq!(read(&put(&store, &bytes)), bytes);
                    let now = store.usage();
                    assert!(now.complete_bytes + now.incoming_bytes <= 4000, "{now:?}");
                }
            });
        }
    });
    let now = store.usage();
    assert_eq!((now.incoming_bytes, now.complete_bytes), (0, now.artifacts as u64 * 500));
    assert_eq!(files(&directory.path().join("complete")), now.artifacts);
}

#[test]
fn a_file_written_by_another_process_is_stored_within_the_limits() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path(), 1000).unwrap();
    let taken = |bytes: usize, most: u64| {
        let mut incoming = store.begin(Algorithm::Sha256).unwrap();
        fs::write(incoming.path(), vec![b'x'; bytes]).unwrap();
        incoming.hash_file(most).and_then(|()| incoming.commit_as_is())
    };
    let kept = taken(700, 800).unwrap();
    assert_eq!(kept.digest(), &Digest::of_reader(Algorithm::Sha256, &vec![b'x'; 700][..]).unwrap());
    assert_eq!(fs::read(kept.path()).unwrap().len(), 700);
    assert!(matches!(taken(801, 800), Err(StoreError::Write { .. })));
    assert!(matches!(taken(301, 800), Err(StoreError::Full { .. })), "the first artifact is in use");
    assert_eq!(store.usage(), Usage { artifacts: 1, complete_bytes: 700, incoming_bytes: 0 });
    assert_eq!(fs::read_dir(directory.path().join("incoming")).unwrap().count(), 0);
}

#[test]
fn grants_apply_to_one_artifact_and_are_removed_with_the_artifact() {
    let directory = TempDir::new().unwrap();
    let (one, other) = (Digest::of(b"aaaa"), Digest::of(b"bbbb"));
    {
        let store = Store::open(directory.path(), 10).unwrap();
        assert!(!store.grant(&one, "team-a").unwrap(), "artifact is not in the store");
        drop((put(&store, b"aaaa"), put(&store, b"bbbb")));
        assert!(store.grant(&one, "team-a").unwrap());
        assert!(store.is_granted(&one, "team-a"));
        assert!(!store.is_granted(&one, "team-b") && !store.is_granted(&other, "team-a"));
        assert!(store.open_granted(&one, "team-b").unwrap().is_none());
    }
    let store = Store::open(directory.path(), 10).unwrap();
    assert_eq!(read(&store.open_granted(&one, "team-a").unwrap().unwrap()), b"aaaa", "the grant survives a restart");
    assert!(!store.is_granted(&one, "team-b"));
    store.discard(&one).unwrap();
    drop(put(&store, b"aaaa"));
    assert!(!store.is_granted(&one, "team-a"), "the namespace has no grant for this artifact");
    drop(store);
    fs::write(directory.path().join("grants").join(file_name(&Digest::of(b"gone"))), "team-b\n").unwrap();
    drop(Store::open(directory.path(), 10).unwrap());
    assert_eq!(files(&directory.path().join("grants")), 0, "grants of evicted artifacts are removed");
}
