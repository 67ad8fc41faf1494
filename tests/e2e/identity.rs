//! Tests agent authentication, and changes to the certificate authority while Stacks run.
//!
//! All Stacks share one certificate authority. Other tests that run in parallel therefore also prove that a change to
//! the authority does not interrupt a run.

use std::collections::BTreeMap;

use jiff::{Timestamp, ToSpan};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use pulumi_controller::api::names::{self, workspace_server_name, workspace_tls_secret};
use pulumi_controller::rpc::client::{AgentAddress, Agents};
use pulumi_controller::rpc::identity::{Authority, Issued};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::harness::{Poll, Program, Scene, Source, StackHandle, WaitLimit, api_call, once, run, wait_until};

const NAMESPACE: &str = "flux-system";
const SECRET: &str = "pulumi-controller-authority";

/// Duration of a slow run in seconds. The run is longer than the interval at which the controller checks the Secret,
/// which is 20 seconds.
const LONG_RUN: u32 = 45;

/// Lock on the certificate authority. A test that changes the certificate authority, or that needs an unchanged
/// authority, holds this lock.
pub(crate) static AUTHORITY_LOCK: Mutex<()> = Mutex::const_new(());

#[test]
fn a_ca_secret_deleted_during_a_run_is_recreated_without_interruption() {
    run("authority-deleted", async |scene| {
        let _alone = AUTHORITY_LOCK.lock().await;
        let running = Running::start(scene, "authority-deleted", LONG_RUN).await;
        let before = secret(scene).await;

        let action = format!("deleting the Secret {NAMESPACE}/{SECRET}");
        api_call(action, secrets(scene).delete(SECRET, &DeleteParams::default())).await;
        wait_until("the Secret of the authority to be restored", WaitLimit::Reaction, async || {
            match secrets(scene).get_opt(SECRET).await {
                Ok(Some(found)) if found.uid() != before.uid() => {
                    assert!(found.data == before.data, "the Secret contains the previous authority");
                    Poll::Found(())
                }
                other => Poll::NotYet(format!("{:?}", other.map(|found| found.and_then(|secret| secret.uid())))),
            }
        })
        .await;
        running.assert_open().await;
        running.assert_ends_and_next_push_runs("two", 1).await;
    });
}

#[test]
fn replacing_the_ca_during_a_run_does_not_interrupt_the_run() {
    run("authority-replaced", async |scene| {
        let _alone = AUTHORITY_LOCK.lock().await;
        let running = Running::start(scene, "authority-replaced", LONG_RUN).await;
        let before = authority(&secret(scene).await);

        let other = Authority::generate(Timestamp::now()).expect("an authority");
        let data = json!({"ca.crt": base64(other.certificate_pem()), "ca.key": base64(&other.key_pem())});
        change(scene, json!({ "data": data })).await;
        running.until_certified_by(&other, before.certificate_pem()).await;
        running.assert_open().await;
        // At this point, the files in the pod can still be outdated, because the kubelet updates them with a delay.
        running.assert_ends_and_next_push_runs("two", 1).await;

        let alone = Agents::new(&[client(&other)], other.certificate_pem()).expect("a client of the new authority");
        wait_until("the agent to serve and to trust the new authority", WaitLimit::Long, async || {
            match status(&alone, &running.stack, scene).await {
                Ok(()) => Poll::Found(()),
                Err(message) => Poll::NotYet(message),
            }
        })
        .await;
        running.assert_ends_and_next_push_runs("three", 2).await;
    });
}

#[test]
fn a_requested_rotation_distributes_the_next_ca_before_it_signs() {
    run("authority-rotated", async |scene| {
        let _alone = AUTHORITY_LOCK.lock().await;
        let running = Running::start(scene, "authority-rotated", 5).await;
        let before = secret(scene).await;

        change(scene, json!({"metadata": {"annotations": {"pulumi.com/rotate": "now"}}})).await;
        let prepared = until_secret(scene, "to hold a next authority", |secret| {
            secret.annotations().contains_key("pulumi.com/promote-at") && text(secret, "next.crt").is_some()
        })
        .await;
        assert_eq!(text(&prepared, "ca.crt"), text(&before, "ca.crt"), "the next authority does not sign yet");
        assert!(!prepared.annotations().contains_key("pulumi.com/rotate"), "the request is handled");
        let next = text(&prepared, "next.crt").expect("a next authority");
        running.until_certified_by(&authority(&before), &next).await;

        // Sets the promotion time to the past. Otherwise, the controller would wait for an hour to ensure that all pods
        // trust the new authority.
        let past = Timestamp::now().checked_sub(1.minute()).expect("a time").to_string();
        change(scene, json!({"metadata": {"annotations": {"pulumi.com/promote-at": past}}})).await;
        let promoted = until_secret(scene, "to sign with the next authority", |secret| {
            text(secret, "ca.crt").as_ref() == Some(&next)
        })
        .await;
        assert_eq!(text(&promoted, "previous.crt"), text(&before, "ca.crt"), "the previous authority is still trusted");
        running.until_certified_by(&authority(&promoted), authority(&before).certificate_pem()).await;
        running.assert_ends_and_next_push_runs("two", 1).await;
    });
}

