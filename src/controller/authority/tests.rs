//! Tests for changes that users and other processes make to the Secret. A fake API server stores the Secret.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::decide::{Found, TRUSTED_AFTER_IT_SIGNED, TRUSTED_BEFORE_IT_SIGNS};
use super::{CaRotator, Generations, SecretStore, secret};
use crate::rpc::identity::Authority;
use crate::runtime::events::Events;
use crate::runtime::fake_api::{FakeResponse, Log, RecordedRequest, apply_json_merge_patch, client};
use crate::runtime::reads::Reader;
use crate::runtime::writes::{Leadership, Writer};
use crate::telemetry::metrics::Metrics;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Fake API server that stores the Secret and counts the writes to the Secret.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<(Option<Value>, u64)>>);

impl Api {
    fn respond(&self, request: &RecordedRequest) -> FakeResponse {
        let mut api = self.0.lock().unwrap();
        match (request.method.as_str(), api.0.clone()) {
            ("GET", Some(secret)) => FakeResponse::Json(200, secret),
            ("GET" | "PATCH", None) => FakeResponse::refusal(404, "NotFound"),
            ("POST", None) => api.store(request.body.clone()),
            ("POST", Some(_)) => FakeResponse::refusal(409, "AlreadyExists"),
            ("PATCH", Some(mut secret)) => {
                if request.body["metadata"]["resourceVersion"] != secret["metadata"]["resourceVersion"] {
                    return FakeResponse::refusal(409, "Conflict");
                }
                apply_json_merge_patch(&mut secret, &request.body);
                api.store(secret)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Changes the Secret as another client would.
    fn change(&self, change: impl FnOnce(&mut Option<Value>)) {
        let mut api = self.0.lock().unwrap();
        let mut secret = api.0.take();
        change(&mut secret);
        if let Some(secret) = secret {
            api.store(secret);
        }
    }

    fn put(&self, authority: &Authority) {
        let found = serde_json::to_value(secret::new(&Generations::first(authority_like(authority)), "flux-system"));
        let data = found.unwrap()["data"].clone();
        self.change(|secret| apply_json_merge_patch(secret.as_mut().unwrap(), &json!({ "data": data })));
    }

    fn annotate(&self, key: &str, value: &str) {
        self.change(|secret| {
            apply_json_merge_patch(secret.as_mut().unwrap(), &json!({"metadata": {"annotations": {key: value}}}))
        });
    }

    fn stored(&self) -> Generations {
        let secret: Secret = serde_json::from_value(self.0.lock().unwrap().0.clone().unwrap()).unwrap();
        match secret::read(Some(&secret)) {
            Found::Usable { generations, .. } => *generations,
            other => panic!("{other:?}"),
        }
    }

    fn writes(&self) -> u64 {
        self.0.lock().unwrap().1
    }
}

trait Store {
    fn store(&mut self, secret: Value) -> FakeResponse;
}

impl Store for (Option<Value>, u64) {
    fn store(&mut self, mut secret: Value) -> FakeResponse {
        self.1 += 1;
        secret["metadata"]["resourceVersion"] = json!(self.1.to_string());
        self.0 = Some(secret.clone());
        FakeResponse::Json(200, secret)
    }
}

fn authority_like(authority: &Authority) -> Authority {
    Authority::from_pem(authority.certificate_pem(), &authority.key_pem()).unwrap()
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

struct Fixture {
    api: Api,
    ca_rotator: CaRotator,
    metrics: Metrics,
    task: crate::runtime::events::EventTask,
    log: Log,
}

impl Fixture {
    async fn start(api: Api) -> Result<Fixture, String> {
        let responding = api.clone();
        let (client, log) = client(move |request| match request.path.ends_with("/events") {
            true => FakeResponse::Json(201, request.body.clone()),
            false => responding.respond(request),
        });
        let metrics = Metrics::default();
        let limit = Duration::from_secs(5);
        let writer = Writer::new(client.clone(), limit, Leadership::sole(), metrics.clone());
        let (events, task) = Events::new(writer.clone(), "pulumi-controller", "pod", metrics.clone());
        let store = SecretStore { reader: Reader::new(client, limit), writer, namespace: "flux-system".to_owned() };
        let ca_rotator = CaRotator::start(store, events, metrics.clone()).await.map_err(|error| error.to_string())?;
        Ok(Fixture { api, ca_rotator, metrics, task, log })
    }

    fn active(&self) -> Arc<Generations> {
        self.ca_rotator.authority().borrow().clone()
    }

    async fn refresh(&mut self, now: Timestamp) -> Arc<Generations> {
        self.ca_rotator.refresh(now).await;
        self.active()
    }

    fn is_well(&self) -> bool {
        self.metrics.encode().unwrap().lines().any(|line| line == "pulumi_controller_authority_well 1")
    }
}

#[tokio::test]
async fn an_authority_is_created_once_and_then_read_by_other_replicas() {
    let api = Api::default();
    let mut first = Fixture::start(api.clone()).await.unwrap();
    let second = Fixture::start(api.clone()).await.unwrap();
    assert!(first.active() == second.active() && *first.active() == api.stored());
    first.refresh(Timestamp::now()).await;
    assert_eq!(api.writes(), 1, "no write without a change");
}

#[tokio::test]
async fn a_deleted_secret_is_recreated_with_the_same_authority() {
    let mut fixture = Fixture::start(Api::default()).await.unwrap();
    let before = fixture.active();
    fixture.api.change(|secret| *secret = None);
    let mut heard = fixture.ca_rotator.authority();
    heard.mark_unchanged();
    assert!(fixture.refresh(now()).await == before && fixture.api.stored() == *before);
    assert!(!heard.has_changed().unwrap(), "no change is published");
}

#[tokio::test]
async fn a_user_provided_authority_signs_and_the_previous_one_stays_trusted() {
    let mut fixture = Fixture::start(Api::default()).await.unwrap();
    let before = fixture.active();
    let other = Authority::generate(now()).unwrap();
    fixture.api.put(&other);
    let after = fixture.refresh(now()).await;
    assert_eq!(after.current().certificate(), other.certificate());
    assert!(after.trusts(before.current().certificate()));
    assert_eq!(after.previous().unwrap().until, Some(now() + TRUSTED_AFTER_IT_SIGNED));
    let clients = after.issue_clients(now()).unwrap();
    assert!(
        before.current().has_issued(&clients[1].certificate_pem).unwrap(),
        "the controller can call pods without the new CA"
    );
    let restarted = Fixture::start(fixture.api.clone()).await.unwrap();
    assert!(restarted.active() == after, "a new process trusts both CAs");
    assert!(
        fixture.refresh(now() + TRUSTED_AFTER_IT_SIGNED).await.previous().is_none(),
        "after this period, only the new CA is trusted"
    );
}

#[tokio::test]
async fn a_user_can_revoke_trust_in_a_replaced_authority() {
    let mut fixture = Fixture::start(Api::default()).await.unwrap();
    fixture.api.put(&Authority::generate(now()).unwrap());
    assert!(fixture.refresh(now()).await.previous().is_some());
    let nothing = json!({"data": {"previous.crt": null, "previous.key": null}});
    fixture.api.change(|secret| apply_json_merge_patch(secret.as_mut().unwrap(), &nothing));
    assert!(fixture.refresh(now()).await.previous().is_none());
}

#[tokio::test]
async fn a_requested_rotation_completes_all_steps_and_is_not_repeated() {
    let mut fixture = Fixture::start(Api::default()).await.unwrap();
    let start = Timestamp::now();
    let old = fixture.active();
    fixture.api.annotate("pulumi.com/rotate", "now");
    let prepared = fixture.refresh(start).await;
    assert_eq!(prepared.current().certificate(), old.current().certificate());
    let next = prepared.next().unwrap().authority.certificate().clone();
    assert!(prepared.trusts(&next) && prepared.bundle_pem().starts_with(old.bundle_pem()));

    assert!(
        fixture.refresh(start + TRUSTED_BEFORE_IT_SIGNS / 2).await == prepared,
        "the rotation waits until pods trust the next CA"
    );
    let promoted = fixture.refresh(start + TRUSTED_BEFORE_IT_SIGNS).await;
    assert_eq!(promoted.current().certificate(), &next);
    assert!(promoted.trusts(old.current().certificate()) && promoted.next().is_none());
    assert!(fixture.refresh(start + TRUSTED_BEFORE_IT_SIGNS + HOUR).await == promoted, "the request is handled");

    let retired = fixture.refresh(start + TRUSTED_BEFORE_IT_SIGNS + TRUSTED_AFTER_IT_SIGNED).await;
    assert!(!retired.trusts(old.current().certificate()));
    assert_eq!(fixture.api.writes(), 1 + 1 + 3, "creation, request, and one write per step");
    assert!(fixture.api.stored() == *retired);
}

#[tokio::test]
async fn an_invalid_secret_is_reported_once_and_changes_nothing() {
    let mut fixture = Fixture::start(Api::default()).await.unwrap();
    let before = fixture.active();
    fixture.api.change(|secret| {
        apply_json_merge_patch(secret.as_mut().unwrap(), &json!({"data": {"ca.key": "Z2FyYmFnZQ=="}}))
    });
    for _ in 0..3 {
        assert!(fixture.refresh(now()).await == before && !fixture.is_well());
    }
    let end = CancellationToken::new();
    end.cancel();
    let refused = Fixture::start(fixture.api.clone()).await.map(|_| ()).unwrap_err();
    assert!(refused.contains("invalid Secret flux-system/pulumi-controller-authority: ca.crt, ca.key: "), "{refused}");
    fixture.api.change(|secret| *secret = None);
    assert!(fixture.refresh(now()).await == before && fixture.is_well());
    fixture.task.run(end).await;
    let events: Vec<RecordedRequest> =
        fixture.log.all().into_iter().filter(|request| request.path.ends_with("/events")).collect();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].body["reason"], "AuthorityUnusable");
    assert!(events[0].body["message"].as_str().unwrap().contains("private key"), "{:?}", events[0].body);
}

#[tokio::test]
async fn the_client_certificates_of_the_controller_are_renewed_before_expiry() {
    let mut fixture = Fixture::start(Api::default()).await.unwrap();
    let before = fixture.ca_rotator.clients();
    fixture.refresh(Timestamp::now() + 24 * HOUR).await;
    assert_eq!(fixture.ca_rotator.clients(), before);
    fixture.refresh(Timestamp::now() + 61 * 24 * HOUR).await;
    assert_ne!(fixture.ca_rotator.clients(), before);
}
