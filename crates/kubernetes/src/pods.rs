//! Pods that become nodes of a fleet: the API server attests them to the controllers.
//!
//! ```text
//! kubelet ── token of the pod's service account, for the audience berth-join, some minutes ──▶ pod
//! pod ── the token ──▶ controller ──TokenReview──▶ API server: service account, pod and its uid
//!                                  └──────get──────▶ the same pod: when it was made, and by which StatefulSet
//! ```
//! The token is of no use at the API server, ends with its pod, and says the pod's name: nothing secret has to be handed out or kept.

use std::{fmt, str::FromStr, time::Duration};

use berth_control::api::{Attestation, AttestedNode, NotAttested};
use berth_spec::{Roles, WorkerId};
use kube::{
    Api, Client, Error,
    core::{ApiResource, DynamicObject, GroupVersionKind, ObjectMeta},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{KubernetesConfig, cluster::connect};

/// Audience of the tokens. Those for an API server or for somebody else let no pod join.
pub(crate) const AUDIENCE: &str = "berth-join";

/// Limit for the API server to answer both questions. Shorter than the patience of a pod that asks.
const ATTEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest token. Those of API servers have one or two KiB.
const MAX_TOKEN_BYTES: usize = 8 << 10;

/// Where a review says of which pod a token is.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";

/// End of the name of the nodes' service account; the rest is the name of their StatefulSet.
pub(crate) const NODES: &str = "-nodes";

/// Pods that may join: those of one service account, made by its StatefulSet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoiningPods {
    /// The namespace of the pods, of their service account and of their StatefulSet.
    pub namespace: String,
    /// The service account `NAME-nodes`; the StatefulSet that makes the pods is `NAME`.
    pub service_account: String,
    /// Roles of their certificates. Never the controller's.
    pub roles: Roles,
}

impl FromStr for JoiningPods {
    type Err = String;

    /// Reads `NAMESPACE/SERVICEACCOUNT=ROLE,…`.
    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write NAMESPACE/SERVICEACCOUNT=ROLE,…, for example berth/berth-fleet-nodes=worker,gateway";
        let (account, roles) = text.split_once('=').ok_or(FORM)?;
        let (namespace, service_account) = account.split_once('/').ok_or(FORM)?;
        // They become parts of paths.
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        let named = |name: &str| !name.is_empty() && name.chars().all(fits);
        if !named(namespace) || !named(service_account) {
            return Err(FORM.to_owned());
        }
        let roles: Roles = roles.parse()?;
        if roles.controller {
            return Err("pods that join are no controllers: these have the CA's key, and need no other proof".into());
        }
        Ok(Self { namespace: namespace.to_owned(), service_account: service_account.to_owned(), roles })
    }
}

impl JoiningPods {
    /// Name of the StatefulSet that makes the pods.
    pub(crate) fn stateful_set(&self) -> &str {
        self.service_account.strip_suffix(NODES).unwrap_or(&self.service_account)
    }
}

impl fmt::Display for JoiningPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, service_account, roles } = self;
        write!(f, "{namespace}/{service_account}={roles}")
    }
}

/// Has these pods attested by the API server of the current context, in a pod by that of its cluster. A connection is made for each
/// question: pods join seldom.
#[must_use]
pub fn attestation(pods: JoiningPods) -> Attestation {
    Attestation::new(move |token| {
        let pods = pods.clone();
        Box::pin(async move {
            match timeout(ATTEST_TIMEOUT, Box::pin(attest(&pods, &token))).await {
                Ok(attested) => attested,
                Err(_) => {
                    Err(NotAttested::Unanswered(format!("the API server did not answer within {ATTEST_TIMEOUT:?}")))
                }
            }
        })
    })
}

async fn attest(pods: &JoiningPods, token: &str) -> Result<AttestedNode, NotAttested> {
    if token.len() > MAX_TOKEN_BYTES || token.split('.').count() != 3 {
        return Err(NotAttested::Refused("this is no token of a service account".to_owned()));
    }
    let client = connect(&KubernetesConfig::default()).await.map_err(unanswered)?;
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": { "token": token, "audiences": [AUDIENCE] },
    });
    let request = http::Request::post("/apis/authentication.k8s.io/v1/tokenreviews")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(review.to_string().into_bytes())
        .map_err(|error| unanswered(error.to_string()))?;
    let review: Value = client.request(request).await.map_err(|error| unread("review tokens", &error))?;
    let reviewed = ReviewedPod::of(&review, pods).map_err(NotAttested::Refused)?;
    let pod = api(client, &pods.namespace).get_opt(&reviewed.name).await;
    let pod = pod.map_err(|error| unread("get pods", &error))?;
    let pod = pod.as_ref().map(|pod| &pod.metadata);
    let began = reviewed.began(pod, pods.stateful_set()).map_err(NotAttested::Refused)?;
    let name = WorkerId::new(&reviewed.name).map_err(|error| {
        NotAttested::Refused(format!("the pod's name {:?} cannot be the name of a node ({error})", reviewed.name))
    })?;
    Ok(AttestedNode { name, roles: pods.roles, began })
}

