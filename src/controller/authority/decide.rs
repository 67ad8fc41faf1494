//! Selects the next step for the CA. All functions are pure: they use no client and no clock.

use std::time::Duration;

use jiff::Timestamp;

use super::generations::{Generations, Pending};
use crate::rpc::identity::LEAF_VALIDITY;

/// Delay before the next CA becomes the current CA. During the delay, all Workspaces and pods receive the next CA and
/// trust it. Workspaces receive the CA within minutes, and pods a few minutes later.
pub(super) const TRUSTED_BEFORE_IT_SIGNS: Duration = Duration::from_secs(60 * 60);
/// Time for which a replaced CA remains trusted: the validity period of the issued certificates, plus one day for
/// clock skew.
pub(super) const TRUSTED_AFTER_IT_SIGNED: Duration = Duration::from_secs(LEAF_VALIDITY.as_secs() + 24 * 60 * 60);

/// Content of the Secret.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Nothing,
    /// The Secret exists but contains no usable CA. Contains the reason.
    Unusable(String),
    Usable {
        generations: Box<Generations>,
        /// Whether a user has requested a new CA.
        rotation_requested: bool,
    },
}

/// Next step. All steps except `Use`, `KeepKnown` and `Refuse` write the Secret. After a write, the controller reads
/// the Secret again.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Create the first CA.
    Make,
    /// Recreate the deleted Secret with the known CA.
    WriteAgain,
    /// Keep the known CA, because the Secret is unusable for the given reason.
    KeepKnown(String),
    /// Fail, because the Secret is unusable for the given reason and no CA is known.
    Refuse(String),
    /// Trust the known CA until `retire_at`, because a user or another process replaced the CA in the Secret.
    TrustReplaced { retire_at: Timestamp },
    /// Create the next CA, which signs certificates from `promote_at`.
    AddNext { promote_at: Timestamp },
    /// Promote the next CA to the current CA. The replaced CA remains trusted until `retire_at`.
    Promote { retire_at: Timestamp },
    /// Remove the previous CA, so that it is no longer trusted.
    Retire,
    /// Use the CA in the Secret, because no change is due.
    Use,
}

/// Selects the next step based on the content of the Secret. `known` is the active CA of this process, or `None` if
/// the process has not read the Secret yet.
pub(super) fn decide(found: &Found, known: Option<&Generations>, now: Timestamp) -> Action {
    let (generations, rotation_requested) = match (found, known) {
        (Found::Nothing, None) => return Action::Make,
        (Found::Nothing, Some(_)) => return Action::WriteAgain,
        (Found::Unusable(reason), None) => return Action::Refuse(reason.clone()),
        (Found::Unusable(reason), Some(_)) => return Action::KeepKnown(reason.clone()),
        (Found::Usable { generations, rotation_requested }, _) => (generations, *rotation_requested),
    };
    let retire_at = now + TRUSTED_AFTER_IT_SIGNED;
    if known.is_some_and(|known| was_replaced(known, generations)) {
        return Action::TrustReplaced { retire_at };
    }
    let current = generations.current();
    let is_due = |pending: &Pending| pending.until.is_some_and(|until| until <= now);
    match generations.next() {
        Some(next) if is_due(next) => return Action::Promote { retire_at },
        // The controller renews only CAs that it has generated. A user who provides a CA must renew this CA.
        None if rotation_requested || (current.is_generated() && current.renewal_due(now)) => {
            return Action::AddNext { promote_at: now + TRUSTED_BEFORE_IT_SIGNS };
        }
        Some(_) | None => {}
    }
    if generations.previous().is_some_and(is_due) { Action::Retire } else { Action::Use }
}

