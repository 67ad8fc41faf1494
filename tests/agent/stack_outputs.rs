//! Tests the stack outputs of a successful run if the agent cannot read all outputs.

use pulumi_controller::rpc::proto::{self, Outcome};

use crate::harness::{Workspace, outputs};

/// Script that replaces the CLI. An `up` reports a plain output and a secret output. `pulumi stack output` fails the
/// first `FAILURES` times.
const CLI: &str = r#"
case "$*" in
    *--event-log=*)
        for word; do case "$word" in --event-log=*) log=${word#--event-log=} ;; esac; done
        secret='{"4dabf18193072939515e22adb298388d":"1b47061264138c4ac30d75fd1eb44270","ciphertext":"[secret]"}'
        urn='urn:pulumi:dev::example::pulumi:pulumi:Stack::example-dev'
        step='{"op":"same","urn":"%s","type":"pulumi:pulumi:Stack","new":{"outputs":{"size":"big","password":%s}}}'
        {
            printf '{"resOutputsEvent":{"metadata":'"$step"'}}\n' "$urn" "$secret"
            printf '{"summaryEvent":{"durationSeconds":1,"resourceChanges":{"same":1},"result":"succeeded"}}\n'
            printf '{"cancelEvent":{}}\n'
        } >"$log" ;;
    *stack*output*)
        echo read >>"$HOME/reads"
        if [ "$(wc -l <"$HOME/reads")" -le FAILURES ]; then
            echo 'error: [429] too many requests' >&2
            exit 1
        fi
        echo '{"size":"big","password":"hunter22"}' ;;
esac
"#;

async fn run(failures: usize) -> (Workspace, proto::Result) {
    run_with(&CLI.replace("FAILURES", &failures.to_string())).await
}

async fn run_with(cli: &str) -> (Workspace, proto::Result) {
    let workspace = Workspace::start_with(Some(cli), &[]).await;
    workspace.deliver(&[("Pulumi.yaml", "name: example\nruntime: yaml\n")]).await.unwrap();
    let request = workspace.request(&[]).await;
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    (workspace, result)
}

#[tokio::test]
async fn the_secret_outputs_are_read_again_after_an_error() {
    let (_workspace, result) = run(1).await;
    assert_eq!((outputs(&result)["password"], outputs(&result)["size"]), (("\"hunter22\"", true), ("\"big\"", false)));
    assert_eq!((result.message.as_str(), result.outputs_unavailable), ("", false));
}

#[tokio::test]
async fn a_result_contains_the_other_outputs_if_the_secret_outputs_are_unknown() {
    let (workspace, result) = run(1000).await;
    assert!(result.outputs_unavailable, "{:?}", result.outputs);
    assert_eq!((outputs(&result)["password"], outputs(&result)["size"]), (("", true), ("\"big\"", false)));
    assert!(result.message.contains("failed to read the values of the secret outputs"), "{}", result.message);
    assert!(result.message.contains("too many requests"), "{}", result.message);
    let reads = std::fs::read_to_string(workspace.path("home/reads")).unwrap();
    assert_eq!(reads.lines().count(), 4, "the number of attempts is limited");
}

#[tokio::test]
async fn the_timeout_of_the_run_limits_the_time_to_read_the_outputs() {
    let cli = CLI.replace("echo read >>\"$HOME/reads\"", "exec sleep 3600");
    let workspace = Workspace::start_with(Some(&cli), &[]).await;
    workspace.deliver(&[("Pulumi.yaml", "name: example\nruntime: yaml\n")]).await.unwrap();
    let request = proto::RunRequest { timeout_seconds: 3, ..workspace.request(&[]).await };
    let result = workspace.run_to_end(&request).await;
    assert_eq!(result.outcome(), Outcome::Succeeded, "{}", result.message);
    let expected = "failed to read the values of the secret outputs: the run exceeded its timeout of 3s and was canceled \
                    while the CLI was reading the secret outputs; the next run reads them";
    assert_eq!(result.message, expected);
    assert_eq!(outputs(&result)["size"], ("\"big\"", false));
}

#[tokio::test]
async fn an_incomplete_event_log_makes_the_outputs_unavailable() {
    let without_end = CLI.replace("FAILURES", "0").replace("summaryEvent", "unknownEvent");
    for cli in ["exit 0", &without_end] {
        let (_workspace, result) = run_with(cli).await;
        assert!(result.outputs_unavailable && result.outputs.is_empty(), "{:?}", result.outputs);
        assert!(result.message.contains("event log is incomplete"), "{}", result.message);
    }
}
