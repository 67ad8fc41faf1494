//! Tests for policy packs. A script replaces the CLI.

use std::fs;

use pulumi_controller::rpc::proto::environment_variable::Source;
use pulumi_controller::rpc::proto::{self, Outcome, RunRequest};
use pulumi_controller::rpc::protocol::settings_digest;

use crate::harness::{Workspace, archive, signal, variable};

const PROGRAM: &str = "name: example\nruntime: yaml\n";
const PACK: &str = "name: house\nruntime: nodejs\n";

/// Script that replaces the CLI. The script records policy pack installations and the arguments of each `up`. Each `up`
/// reports a mandatory, an advisory and an exempted violation. If the pack contains the file `broken`, its installation fails. If
/// the pack contains the file `endless`, and the home directory does not contain such a file, the installation never
/// completes.
const CLI: &str = r#"for argument in "$@"; do
    case "$argument" in --event-log=*) log=${argument#--event-log=};; esac
done
case "$*" in
*" install")
    [ -f PulumiPolicy.yaml ] || exit 0
    pwd >> "$HOME/installs"
    [ ! -f broken ] || { echo 'no such package: left-pad' >&2; exit 1; }
    mkdir -p node_modules
    while [ -f endless ] && [ ! -f "$HOME/endless" ]; do sleep 0.1; done;;
*" up "*)
    printf '%s\n' "$@" > "$HOME/up"
    violation='{"sequence":1,"timestamp":1,"policyEvent":{"resourceUrn":"urn:pulumi:dev::example::a:b:C::d","message":"LEVEL text",
        "policyName":"no-public","policyPackName":"house","policyPackVersion":"1.2.0","enforcementLevel":"LEVEL"}}'
    for level in advisory mandatory; do
        printf '%s' "$violation" | tr -d '\n' | sed "s/LEVEL/$level/g" >> "$log"
        echo >> "$log"
    done
    printf '%s' "$violation" | tr -d '\n' |
        sed 's/"enforcementLevel":"LEVEL"/"enforcementLevel":"mandatory","exceptions":[{"id":"EXC-1","reason":"legacy"}]/' >> "$log"
    echo >> "$log"
    exit 1;;
esac"#;

/// Returns the archive of a policy pack with an additional file.
fn pack(file: &str) -> (proto::Artifact, Vec<u8>) {
    archive(&[("PulumiPolicy.yaml", PACK), (file, "content")])
}

fn state<'a>(status: &'a proto::StatusReply, artifact: &proto::Artifact) -> Option<&'a proto::PolicyPackState> {
    status.policy_packs.iter().find(|pack| pack.artifact.as_ref() == Some(artifact))
}

async fn until_installed(workspace: &Workspace, artifact: &proto::Artifact) {
    workspace
        .until("the policy pack is installed", |status| state(status, artifact).is_some_and(|pack| pack.installed))
        .await;
}