#[test]
fn agents_accept_only_the_controller_and_cannot_impersonate_peers() {
    run("mutual-tls", async |scene| {
        let _alone = AUTHORITY_LOCK.lock().await;
        let running = Running::start(scene, "mutual-tls", 10).await;
        let authority = authority(&secret(scene).await);
        let (secrets, name) = (scene.api::<Secret>(), workspace_tls_secret(&running.stack.name));
        let own = api_call("reading the workspace's TLS Secret", secrets.get(&name)).await;
        let own_text = |key: &str| text(&own, key).expect("the Secret is complete");
        let own = Issued { certificate_pem: own_text("tls.crt"), key_pem: own_text("tls.key").into() };
        let trusted = own_text("ca.crt");
        let long_ago = Timestamp::now().checked_sub((91 * 24).hours()).expect("a time");
        let expired = authority.issue_client(long_ago).expect("a certificate");
        let stranger = Authority::generate(Timestamp::now()).expect("an authority");
        let agents = |clients: &[Issued]| Agents::new(clients, &trusted).expect("the certificates can be used");

        status(&agents(&[client(&authority)]), &running.stack, scene).await.expect("the controller can call the agent");
        for (clients, response) in [
            (vec![], "requires a client certificate, but none was presented"),
            (vec![own], "rejected the presented certificate as invalid for this side of a connection"),
            (vec![expired], "rejected the presented certificate as expired"),
            (vec![client(&stranger)], "does not trust the authority of the presented certificate"),
        ] {
            let refused = status(&agents(&clients), &running.stack, scene).await.expect_err(response);
            assert!(refused.contains("the agent ") && refused.contains(response), "{response}: {refused}");
        }
        let address = AgentAddress {
            server_name: workspace_server_name("another", &scene.namespace),
            ..address(&running.stack, scene).await
        };
        let refused = agents(&[client(&authority)]).connect(&address).await.map(|_| ()).expect_err("another workspace");
        assert!(refused.message.contains("certificate is for another workspace"), "{refused}");
        running.assert_open().await;
        running.assert_ends_and_next_push_runs("two", 1).await;
    });
}

/// A Stack with an open run.
struct Running<'a> {
    scene: &'a Scene,
    name: &'static str,
    seconds: u32,
    source: Source<'a>,
    stack: StackHandle<'a>,
    pod: (String, i32),
}

impl<'a> Running<'a> {
    async fn start(scene: &'a Scene, name: &'static str, seconds: u32) -> Self {
        let source = scene.source("app").await;
        source.push(&program(name, seconds, "one").files()).await;
        let stack = scene.start(scene.stack("main", &source)).await;
        stack.log.wait_for("create", "slow", "begin").await;
        let pod = stack.pod_and_restarts().await;
        Running { scene, name, seconds, source, stack, pod }
    }

    async fn assert_open(&self) {
        assert_eq!(self.stack.log.operations().await, ["create slow begin"], "the run stays open");
    }

    /// Checks that the open run and each later run execute exactly once, and that the next push runs in the same pod.
    async fn assert_ends_and_next_push_runs(&self, text: &str, runs_before: usize) {
        let updates = self.stack.updates().await;
        assert_eq!(updates.len(), runs_before, "no run was repeated");
        self.stack.until("to have ended the open run", WaitLimit::Run, crate::harness::is_done).await;
        let second = self.source.push(&program(self.name, self.seconds, text).files()).await;
        self.stack.until_applied(&second).await;
        assert_eq!(self.stack.updates().await.len(), runs_before + 1);
        assert_eq!(self.stack.pod_and_restarts().await, self.pod, "the pod is not replaced");
        let mut steps = vec!["create slow", "create result"];
        steps.extend(std::iter::repeat_n("update result", runs_before));
        assert_eq!(self.stack.log.operations().await, once(&steps));
    }

