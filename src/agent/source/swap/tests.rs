use std::fs;

use super::*;

/// Number of steps of a trial.
const STEPS: usize = 6;

struct Place {
    _directory: tempfile::TempDir,
    layout: Layout,
    tree: PathBuf,
}

impl Place {
    /// Creates a share volume with an unpacked tree. If `first` is false, the function also installs another source.
    fn new(first: bool) -> (Self, Option<CurrentSource>) {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        layout.create().unwrap();
        let tree = layout.staging().join("new/tree");
        fs::create_dir_all(tree.join("app")).unwrap();
        fs::write(tree.join("app/Pulumi.yaml"), "new").unwrap();
        let place = Place { _directory: directory, layout, tree };
        if first {
            return (place, None);
        }
        let source = place.layout.source();
        fs::create_dir_all(source.join("node_modules/left-pad")).unwrap();
        fs::write(source.join("Pulumi.yaml"), "old").unwrap();
        link_project(&place.layout, &Directory::root()).unwrap();
        let before = CurrentSource { digest: "sha256:old".into(), tree: "old".into(), ..CurrentSource::default() };
        Record { current_source: Some(before.clone()), trial: None }.write(&place.layout).unwrap();
        (place, Some(before))
    }

    fn carried(&self) -> Vec<PathBuf> {
        vec![PathBuf::from("node_modules")]
    }

    /// Runs the first `count` steps of a trial. Simulates an agent that is killed after these steps.
    fn step(&self, before: Option<&CurrentSource>, count: usize) {
        let (layout, tree) = (&self.layout, &self.tree);
        let steps: [&dyn Fn(); STEPS] = [
            &|| drop(record_trial(layout, before, tree, self.carried()).unwrap()),
            &|| carry::move_all(&layout.source(), tree, &self.carried()).unwrap(),
            &|| set_aside(layout).unwrap(),
            &|| durable::rename(tree, &layout.source()).unwrap(),
            &|| link_project(layout, &"app".parse().unwrap()).unwrap(),
            &|| fs::create_dir(layout.workspace().join("half-installed")).unwrap(),
        ];
        steps.iter().take(count).for_each(|step| step());
    }
}

#[test]
fn the_previous_source_is_restored_after_a_crash_at_any_step() {
    for steps in 0..=STEPS {
        let (place, before) = Place::new(false);
        place.step(before.as_ref(), steps);
        // Restores the source twice. During the first restoration, the agent may be killed, or may fail to update the
        // record because the disk is full.
        for _ in 0..2 {
            let record = Record::read(&place.layout);
            assert_eq!(record.current_source, before, "{steps} steps");
            if let Some(trial) = &record.trial {
                restore(&place.layout, before.as_ref(), trial).unwrap();
                assert_eq!(Record::read(&place.layout), Record { trial: None, ..record.clone() });
                record.write(&place.layout).unwrap();
            }
            let project = fs::read_to_string(place.layout.workspace().join("Pulumi.yaml")).unwrap();
            assert_eq!(project, "old", "{steps} steps");
            assert!(place.layout.source().join("node_modules/left-pad").is_dir(), "{steps} steps");
            assert!(!place.layout.workspace().join("half-installed").exists());
        }
    }
}

#[test]
fn a_restoration_that_was_not_recorded_is_not_repeated_after_the_staged_source_is_removed() {
    for steps in 1..=STEPS {
        let (place, before) = Place::new(false);
        place.step(before.as_ref(), steps);
        let record = Record::read(&place.layout);
        let trial = record.trial.clone().unwrap();
        fs::create_dir_all(place.layout.previous().join("older")).unwrap();
        restore(&place.layout, before.as_ref(), &trial).unwrap();
        record.write(&place.layout).unwrap();
        durable::remove(&place.layout.staging()).unwrap();
        place.layout.create().unwrap();
        restore(&place.layout, before.as_ref(), &trial).unwrap();
        let project = fs::read_to_string(place.layout.workspace().join("Pulumi.yaml")).unwrap();
        assert_eq!(project, "old", "{steps} steps");
        assert!(place.layout.previous().join("older").is_dir(), "{steps} steps");
    }
}

#[test]
fn a_source_that_an_earlier_trial_has_left_aside_does_not_replace_the_current_source() {
    let (place, before) = Place::new(false);
    let layout = &place.layout;
    fs::create_dir_all(layout.replaced().join("left")).unwrap();
    place.step(before.as_ref(), 2);
    restore(layout, before.as_ref(), &Record::read(layout).trial.unwrap()).unwrap();
    assert_eq!(fs::read_to_string(layout.workspace().join("Pulumi.yaml")).unwrap(), "old");
    let trial = record_trial(layout, before.as_ref(), &place.tree, place.carried()).unwrap();
    install_tree(layout, &trial, &"app".parse().unwrap()).unwrap();
    assert_eq!(fs::read_to_string(layout.replaced().join("Pulumi.yaml")).unwrap(), "old");
}