/// Returns the directories in which the script has installed dependencies.
fn installs(workspace: &Workspace) -> Vec<String> {
    let text = fs::read_to_string(workspace.path("home/installs")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Returns a request for an `up` that enforces a policy pack.
async fn request(workspace: &Workspace, artifact: &proto::Artifact, config: &str) -> RunRequest {
    let request = workspace.request(&[]).await;
    let pack = proto::PolicyPack { name: "house".into(), artifact: Some(artifact.clone()), config: config.into() };
    let settings = proto::Settings { policy_packs: vec![pack], ..request.settings.unwrap_or_default() };
    RunRequest { settings_digest: settings_digest(&settings), settings: Some(settings), ..request }
}

#[tokio::test]
async fn a_policy_pack_is_installed_once_and_removed_when_no_longer_required() {
    let mut workspace = Workspace::start_with(Some(CLI), &[]).await;
    workspace.put(PROGRAM).await;
    let ((first, bytes), (second, other)) = (pack("one"), pack("two"));
    assert!(!workspace.put_policy_pack(&first, bytes.clone(), &[&first]).await.unwrap());
    until_installed(&workspace, &first).await;
    assert!(workspace.put_policy_pack(&first, bytes, &[&first]).await.unwrap(), "the pack is already installed");
    assert_eq!(installs(&workspace).len(), 1);

    workspace.put_policy_pack(&second, other, &[&first, &second]).await.unwrap();
    until_installed(&workspace, &second).await;
    workspace.put("name: example\nruntime: yaml\noutputs: {changed: true}\n").await;
    workspace.terminate();
    assert_eq!(workspace.wait_for_exit().await, Some(0));
    workspace.start_agent().await;
    let status = workspace.status().await;
    assert!(state(&status, &first).is_some_and(|pack| pack.installed), "{status:?}");
    assert!(state(&status, &second).is_some_and(|pack| pack.installed), "{status:?}");
    assert_eq!(installs(&workspace).len(), 2);

    let (third, bytes) = pack("three");
    workspace.put_policy_pack(&third, bytes, &[&third]).await.unwrap();
    until_installed(&workspace, &third).await;
    assert_eq!(workspace.status().await.policy_packs.len(), 1);
    assert_eq!(fs::read_dir(workspace.path("share/policies")).unwrap().count(), 1);
}

#[tokio::test]
async fn killing_the_agent_leaves_no_incomplete_policy_pack() {
    let mut workspace = Workspace::start_with(Some(CLI), &[]).await;
    workspace.put(PROGRAM).await;
    let (artifact, bytes) = pack("endless");
    workspace.put_policy_pack(&artifact, bytes.clone(), &[]).await.unwrap();
    workspace.until("the installation runs", |_| installs(&workspace).len() == 1).await;
    signal(workspace.agent_pid(), "KILL");
    workspace.wait_for_exit().await;
    workspace.start_agent().await;
    assert_eq!(workspace.status().await.policy_packs, []);
    for directory in ["share/policies", "share/staging"] {
        assert_eq!(fs::read_dir(workspace.path(directory)).unwrap().count(), 0, "{directory}");
    }
    let refusal = workspace.run(&request(&workspace, &artifact, "").await).await.unwrap_err();
    assert!(refusal.is_precondition(), "{refusal}");

    fs::write(workspace.path("home/endless"), "").unwrap();
    workspace.put_policy_pack(&artifact, bytes, &[]).await.unwrap();
    until_installed(&workspace, &artifact).await;
}

#[tokio::test]
async fn a_run_does_not_wait_for_the_installation_of_an_unused_policy_pack() {
    let workspace = Workspace::start_with(Some(CLI), &[]).await;
    workspace.put(PROGRAM).await;
    let (artifact, bytes) = pack("endless");
    workspace.put_policy_pack(&artifact, bytes, &[]).await.unwrap();
    workspace.until("the installation runs", |_| installs(&workspace).len() == 1).await;
    let result = workspace.run_to_end(&workspace.request(&[]).await).await;
    assert_eq!(result.outcome(), Outcome::PolicyViolated, "the run has started: {}", result.message);
    assert_eq!(workspace.status().await.policy_packs, [], "the controller sends the pack again if it is required");
}

#[tokio::test]
async fn invalid_policy_packs_are_rejected_and_failed_installations_reported() {
    let workspace = Workspace::start_with(Some(CLI), &[]).await;
    workspace.put(PROGRAM).await;
    let (artifact, bytes) = archive(&[("Pulumi.yaml", PROGRAM)]);
    let refusal = workspace.put_policy_pack(&artifact, bytes, &[]).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains("no PulumiPolicy.yaml found"), "{refusal}");
    let (artifact, mut bytes) = pack("one");
    bytes.reverse();
    let refusal = workspace.put_policy_pack(&artifact, bytes, &[]).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains(&artifact.digest), "{refusal}");
    assert_eq!(workspace.status().await.policy_packs, []);

    let (artifact, bytes) = pack("broken");
    workspace.put_policy_pack(&artifact, bytes, &[]).await.unwrap();
    let status = workspace
        .until("the installation has failed", |status| {
            state(status, &artifact).is_some_and(|pack| !pack.failure.is_empty())
        })
        .await;
    let failed = state(&status, &artifact).unwrap();
    assert!(!failed.installed && failed.failure.contains("no such package: left-pad"), "{failed:?}");
    let run = request(&workspace, &artifact, "").await;
    let refusal = workspace.run(&run).await.unwrap_err();
    assert!(refusal.is_precondition() && refusal.message.contains("policy pack house"), "{refusal}");
}

