use serde_json::json;

use super::*;
use crate::plugin::fixtures::stack;
use crate::plugin::reference_tests::assert_example;

const URN: &str = "urn:pulumi:dev::web::aws:s3/bucket:Bucket::logs";

fn web() -> Stack {
    stack("web", &json!({ "suspend": true }), &json!({}))
}

fn state() -> StateFile {
    let content = json!({ "version": 3, "deployment": { "resources": [{}, {}, {}] } }).to_string();
    StateFile::parse("state.json", content.into_bytes()).unwrap()
}

#[test]
fn values_are_arguments_and_never_flags_of_the_cli() {
    let on_dev = ["--non-interactive", "--stack=dev"];
    let rows: [(Change<'_>, [&str; 2], &[&str]); 5] = [
        (Change::Import { state: state(), force: true }, ["stack", "import"], &["--force"]),
        (Change::Delete { urn: URN, force: false, dependents: false }, ["state", "delete"], &["--yes", "--", URN]),
        (
            Change::Delete { urn: URN, force: true, dependents: true },
            ["state", "delete"],
            &["--yes", "--force", "--target-dependents", "--", URN],
        ),
        (Change::Unprotect { urn: URN }, ["state", "unprotect"], &["--yes", "--", URN]),
        (Change::Rename { urn: URN, name: "--all" }, ["state", "rename"], &["--yes", "--", URN, "--all"]),
    ];
    for (change, words, values) in rows {
        let expected: Vec<&str> = words.into_iter().chain(on_dev).chain(values.iter().copied()).collect();
        assert_eq!(change.arguments(&web()), expected);
        assert_eq!(change.input().is_some(), words == ["stack", "import"]);
    }
}

#[test]
fn the_change_is_shown_before_the_confirmation() {
    let import = Change::Import { state: state(), force: false };
    assert_example("kubectl pulumi stack import web state.json", &import.describe(&web()));
    let delete = Change::Delete { urn: URN, force: false, dependents: true };
    assert_example(
        &format!("kubectl pulumi stack state delete web {URN} --target-dependents"),
        &delete.describe(&web()),
    );
    let unprotect = Change::Unprotect { urn: URN };
    assert_example(&format!("kubectl pulumi stack state unprotect web {URN}"), &unprotect.describe(&web()));
    let rename = Change::Rename { urn: URN, name: "archive" };
    assert_example(&format!("kubectl pulumi stack state rename web {URN} archive"), &rename.describe(&web()));
}

#[test]
fn a_change_requires_the_stack_that_was_shown() {
    let shown = web();
    assert!(is_unchanged(&shown, &web()));
    let (mut edited, mut recreated) = (web(), web());
    edited.metadata.generation = Some(2);
    recreated.metadata.uid = Some("uid-2".to_owned());
    assert!(!is_unchanged(&shown, &edited), "the spec can name another Pulumi stack");
    assert!(!is_unchanged(&shown, &recreated));
}

#[test]
fn only_a_state_is_imported_and_only_a_urn_is_changed() {
    for content in ["", "[]", "{}", r#"{"deployment": 1}"#] {
        let error = StateFile::parse("state.json", content.as_bytes().to_vec()).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{content:?}");
        assert!(error.to_string().contains("state.json"), "{error}");
    }
    assert_eq!(StateFile::read(Path::new("/no/such/file")).unwrap_err().exit_code(), 1);
    assert_eq!(checked("URN", URN).unwrap(), URN);
    for urn in ["", "--all", "logs", "urn:pulumi:a\nb"] {
        assert_eq!(checked("URN", urn).unwrap_err().exit_code(), 2, "{urn:?}");
    }
    assert_eq!(checked("NAME", "archive").unwrap(), "archive");
}