fn api(client: Client, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", "Pod"), "pods");
    Api::namespaced_with(client, namespace, &resource)
}

fn unanswered(why: String) -> NotAttested {
    NotAttested::Unanswered(why)
}

/// Says to the pod only that it was not answered, and the reason to the log: it names addresses of the cluster.
fn unread(right: &str, error: &Error) -> NotAttested {
    let forbidden = matches!(error, Error::Api(refusal) if refusal.code == 403);
    tracing::warn!(event = "pod_not_attested", %error, "the API server does not say who asks for a certificate");
    unanswered(match forbidden {
        true => format!("the API server does not let this controller {right}: docs/kubernetes.md lists the rights"),
        false => "the API server does not answer: the log of the controller says why".to_owned(),
    })
}

/// Facts of a token in a review.
#[derive(Debug, PartialEq, Eq)]
struct ReviewedPod {
    name: String,
    uid: String,
}

impl ReviewedPod {
    /// The pod that a review says, which is one of those that may join.
    fn of(review: &Value, pods: &JoiningPods) -> Result<Self, String> {
        let status = &review["status"];
        // An API server that knows no audiences leaves them out: it has not looked at that of the token.
        let audiences = status["audiences"].as_array().map(Vec::as_slice).unwrap_or_default();
        if status["authenticated"] != true || !audiences.iter().any(|audience| audience == AUDIENCE) {
            return Err(format!(
                "the API server does not take the pod's token for the audience {AUDIENCE}: it has ended, its pod is gone, or it is \
                 for another audience"
            ));
        }
        let user = &status["user"];
        let wanted = format!("system:serviceaccount:{}:{}", pods.namespace, pods.service_account);
        if user["username"] != *wanted {
            return Err(format!("the pod's token is not of {wanted}, whose pods may join"));
        }
        let said = |key: &str| user["extra"][key][0].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        match (said(POD_NAME), said(POD_UID)) {
            (Some(name), Some(uid)) => Ok(Self { name, uid }),
            _ => Err("the token is of no pod: it has to come from a projected volume".to_owned()),
        }
    }

    /// Time at which the StatefulSet `set` made the pod, in seconds since the Unix epoch.
    fn began(&self, pod: Option<&ObjectMeta>, set: &str) -> Result<u64, String> {
        let pod = pod.filter(|pod| pod.uid.as_deref() == Some(self.uid.as_str()));
        let made = pod.and_then(|pod| Some((pod, pod.creation_timestamp.as_ref()?)));
        let (pod, made) = made.ok_or_else(|| format!("the pod {} of this token is gone", self.name))?;
        if !self.is_numbered(set) || !is_made_by(pod, set) {
            return Err(format!(
                "the pod {} is not one that the StatefulSet {set} made: others of its service account get no certificate, whose names \
                 could be those of controllers",
                self.name
            ));
        }
        Ok(u64::try_from(made.0.as_second()).unwrap_or_default())
    }

    /// True for the name of a pod of the StatefulSet. Whoever makes a pod by hand can write any owner to it, so the name has to fit, too.
    fn is_numbered(&self, set: &str) -> bool {
        let number = self.name.strip_prefix(set).and_then(|rest| rest.strip_prefix('-'));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    }
}