#[test]
fn the_replaced_source_becomes_the_previous_source() {
    let (place, _) = Place::new(true);
    let (layout, older) = (&place.layout, place.layout.staging().join("older"));
    for name in ["first", "second"] {
        fs::create_dir_all(layout.replaced().join(name)).unwrap();
        keep_previous(layout, &older);
        assert!(layout.previous().join(name).is_dir() && !layout.replaced().exists());
    }
    assert!(older.join("first").is_dir());
}

#[test]
fn a_crash_during_the_first_swap_leaves_no_partial_source() {
    for steps in 0..=STEPS {
        let (place, _) = Place::new(true);
        place.step(None, steps);
        if let Some(trial) = Record::read(&place.layout).trial {
            restore(&place.layout, None, &trial).unwrap();
        }
        let is_empty = |path: PathBuf| fs::read_dir(path).map_or(true, |mut entries| entries.next().is_none());
        assert!(is_empty(place.layout.source()) && is_empty(place.layout.workspace()), "{steps} steps");
        assert!(place.tree.join("app/Pulumi.yaml").is_file(), "{steps} steps");
    }
}

#[test]
fn the_working_directory_survives_a_rollback_of_the_first_source() {
    let (place, _) = Place::new(true);
    let layout = &place.layout;
    crate::agent::make_project(&layout.workspace()).unwrap();
    let trial = record_trial(layout, None, &place.tree, Vec::new()).unwrap();
    install_tree(layout, &trial, &"app".parse().unwrap()).unwrap();
    assert_eq!(fs::read_to_string(layout.workspace().join("Pulumi.yaml")).unwrap(), "new");
    restore(layout, None, &trial).unwrap();
    assert!(layout.workspace().is_symlink() && layout.workspace().is_dir());
    assert_eq!(fs::read_dir(layout.workspace()).unwrap().count(), 0);
}

#[test]
fn a_directory_created_by_the_container_runtime_is_replaced() {
    let (place, _) = Place::new(true);
    fs::create_dir(place.layout.workspace()).unwrap();
    let trial = record_trial(&place.layout, None, &place.tree, Vec::new()).unwrap();
    install_tree(&place.layout, &trial, &"app".parse().unwrap()).unwrap();
    assert_eq!(fs::read_to_string(place.layout.workspace().join("Pulumi.yaml")).unwrap(), "new");
}

#[test]
fn a_trial_that_cannot_be_recorded_changes_nothing() {
    let (place, before) = Place::new(false);
    // A file cannot replace a directory. A directory at the record path therefore simulates a full disk.
    fs::remove_file(place.layout.source_record()).unwrap();
    fs::create_dir_all(place.layout.source_record().join("inner")).unwrap();
    record_trial(&place.layout, before.as_ref(), &place.tree, place.carried()).unwrap_err();
    assert_eq!(fs::read_to_string(place.layout.workspace().join("Pulumi.yaml")).unwrap(), "old");
    assert!(place.layout.source().join("node_modules").is_dir() && place.tree.is_dir());
}

#[test]
fn a_confirmed_trial_stays_and_the_previous_source_is_kept() {
    let (place, before) = Place::new(false);
    let layout = &place.layout;
    let trial = record_trial(layout, before.as_ref(), &place.tree, place.carried()).unwrap();
    install_tree(layout, &trial, &"app".parse().unwrap()).unwrap();
    let next = CurrentSource { digest: "sha256:new".into(), directory: "app".into(), ..CurrentSource::default() };
    confirm(layout, &next, &trial).unwrap();
    assert_eq!(Record::read(layout), Record { current_source: Some(next), trial: None });
    assert_eq!(fs::read_to_string(layout.workspace().join("Pulumi.yaml")).unwrap(), "new");
    assert!(layout.source().join("node_modules/left-pad").is_dir());
    assert_eq!(fs::read_to_string(layout.previous().join("Pulumi.yaml")).unwrap(), "old");
}

#[test]
fn a_trial_that_cannot_be_confirmed_can_be_rolled_back() {
    let (place, before) = Place::new(false);
    let layout = &place.layout;
    let trial = record_trial(layout, before.as_ref(), &place.tree, place.carried()).unwrap();
    install_tree(layout, &trial, &"app".parse().unwrap()).unwrap();
    fs::remove_file(layout.source_record()).unwrap();
    fs::create_dir_all(layout.source_record().join("inner")).unwrap();
    confirm(layout, &CurrentSource::default(), &trial).unwrap_err();
    // The agent could not confirm the trial, but the previous source is intact.
    restore(layout, before.as_ref(), &trial).unwrap();
    assert_eq!(fs::read_to_string(layout.workspace().join("Pulumi.yaml")).unwrap(), "old");
    assert!(layout.source().join("node_modules/left-pad").is_dir());
}
