//! Baseline for the creation of many Stacks: a Job whose pods do the Workspaces' work without the controller. The pods
//! use the same image, CLI calls and backend. The controller cannot be faster than this baseline on the same machine.

use std::time::{Duration, Instant};

use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use crate::harness::{Environment, Poll, STATE_SECRET, Scene, WaitLimit, wait_until};

/// Number of concurrent pods. This number keeps two CPUs busy without contention.
const CONCURRENT_PODS: usize = 6;

/// Script that creates and updates the Pulumi stack with the same CLI calls as the agent.
const SCRIPT: &str = "set -e; mkdir -p /tmp/project /tmp/home; cd /tmp/project; printf '%s' \"$PROGRAM\" >Pulumi.yaml; \
    pulumi --non-interactive stack select --create bare-$JOB_COMPLETION_INDEX; \
    pulumi --non-interactive --color=never up --yes --skip-preview --stack=bare-$JOB_COMPLETION_INDEX";

/// Returns the duration of a Job that creates `stacks` Pulumi stacks from one program.
pub async fn run(scene: &Scene, program: &str, stacks: usize) -> Duration {
    let began = Instant::now();
    scene.create::<Job>(job(program, stacks)).await;
    wait_until("every pod of the Job to have run its stack", WaitLimit::Long, async || {
        let status = scene.api::<Job>().get("bare").await.map(|job| job.status.unwrap_or_default());
        match status {
            Ok(status) if status.failed.unwrap_or_default() > 0 => panic!("a pod of the Job bare failed: {status:?}"),
            Ok(status) if status.succeeded.unwrap_or_default() as usize == stacks => Poll::Found(()),
            other => Poll::NotYet(format!("{other:?}")),
        }
    })
    .await;
    let took = began.elapsed();
    scene.delete::<Job>("bare").await;
    took
}

fn job(program: &str, stacks: usize) -> Value {
    let environment = Environment::get();
    let secret = |key: &str| json!({"name": key, "valueFrom": {"secretKeyRef": {"name": STATE_SECRET, "key": key}}});
    let literal = |name: &str, value: &str| json!({"name": name, "value": value});
    let container = json!({
        "name": "pulumi",
        "image": environment.pulumi_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", SCRIPT],
        "env": [
            secret("AWS_ACCESS_KEY_ID"),
            secret("AWS_SECRET_ACCESS_KEY"),
            secret("PULUMI_CONFIG_PASSPHRASE"),
            literal("PROVIDER_LOG_URL", &environment.provider_log_url_in_cluster),
            literal("PULUMI_BACKEND_URL", &environment.s3_backend_url),
            literal("PULUMI_SKIP_UPDATE_CHECK", "true"),
            literal("HOME", "/tmp/home"),
            literal("USER", "pulumi"),
            literal("PROGRAM", program),
        ],
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    });
    json!({
        "metadata": {"name": "bare"},
        "spec": {
            "completions": stacks,
            "parallelism": CONCURRENT_PODS,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {"spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [container],
            }},
        },
    })
}