    /// Waits until the Workspace's Secret contains a certificate that `authority` has issued, and also trusts the
    /// certificate `trusted`.
    async fn until_certified_by(&self, authority: &Authority, trusted: &str) {
        let name = workspace_tls_secret(&self.stack.name);
        wait_until(format!("the Secret {name} to be signed by the other authority"), WaitLimit::Reaction, async || {
            let secret = match self.scene.api::<Secret>().get(&name).await {
                Ok(secret) => secret,
                Err(error) => return Poll::NotYet(error.to_string()),
            };
            let (certificate, bundle) = (text(&secret, "tls.crt"), text(&secret, "ca.crt").unwrap_or_default());
            let issued = certificate.is_some_and(|pem| authority.has_issued(&pem).is_ok_and(|issued| issued));
            let trusts = bundle.contains(authority.certificate_pem()) && bundle.contains(trusted);
            if issued && trusts { Poll::Found(()) } else { Poll::NotYet(format!("issued {issued}, trusts {trusts}")) }
        })
        .await;
    }
}

/// Returns a program whose first run is slow. A later run changes only the resource that depends on the slow resource.
fn program(name: &str, seconds: u32, text: &str) -> Program {
    let slow = json!({"seconds": seconds, "steps": seconds});
    Program::new(name).step("slow", slow).step("result", json!({"value": format!("{text} ${{slow.count}}")}))
}

fn secrets(scene: &Scene) -> Api<Secret> {
    Api::namespaced(scene.client.clone(), NAMESPACE)
}

async fn secret(scene: &Scene) -> Secret {
    api_call(format!("reading the Secret {NAMESPACE}/{SECRET}"), secrets(scene).get(SECRET)).await
}

async fn change(scene: &Scene, patch: Value) {
    let (secrets, parameters) = (secrets(scene), PatchParams::default());
    let patch = Patch::Merge(&patch);
    api_call(format!("changing the Secret {NAMESPACE}/{SECRET}"), secrets.patch(SECRET, &parameters, &patch)).await;
}

async fn until_secret(scene: &Scene, what: &str, predicate: impl Fn(&Secret) -> bool) -> Secret {
    wait_until(format!("the authority's Secret {what}"), WaitLimit::Reaction, async || {
        match secrets(scene).get(SECRET).await {
            Ok(secret) if predicate(&secret) => Poll::Found(secret),
            Ok(secret) => {
                let keys: Vec<_> = secret.data.iter().flat_map(BTreeMap::keys).cloned().collect();
                Poll::NotYet(format!("keys {keys:?}, annotations {:?}", secret.annotations()))
            }
            Err(error) => Poll::NotYet(error.to_string()),
        }
    })
    .await
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    let ByteString(bytes) = secret.data.as_ref()?.get(key)?;
    String::from_utf8(bytes.clone()).ok()
}

fn authority(secret: &Secret) -> Authority {
    let part = |key: &str| text(secret, key).unwrap_or_else(|| panic!("the Secret has no {key}"));
    Authority::from_pem(&part("ca.crt"), &part("ca.key")).expect("the Secret holds an authority")
}

fn base64(text: &str) -> Value {
    json!(ByteString(text.as_bytes().to_vec()))
}

fn client(authority: &Authority) -> Issued {
    authority.issue_client(Timestamp::now()).expect("a certificate")
}

async fn address(stack: &StackHandle<'_>, scene: &Scene) -> AgentAddress {
    let ip = stack.pod().await.status.and_then(|status| status.pod_ip).expect("the pod has an address");
    AgentAddress {
        ip: ip.parse().expect("an address"),
        port: names::AGENT_PORT,
        server_name: workspace_server_name(&stack.name, &scene.namespace),
        namespace: scene.namespace.clone(),
    }
}

/// Requests the status of a Stack's agent. Returns an error if the agent does not respond.
async fn status(agents: &Agents, stack: &StackHandle<'_>, scene: &Scene) -> Result<(), String> {
    let connected = agents.connect(&address(stack, scene).await).await.map_err(|error| error.to_string())?;
    connected.status().await.map(|_| ()).map_err(|error| error.to_string())
}
