//! What a change of what the configuration refers to, or of what the pod mounts, does.

use std::collections::BTreeMap;

use super::*;

#[test]
fn a_rotated_config_input_is_announced_with_what_was_seen_and_the_first_sight_is_noted() {
    let seen = |before: Option<&str>, state: &str, now_seen: Option<&str>| {
        let mut stack = stack();
        let last = LastUpdate { config_inputs: before.map(str::to_owned), ..last("up", state) };
        stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
        let mut workspace = workspace(&stack, Status::True, "Succeeded");
        workspace.status.as_mut().expect("there").config_inputs = now_seen.map(str::to_owned);
        decide(&Observed { workspace: Some(workspace), ..observed(stack) }, now())
    };
    let Action::Start(current) = seen(Some("a"), "succeeded", Some("b")) else { panic!("it is not started") };
    assert_eq!(current.config_inputs.as_deref(), Some("b"), "so that whoever comes next knows that it was answered");
    assert_eq!(seen(Some("a"), "succeeded", Some("a")), Action::Settled(Settled::Done(None)));
    assert_eq!(seen(Some("a"), "succeeded", None), Action::Settled(Settled::Done(None)));
    let noted = FirstSight { config: Some("b".to_owned()), ..FirstSight::default() };
    assert_eq!(seen(None, "succeeded", Some("b")), Action::NoteInputs(noted.clone()));
    assert_eq!(seen(None, "failed", Some("b")), Action::NoteInputs(noted.clone()));
    assert_eq!(seen(None, "succeeded", None), Action::Settled(Settled::Done(None)));
}

#[test]
fn r8_the_table_of_what_a_change_of_a_mounted_object_does() {
    let words = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(object, word)| ((*object).to_owned(), (*word).to_owned())).collect()
    };
    let (secret, map) = ("Secret/aws", "ConfigMap/settings");
    // What the last run had seen, what the pod has now, what is watched, and the message of the run that starts.
    type Words<'a> = Vec<(&'a str, &'a str)>;
    let rows: [(&str, Words<'_>, Words<'_>, &[&str], Option<&str>); 7] = [
        ("nothing has changed", vec![(secret, "1")], vec![(secret, "1")], &[secret], None),
        (
            "one that is watched has",
            vec![(secret, "1")],
            vec![(secret, "2")],
            &[secret],
            Some("Secret aws has changed"),
        ),
        ("one that is not has", vec![(secret, "1")], vec![(secret, "2")], &[], None),
        ("another one is watched", vec![(secret, "1"), (map, "1")], vec![(secret, "2"), (map, "1")], &[map], None),
        (
            "both have, one is watched",
            vec![(secret, "1"), (map, "1")],
            vec![(secret, "2"), (map, "2")],
            &[map],
            Some("ConfigMap settings has changed"),
        ),
        ("the first sight is no change", vec![], vec![(secret, "1")], &[secret], None),
        ("it is mounted no more", vec![(secret, "1")], vec![], &[secret], None),
    ];
    for (name, before, now_seen, watched, wanted) in rows {
        let mut stack = stack();
        let last = LastUpdate { mounted_inputs: words(&before), ..last("up", "succeeded") };
        stack.status = Some(StackStatus { last_update: Some(last), ..StackStatus::default() });
        let mut workspace = workspace(&stack, Status::True, "Succeeded");
        workspace.status.as_mut().expect("there").mounted_inputs = words(&now_seen);
        let watched = watched.iter().map(|object| (*object).to_owned()).collect();
        let action = decide(&Observed { workspace: Some(workspace), watched, ..observed(stack) }, now());
        match (action, wanted) {
            (Action::Start(current), Some(message)) => {
                assert_eq!(current.message, message, "{name}");
                let unwatched = current.mounted_inputs.get(secret).map(String::as_str);
                let seen = if name.starts_with("both") { Some("1") } else { Some("2") };
                assert_eq!(unwatched, seen, "{name}: what is not watched counts as it was");
            }
            (Action::Settled(Settled::Done(None)), None) => {}
            (Action::NoteInputs(first), None) => assert_eq!(first.mounted, words(&now_seen), "{name}"),
            (other, _) => panic!("{name}: {other:?}"),
        }
    }
}