/// Returns whether a user or another process has replaced the known CA, so that the generations in the Secret do not
/// trust it. Removing a previous CA is not a replacement, because a previous CA no longer signs certificates.
fn was_replaced(known: &Generations, found: &Generations) -> bool {
    !found.trusts(known.current().certificate())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::identity::{AUTHORITY_VALIDITY, Authority};

    const HOUR: Duration = Duration::from_secs(60 * 60);
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn authority() -> Authority {
        Authority::generate(now()).unwrap()
    }

    fn first() -> Generations {
        Generations::first(authority())
    }

    fn usable(generations: &Generations) -> Found {
        Found::Usable { generations: Box::new(generations.clone()), rotation_requested: false }
    }

    fn requested(generations: &Generations) -> Found {
        Found::Usable { generations: Box::new(generations.clone()), rotation_requested: true }
    }

    /// Returns CA generations with a CA that another program created.
    fn foreign() -> Generations {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_after = rcgen::date_time_ymd(2027, 1, 16);
        let certificate = params.self_signed(&key).unwrap();
        Generations::first(Authority::from_pem(&certificate.pem(), &key.serialize_pem()).unwrap())
    }

    #[test]
    fn the_action_depends_on_the_secret_and_the_known_authority() {
        let (one, other) = (first(), first());
        let broken = || Found::Unusable("no key".to_owned());
        let retire_at = now() + TRUSTED_AFTER_IT_SIGNED;
        let promote_at = now() + TRUSTED_BEFORE_IT_SIGNS;
        let rotating = one.with_next(authority(), now() + HOUR);
        let rotated = rotating.promoted(now() + 91 * DAY);
        let successor = other.succeeding(&one, now() + 91 * DAY);
        let cases = [
            ("no Secret", Found::Nothing, None, Action::Make),
            ("the Secret was deleted", Found::Nothing, Some(&one), Action::WriteAgain),
            ("an unusable Secret, and no known CA", broken(), None, Action::Refuse("no key".to_owned())),
            ("the Secret became unusable", broken(), Some(&one), Action::KeepKnown("no key".to_owned())),
            ("a usable Secret, and no known CA", usable(&one), None, Action::Use),
            ("nothing has changed", usable(&one), Some(&one), Action::Use),
            ("a user replaced the CA", usable(&other), Some(&one), Action::TrustReplaced { retire_at }),
            (
                "a user replaced the CA during a rotation",
                usable(&other),
                Some(&rotating),
                Action::TrustReplaced { retire_at },
            ),
            ("the previous CA is still trusted", usable(&successor), Some(&one), Action::Use),
            ("a user restored the replaced CA", usable(&one), Some(&successor), Action::TrustReplaced { retire_at }),
            ("a user requests a rotation", requested(&one), Some(&one), Action::AddNext { promote_at }),
            ("a user requests a rotation during a rotation", requested(&rotating), Some(&one), Action::Use),
            ("the next CA is trusted", usable(&rotating), Some(&one), Action::Use),
            ("another process has rotated", usable(&rotated), Some(&rotating), Action::Use),
            ("a user removed the previous CA", usable(&rotated.retired()), Some(&rotated), Action::Use),
        ];
        for (what, found, known, action) in cases {
            assert_eq!(decide(&found, known, now()), action, "{what}");
        }
    }

    #[test]
    fn each_step_of_a_rotation_is_due_at_its_time() {
        let one = first();
        let year = AUTHORITY_VALIDITY;
        assert_eq!(decide(&usable(&one), Some(&one), now() + year * 2 / 3 - 2 * HOUR), Action::Use);
        let started = now() + year * 2 / 3;
        let promote_at = started + TRUSTED_BEFORE_IT_SIGNS;
        assert_eq!(decide(&usable(&one), Some(&one), started), Action::AddNext { promote_at });
        let both = one.with_next(Authority::generate(started).unwrap(), promote_at);
        assert_eq!(decide(&usable(&both), Some(&both), promote_at - Duration::from_secs(1)), Action::Use);
        let retire_at = promote_at + TRUSTED_AFTER_IT_SIGNED;
        assert_eq!(decide(&usable(&both), Some(&both), promote_at), Action::Promote { retire_at });
        let promoted = both.promoted(retire_at);
        assert_eq!(decide(&usable(&promoted), Some(&promoted), retire_at - Duration::from_secs(1)), Action::Use);
        assert_eq!(decide(&usable(&promoted), Some(&promoted), retire_at), Action::Retire);
        let retired = promoted.retired();
        assert_eq!(decide(&usable(&retired), Some(&retired), retire_at), Action::Use);
        assert!(!retired.trusts(one.current().certificate()));
    }

    #[test]
    fn a_user_provided_authority_is_rotated_only_on_request() {
        let foreign = foreign();
        let later = now() + 3650 * DAY;
        assert_eq!(
            decide(&usable(&foreign), Some(&foreign), later),
            Action::Use,
            "the controller does not renew a CA that a user provides"
        );
        let promote_at = later + TRUSTED_BEFORE_IT_SIGNS;
        assert_eq!(decide(&requested(&foreign), Some(&foreign), later), Action::AddNext { promote_at });
    }

    #[test]
    fn no_certificate_is_valid_longer_than_its_authority() {
        assert!(AUTHORITY_VALIDITY / 3 > TRUSTED_BEFORE_IT_SIGNS + TRUSTED_AFTER_IT_SIGNED);
    }
}