#[tokio::test]
async fn a_run_enforces_its_policy_packs_and_reports_the_violations() {
    let workspace = Workspace::start_with(Some(CLI), &[]).await;
    workspace.put(PROGRAM).await;
    let (artifact, bytes) = pack("one");
    workspace.put_policy_pack(&artifact, bytes, &[]).await.unwrap();
    until_installed(&workspace, &artifact).await;

    let config = "{\"no-public\":{\"names\":[\"a\"]}}";
    let result = workspace.run_to_end(&request(&workspace, &artifact, config).await).await;
    assert_eq!(result.outcome(), Outcome::PolicyViolated, "{}", result.message);
    assert!(
        result.message.contains("violates the policy no-public of house 1.2.0: mandatory text"),
        "{}",
        result.message
    );
    assert_eq!((result.mandatory_violation_count, result.advisory_violation_count), (1, 1));
    assert_eq!((result.exempted_violation_count, result.exempted_violations.len()), (1, 1));
    assert_eq!(result.exempted_violations[0].exemption, "EXC-1: legacy");
    let first = &result.policy_violations[0];
    assert_eq!((first.mandatory, first.pack.as_str(), first.policy.as_str()), (true, "house", "no-public"));

    let arguments = fs::read_to_string(workspace.path("home/up")).unwrap();
    let value = |flag: &str| arguments.lines().find_map(|line| line.strip_prefix(flag)).map(str::to_owned);
    let directory = installs(&workspace).pop().unwrap();
    assert_eq!(value("--policy-pack="), Some(directory), "the pack is installed at the path that the run uses");
    let file = value("--policy-pack-config=").unwrap();
    assert_eq!(fs::read_to_string(file).unwrap(), config);
}

#[tokio::test]
async fn a_run_that_configures_an_installed_policy_pack_is_rejected() {
    let workspace = Workspace::start_with(Some(CLI), &[]).await;
    workspace.put(PROGRAM).await;
    let (artifact, bytes) = pack("one");
    workspace.put_policy_pack(&artifact, bytes, &[]).await.unwrap();
    until_installed(&workspace, &artifact).await;
    let mut run = request(&workspace, &artifact, "").await;
    let directory = installs(&workspace).pop().unwrap();
    for (name, value) in
        [("PULUMI_OPTION_POLICY_PACK", directory.as_str()), ("PULUMI_OPTION_POLICY_PACK_CONFIG", "off")]
    {
        run.environment.push(variable(name, Source::Value(value.into())));
    }
    let refusal = workspace.run(&run).await.unwrap_err();
    assert!(refusal.is_refusal() && refusal.message.contains("must not contain a directory in"), "{refusal}");
    assert!(!workspace.path("home/up").exists());
}

#[tokio::test]
async fn a_run_without_the_required_policy_pack_is_rejected() {
    let workspace = Workspace::start_with(Some(CLI), &[]).await;
    workspace.put(PROGRAM).await;
    let (artifact, _) = pack("one");
    let refusal = workspace.run(&request(&workspace, &artifact, "").await).await.unwrap_err();
    assert!(refusal.is_precondition() && refusal.message.contains("house"), "{refusal}");
    assert!(!workspace.path("home/up").exists());
}
