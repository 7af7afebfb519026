//! First certificates without a join token: somebody whom the cluster trusts says who a node is, as an API server of Kubernetes does
//! of its pods.
//!
//! ```text
//! node ── proof, name ──▶ controller with the CA ── proof ──▶ who attests: name, roles, when it began
//!                               └── the same name, free, begun after the last revocation of it ──▶ signed
//! ```
//! A node that was taken over can show its proof again after its certificate was revoked. So a node that began before a revocation
//! gets no certificate after it: another one has to take its place. Their times are of two clocks: one that began up to a minute later
//! counts as earlier.

use std::{fmt, sync::Arc};

use berth_peer::pki::Revocations;
use berth_spec::{Roles, WorkerId};
use futures::future::BoxFuture;
use http::StatusCode;

use super::Refusal;

/// Seconds by which the clocks of a controller and of whoever attests may differ.
const CLOCKS: u64 = 60;

/// Facts about a node that its platform vouches for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttestedNode {
    /// The only name that it may have.
    pub name: WorkerId,
    /// Roles of its certificate.
    pub roles: Roles,
    /// Time at which it began, in seconds since the Unix epoch, by the clock of whoever attests it.
    pub began: u64,
}

/// Reason why a node is not attested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAttested {
    /// The proof does not hold; problem and remedy.
    Refused(String),
    /// Nobody could be asked now; problem and remedy.
    Unanswered(String),
}

/// Asks who a node is by the proof that it shows.
#[derive(Clone)]
pub struct Attestation(Arc<Ask>);

type Ask = dyn Fn(String) -> BoxFuture<'static, Result<AttestedNode, NotAttested>> + Send + Sync;

impl Attestation {
    /// Attestation by `ask`, which gets the proof that a node shows.
    pub fn new(
        ask: impl Fn(String) -> BoxFuture<'static, Result<AttestedNode, NotAttested>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(ask))
    }

    /// Gives the facts of the node that shows `proof`.
    pub(super) async fn ask(&self, proof: String) -> Result<AttestedNode, Refusal> {
        (self.0)(proof).await.map_err(|error| match error {
            NotAttested::Refused(why) => Refusal::of(StatusCode::UNAUTHORIZED, why),
            NotAttested::Unanswered(why) => Refusal::later(why),
        })
    }
}

impl fmt::Debug for Attestation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attestation").finish_non_exhaustive()
    }
}

impl AttestedNode {
    /// Checks that it may have a certificate for the name that it says.
    pub(super) fn check(&self, said: &WorkerId, revocations: &Revocations) -> Result<(), Refusal> {
        let name = &self.name;
        if name != said {
            let error = format!("this is the pod {name}, and it says --name {said}: leave --name out, or say its name");
            return Err(Refusal::of(StatusCode::FORBIDDEN, error));
        }
        let revoked = Some(revocations.earliest(name)).filter(|at| *at > 0);
        if revoked.is_some_and(|at| self.began <= at.saturating_add(CLOCKS)) {
            let error = format!(
                "the certificates of {name} were revoked while this pod was there, or within {CLOCKS} s before it was made: \
                 delete it once they have passed, and the next pod of this name gets one"
            );
            return Err(Refusal::of(StatusCode::FORBIDDEN, error));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use berth_peer::pki::{Revocation, Revoked};

    use super::*;

    fn name(text: &str) -> WorkerId {
        WorkerId::new(text).expect("a name")
    }

    #[test]
    fn a_pod_has_its_own_name_and_outlives_no_revocation() {
        let revocation = |of, at| Revocation {
            id: "r".to_owned(),
            of,
            reason: String::new(),
            by: String::new(),
            at,
            until: u64::MAX,
        };
        let items = vec![
            revocation(Revoked::Node(name("fleet-1")), 100),
            revocation(Revoked::Node(name("fleet-1")), 50),
            revocation(Revoked::Serial("ab".to_owned()), 900),
        ];
        let revocations = Revocations { revision: 1, items };
        for (pod, began, said, says) in [
            ("fleet-0", 10, "fleet-0", ""),
            ("fleet-0", 10, "fleet-1", "this is the pod fleet-0"),
            ("fleet-0", 10, "node-fleet-0", "this is the pod fleet-0"),
            ("fleet-1", 99, "fleet-1", "delete it"),
            ("fleet-1", 100, "fleet-1", "delete it"),
            ("fleet-1", 160, "fleet-1", "delete it"),
            ("fleet-1", 161, "fleet-1", ""),
        ] {
            let attested = AttestedNode { name: name(pod), roles: Roles::NONE, began };
            let checked = attested.check(&name(said), &revocations);
            match says {
                "" => assert!(checked.is_ok(), "{pod} {began} {said}: {checked:?}"),
                says => assert!(checked.as_ref().is_err_and(|no| no.error.contains(says)), "{pod} {said}: {checked:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_proof_that_does_not_hold_is_told_from_an_answer_that_does_not_come() {
        for (error, elsewhere) in
            [(NotAttested::Refused("no".to_owned()), false), (NotAttested::Unanswered("no".to_owned()), true)]
        {
            let attestation = Attestation::new(move |_| Box::pin(std::future::ready(Err(error.clone()))));
            let refusal = attestation.ask("proof".to_owned()).await.expect_err("it is refused");
            assert_eq!((refusal.error.as_str(), refusal.elsewhere), ("no", elsewhere));
        }
    }
}