/// True if the owner of the pod is this StatefulSet.
fn is_made_by(pod: &ObjectMeta, set: &str) -> bool {
    pod.owner_references.iter().flatten().any(|owner| {
        owner.controller == Some(true)
            && owner.kind == "StatefulSet"
            && owner.api_version.starts_with("apps/")
            && owner.name == set
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> JoiningPods {
        "serving/fleet-nodes=worker,gateway".parse().expect("pods")
    }

    fn review(change: impl FnOnce(&mut Value)) -> Value {
        let extra = json!({ POD_NAME: ["fleet-1"], POD_UID: ["u-1"] });
        let user = json!({ "username": "system:serviceaccount:serving:fleet-nodes", "extra": extra });
        let mut review = json!({ "status": { "authenticated": true, "audiences": [AUDIENCE], "user": user } });
        change(&mut review["status"]);
        review
    }

    #[test]
    fn a_review_says_which_pod_asks() {
        let reviewed = ReviewedPod::of(&review(|_| {}), &pods());
        assert_eq!(reviewed, Ok(ReviewedPod { name: "fleet-1".to_owned(), uid: "u-1".to_owned() }));
    }

    #[test]
    fn a_token_of_anybody_else_is_refused() {
        type Change = fn(&mut Value);
        let changes: [(Change, &str); 8] = [
            (|status| status["authenticated"] = json!(false), "does not take the pod's token"),
            (|status| *status = json!({ "error": "token has expired" }), "does not take the pod's token"),
            (|status| status["audiences"] = json!([]), "for another audience"),
            (|status| status["audiences"] = Value::Null, "for another audience"),
            (|status| status["user"]["username"] = json!("system:serviceaccount:other:fleet-nodes"), "is not of"),
            (|status| status["user"]["username"] = json!("system:serviceaccount:serving:default"), "is not of"),
            (|status| status["user"]["extra"] = Value::Null, "of no pod"),
            (|status| status["user"]["extra"][POD_NAME] = json!([]), "of no pod"),
        ];
        for (change, says) in changes {
            let review = review(change);
            let refused = ReviewedPod::of(&review, &pods()).expect_err("it is not one of them");
            assert!(refused.contains(says), "{review}: {refused}");
        }
    }

    #[test]
    fn a_pod_that_has_the_name_of_an_earlier_one_is_another() {
        let reviewed = reviewed("fleet-1");
        assert_eq!(reviewed.began(Some(&pod("u-1", &owner(|_| {}))), "fleet"), Ok(100));
        for gone in [None, Some(&pod("u-2", &owner(|_| {}))), Some(&ObjectMeta::default())] {
            assert!(reviewed.began(gone, "fleet").is_err_and(|why| why.contains("is gone")), "{gone:?}");
        }
    }

    fn reviewed(name: &str) -> ReviewedPod {
        ReviewedPod { name: name.to_owned(), uid: "u-1".to_owned() }
    }

    fn pod(uid: &str, owners: &Value) -> ObjectMeta {
        let metadata = json!({ "uid": uid, "creationTimestamp": "1970-01-01T00:01:40Z", "ownerReferences": owners });
        serde_json::from_value(metadata).expect("metadata")
    }

    /// The owners of a pod of the StatefulSet `fleet`.
    fn owner(change: impl FnOnce(&mut Value)) -> Value {
        let mut owner = json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "fleet", "uid": "s-1" });
        owner["controller"] = json!(true);
        change(&mut owner);
        json!([owner])
    }

    #[test]
    fn a_pod_that_the_stateful_set_did_not_make_takes_no_name() {
        type Change = fn(&mut Value);
        let changes: [Change; 5] = [
            |owner| owner["kind"] = json!("ReplicaSet"),
            |owner| owner["name"] = json!("fleet-controllers"),
            |owner| owner["controller"] = json!(false),
            |owner| owner["apiVersion"] = json!("example.org/v1"),
            |owner| owner["controller"] = Value::Null,
        ];
        let mut pods: Vec<(&str, Value)> = changes.iter().map(|change| ("fleet-1", owner(change))).collect();
        pods.push(("fleet-1", json!([])));
        for name in ["fleet-controllers-0", "fleet-", "fleet", "fleet-1a", "other-1", "fleet1"] {
            pods.push((name, owner(|_| {})));
        }
        for (name, owners) in pods {
            let refused = reviewed(name).began(Some(&pod("u-1", &owners)), "fleet");
            let said = refused.expect_err(name);
            assert!(said.contains("StatefulSet fleet"), "{name} {owners}: {said}");
        }
    }

    #[test]
    fn pods_are_told_by_their_service_account() {
        let pods = pods();
        assert_eq!((pods.namespace.as_str(), pods.service_account.as_str()), ("serving", "fleet-nodes"));
        assert_eq!(pods.to_string(), "serving/fleet-nodes=worker,gateway");
        assert_eq!(pods.stateful_set(), "fleet");
        let other: JoiningPods = "serving/models=worker".parse().expect("pods");
        assert_eq!(other.stateful_set(), "models");
        for (text, says) in [
            ("fleet-nodes=worker", "NAMESPACE/SERVICEACCOUNT"),
            ("serving/fleet-nodes", "NAMESPACE/SERVICEACCOUNT"),
            ("/fleet-nodes=worker", "NAMESPACE/SERVICEACCOUNT"),
            ("serving/a/../b=worker", "NAMESPACE/SERVICEACCOUNT"),
            ("serving/fleet-nodes=cook", "no role"),
            ("serving/fleet-nodes=controller,worker", "no controllers"),
        ] {
            let error = text.parse::<JoiningPods>().expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[tokio::test]
    async fn what_is_no_token_is_asked_about_nowhere() {
        for text in ["", "a.b", "a.b.c.d", &"x.y.z".repeat(MAX_TOKEN_BYTES)] {
            let refused = Box::pin(attest(&pods(), text)).await;
            assert!(matches!(&refused, Err(NotAttested::Refused(why)) if why.contains("no token")), "{refused:?}");
        }
    }
}
