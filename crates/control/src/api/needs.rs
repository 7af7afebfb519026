//! The action that each route of the control API needs, and where. A route that is not listed is for admins alone.

use std::borrow::Cow;

use berth_spec::{DeploymentName, Namespace, id::percent_decode};
use berth_wire::{
    access::{Action, Asker, Denied, Resource},
    api::AuditResource,
};
use http::Method;

/// The scope in which the role must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RoleScope {
    /// Everywhere.
    Server,
    /// The places that the body names, which the handler checks: here the role is checked alone.
    Body,
    /// The namespace in the path, else the default one.
    Namespace,
    /// The deployment or alias in the path.
    Name,
}

use Action::{
    CertifyNodes, Declare, DeclareCode, Infer, LoadDashboard, LoadModels, ManageTokens, OperateFleet, OperateSources,
    Probe, ReadAudit, ReadDeployments, ReadFleet, ReadMetrics, ReadModels, ReadSecrets, ReadServer, SendWebhook,
};

/// Methods, a path, and what they need. `{…}` is any one segment.
const NEEDS: &[(&str, &str, Action, RoleScope)] = &[
    ("GET", "/v1/deployments", ReadDeployments, RoleScope::Server),
    ("GET", "/v1/deployments/{name}", ReadDeployments, RoleScope::Name),
    ("PUT DELETE", "/v1/deployments/{name}", Declare, RoleScope::Name),
    ("GET", "/v1/deployments/{name}/explain", ReadDeployments, RoleScope::Name),
    ("GET", "/v1/deployments/{name}/history", ReadDeployments, RoleScope::Name),
    ("GET", "/v1/deployments/{name}/log", ReadDeployments, RoleScope::Name),
    ("GET", "/v1/deployments/{name}/try", ReadModels, RoleScope::Name),
    ("POST", "/v1/deployments/{name}/try", Infer, RoleScope::Name),
    ("GET", "/v1/namespaces/{namespace}/deployments", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/namespaces/{namespace}/deployments/{name}", ReadDeployments, RoleScope::Name),
    ("PUT DELETE", "/v1/namespaces/{namespace}/deployments/{name}", Declare, RoleScope::Name),
    ("GET", "/v1/namespaces/{namespace}/deployments/{name}/explain", ReadDeployments, RoleScope::Name),
    ("GET", "/v1/namespaces/{namespace}/deployments/{name}/history", ReadDeployments, RoleScope::Name),
    ("GET", "/v1/namespaces/{namespace}/deployments/{name}/log", ReadDeployments, RoleScope::Name),
    ("GET", "/v1/namespaces/{namespace}/deployments/{name}/try", ReadModels, RoleScope::Name),
    ("POST", "/v1/namespaces/{namespace}/deployments/{name}/try", Infer, RoleScope::Name),
    ("GET", "/v1/aliases", ReadDeployments, RoleScope::Server),
    ("GET", "/v1/aliases/{name}", ReadDeployments, RoleScope::Name),
    ("PUT DELETE", "/v1/aliases/{name}", Declare, RoleScope::Name),
    ("GET", "/v1/namespaces/{namespace}/aliases", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/namespaces/{namespace}/aliases/{name}", ReadDeployments, RoleScope::Name),
    ("PUT DELETE", "/v1/namespaces/{namespace}/aliases/{name}", Declare, RoleScope::Name),
    ("POST", "/v1/apply", Declare, RoleScope::Body),
    ("POST", "/v1/plan", Declare, RoleScope::Body),
    ("POST", "/v1/plan/registry", Declare, RoleScope::Body),
    ("POST", "/v1/validate", Declare, RoleScope::Body),
    ("GET", "/v1/replicas", ReadDeployments, RoleScope::Server),
    ("GET", "/v1/namespaces/{namespace}/replicas", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/revisions", ReadDeployments, RoleScope::Server),
    ("GET", "/v1/namespaces/{namespace}/revisions", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/workers", ReadFleet, RoleScope::Server),
    ("GET", "/v1/workers/{id}", ReadFleet, RoleScope::Server),
    ("POST", "/v1/workers/{id}/drain", OperateFleet, RoleScope::Server),
    ("POST", "/v1/workers/{id}/cordon", OperateFleet, RoleScope::Server),
    ("POST", "/v1/workers/{id}/uncordon", OperateFleet, RoleScope::Server),
    ("GET", "/v1/nodes", ReadFleet, RoleScope::Server),
    ("GET", "/v1/nodes/{name}", ReadFleet, RoleScope::Server),
    ("POST", "/v1/nodes/{name}/cordon", OperateFleet, RoleScope::Server),
    ("POST", "/v1/nodes/{name}/uncordon", OperateFleet, RoleScope::Server),
    ("POST", "/v1/nodes/{name}/drain", OperateFleet, RoleScope::Server),
    ("GET", "/v1/events", ReadFleet, RoleScope::Server),
    ("GET", "/v1/namespaces/{namespace}/events", ReadDeployments, RoleScope::Namespace),
    // A role that is limited to models does not hold for functions of these names.
    ("GET", "/v1/functions", ReadDeployments, RoleScope::Server),
    ("GET", "/v1/functions/{name}", ReadDeployments, RoleScope::Namespace),
    ("PUT DELETE", "/v1/functions/{name}", Declare, RoleScope::Namespace),
    ("GET", "/v1/functions/{name}/log", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/functions/{name}/sbom", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/functions/{name}/provenance", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/functions/{name}/lock", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/namespaces/{namespace}/functions", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/namespaces/{namespace}/functions/{name}", ReadDeployments, RoleScope::Namespace),
    ("PUT DELETE", "/v1/namespaces/{namespace}/functions/{name}", Declare, RoleScope::Namespace),
    ("GET", "/v1/namespaces/{namespace}/functions/{name}/log", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/namespaces/{namespace}/functions/{name}/sbom", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/namespaces/{namespace}/functions/{name}/provenance", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/namespaces/{namespace}/functions/{name}/lock", ReadDeployments, RoleScope::Namespace),
    ("GET", "/v1/sources", ReadFleet, RoleScope::Server),
    ("GET", "/v1/sources/{name}", ReadFleet, RoleScope::Server),
    ("POST", "/v1/sources/{name}/sync", OperateSources, RoleScope::Server),
    ("POST", "/v1/sources/{name}/pause", OperateSources, RoleScope::Server),
    ("POST", "/v1/sources/{name}/resume", OperateSources, RoleScope::Server),
    ("POST", "/v1/sources/{name}/webhook", SendWebhook, RoleScope::Server),
    ("POST", "/v1/webhook", SendWebhook, RoleScope::Server),
    ("GET", "/v1/secrets", ReadSecrets, RoleScope::Server),
    ("GET", "/v1/top", ReadFleet, RoleScope::Server),
    ("GET", "/v1/dashboard/models", ReadFleet, RoleScope::Server),
    ("GET", "/v1/dashboard/memory", ReadFleet, RoleScope::Server),
    ("GET", "/v1/dashboard/history", ReadFleet, RoleScope::Server),
    ("GET", "/v1/dashboard/stream", ReadFleet, RoleScope::Server),
    ("GET", "/v1/whoami", ReadServer, RoleScope::Body),
    ("GET POST", "/v1/tokens", ManageTokens, RoleScope::Server),
    ("DELETE", "/v1/tokens/{id}", ManageTokens, RoleScope::Server),
    ("GET POST", "/v1/join-tokens", CertifyNodes, RoleScope::Server),
    ("DELETE", "/v1/join-tokens/{id}", CertifyNodes, RoleScope::Server),
    ("GET POST", "/v1/revocations", CertifyNodes, RoleScope::Server),
    ("DELETE", "/v1/revocations/{id}", CertifyNodes, RoleScope::Server),
    ("GET", "/v1/audit", ReadAudit, RoleScope::Server),
    ("GET", "/dashboard", LoadDashboard, RoleScope::Server),
    ("GET", "/dashboard/", LoadDashboard, RoleScope::Server),
    ("GET", "/dashboard/{file}", LoadDashboard, RoleScope::Server),
    ("GET", "/healthz", Probe, RoleScope::Server),
    ("GET", "/readyz", Probe, RoleScope::Server),
    ("GET", "/version", ReadServer, RoleScope::Body),
    ("GET", "/metrics", ReadMetrics, RoleScope::Server),
    ("GET", "/openapi.json", ReadServer, RoleScope::Body),
    ("GET", "/", ReadServer, RoleScope::Body),
    // The service beside the API: its calls are for all namespaces.
    ("POST", "/mmesh.ModelMesh/getModelStatus", ReadDeployments, RoleScope::Server),
    ("POST", "/mmesh.ModelMesh/getVModelStatus", ReadDeployments, RoleScope::Server),
    ("POST", "/mmesh.ModelMesh/ensureLoaded", LoadModels, RoleScope::Server),
    ("POST", "/mmesh.ModelMesh/{method}", Declare, RoleScope::Server),
];

/// Right that a request needs.
pub(super) struct Need<'a> {
    pub(super) action: Action,
    /// Path of the route, as it is listed.
    pub(super) pattern: &'static str,
    safe: bool,
    scope: RoleScope,
    namespace: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
}

/// Finds the right that a request of this method and path needs; `None`: there is no such route.
pub(super) fn of<'a>(method: &Method, path: &'a str) -> Option<Need<'a>> {
    let method = if *method == Method::HEAD { "GET" } else { method.as_str() };
    NEEDS.iter().find_map(|(methods, pattern, action, scope)| {
        if !methods.split(' ').any(|one| one == method) {
            return None;
        }
        let mut need =
            Need { action: *action, pattern, safe: method == "GET", scope: *scope, namespace: None, name: None };
        let (mut patterns, mut segments) = (pattern.split('/'), path.split('/'));
        loop {
            match (patterns.next(), segments.next()) {
                (None, None) => return Some(need),
                (Some(pattern), Some(segment)) if pattern.starts_with('{') && !segment.is_empty() => match pattern {
                    "{namespace}" => need.namespace = Some(percent_decode(segment)?),
                    "{name}" | "{id}" => need.name = Some(percent_decode(segment)?),
                    _ => {}
                },
                (Some(pattern), Some(segment)) if pattern == segment => {}
                _ => return None,
            }
        }
    })
}

impl Need<'_> {
    /// True if the request may change something. Previews and checks change nothing, and are sent like what does.
    pub(super) fn changes(&self) -> bool {
        let changing = matches!(
            self.action,
            Declare
                | DeclareCode
                | LoadModels
                | OperateFleet
                | OperateSources
                | ManageTokens
                | CertifyNodes
                | SendWebhook
        );
        changing && !self.safe && !matches!(self.pattern, "/v1/plan" | "/v1/plan/registry" | "/v1/validate")
    }

    /// True if the pattern leaves out which method is called.
    pub(super) fn names_method(&self) -> bool {
        self.pattern.ends_with("{method}")
    }

    /// The thing that the path names.
    pub(super) fn resource(&self) -> Option<AuditResource> {
        let name = self.name.as_deref()?;
        let kind = match self.pattern.split('/').rev().nth(1).filter(|_| self.pattern.ends_with('}')) {
            Some(kind) => kind,
            None => self.pattern.split('/').nth(2)?,
        };
        let (kind, inside) = match kind {
            "deployments" => ("ModelDeployment", true),
            "aliases" => ("Alias", true),
            "workers" => ("Worker", false),
            "nodes" => ("Node", false),
            "sources" => ("Source", false),
            "tokens" => ("Token", false),
            "join-tokens" => ("JoinToken", false),
            "revocations" => ("Revocation", false),
            "functions" => ("Function", true),
            _ => return None,
        };
        if !inside {
            return Some(AuditResource { kind: kind.to_owned(), namespace: None, name: name.to_owned() });
        }
        let namespace = self.namespace.as_deref().map_or_else(|| Ok(Namespace::default()), Namespace::new).ok()?;
        let name = DeploymentName::within(&namespace, name).ok()?;
        let (namespace, name) = (Some(name.namespace().to_owned()), name.name().to_owned());
        Some(AuditResource { kind: kind.to_owned(), namespace, name })
    }

    /// Checks the asker's rights to the action.
    pub(super) fn check(&self, asker: &Asker) -> Result<(), Denied> {
        let namespace = self.namespace.as_deref().map_or_else(|| Ok(Namespace::default()), Namespace::new);
        match (self.scope, namespace) {
            (RoleScope::Body, _) => asker.may(self.action, Resource::Somewhere),
            (RoleScope::Namespace, Ok(namespace)) => asker.may(self.action, Resource::Namespace(namespace.as_str())),
            (RoleScope::Name, Ok(namespace)) => {
                let name = DeploymentName::within(&namespace, self.name.as_deref().unwrap_or_default());
                match name {
                    Ok(name) => asker.may(self.action, Resource::Model(name.key())),
                    Err(_) => asker.may(self.action, Resource::Server),
                }
            }
            // What cannot be read is no place.
            (RoleScope::Server | RoleScope::Namespace | RoleScope::Name, _) => asker.may(self.action, Resource::Server),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_wire::access::{Grant, Principal, Role};

    use super::*;
    use crate::api::rest::routes;

    #[test]
    fn every_route_names_its_action() {
        for (path, methods, _) in routes() {
            for method in methods {
                let method: Method = method.to_uppercase().parse().expect("a method");
                let filled = path.replace(['{', '}'], "");
                assert!(of(&method, &filled).is_some(), "{method} {path}: name its action in NEEDS");
            }
        }
    }

    /// The test of every route and role against a real cluster goes by this file.
    #[test]
    fn the_attack_on_all_routes_knows_them() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/attack/roles.json");
        let actions = Action::ALL.iter().map(|action| {
            let roles = action.roles().map(|roles| roles.iter().map(|role| role.as_str()).collect::<Vec<_>>());
            (action.as_str().to_owned(), serde_json::json!(roles))
        });
        let routes = NEEDS.iter().flat_map(|(methods, pattern, action, _)| {
            methods.split(' ').map(move |method| serde_json::json!([method, pattern, action.as_str()]))
        });
        let about = serde_json::json!({
            "actions": actions.collect::<serde_json::Map<_, _>>(),
            "control": routes.collect::<Vec<_>>(),
        });
        let wanted = serde_json::to_string_pretty(&about).expect("it is JSON") + "\n";
        if std::env::var_os("UPDATE").is_some() {
            fs_err::write(path, &wanted).expect("it can be written");
            return;
        }
        let found = fs_err::read_to_string(path).expect("the file is there");
        assert!(
            found == wanted,
            "tests/attack/roles.json is not up to date: UPDATE=1 cargo test -p berth-control attack"
        );
    }

    #[test]
    fn every_listed_action_is_of_a_route() {
        let routes = routes();
        for (methods, pattern, ..) in NEEDS.iter().filter(|(_, pattern, ..)| !pattern.starts_with("/mmesh.")) {
            let route = routes.iter().find(|(path, ..)| path == pattern);
            let (_, served, _) = route.unwrap_or_else(|| panic!("{pattern} is no route"));
            assert!(methods.split(' ').all(|method| served.contains(&&*method.to_lowercase())), "{methods} {pattern}");
        }
    }

    #[test]
    fn what_the_table_of_roles_says_holds_for_every_route() {
        for role in Role::ALL {
            let asker = Asker(Some(Arc::new(Principal::of("x", vec![Grant::everywhere(role)]))));
            for (methods, pattern, action, _) in NEEDS {
                let method: Method = methods.split(' ').next().and_then(|one| one.parse().ok()).expect("a method");
                let filled = pattern.replace(['{', '}'], "");
                let need = of(&method, &filled).expect("it is listed");
                if need.action == *action {
                    assert_eq!(need.check(&asker).is_ok(), action.allows(role), "{role} {methods} {pattern}");
                }
            }
        }
    }

    #[test]
    fn changes_are_known_with_what_they_change() {
        for (method, path, changed) in [
            (Method::PUT, "/v1/namespaces/bank/deployments/x", Some("ModelDeployment bank x")),
            (Method::DELETE, "/v1/deployments/bank%2Fx", Some("ModelDeployment default bank/x")),
            (Method::DELETE, "/v1/aliases/x", Some("Alias default x")),
            (Method::DELETE, "/v1/functions/x", Some("Function default x")),
            (Method::PUT, "/v1/namespaces/bank/functions/x", Some("Function bank x")),
            (Method::POST, "/v1/nodes/a/drain", Some("Node - a")),
            (Method::POST, "/v1/workers/a/cordon", Some("Worker - a")),
            (Method::POST, "/v1/sources/git/pause", Some("Source - git")),
            (Method::POST, "/v1/webhook", Some("")),
            (Method::DELETE, "/v1/tokens/abc", Some("Token - abc")),
            (Method::POST, "/v1/apply", Some("")),
            (Method::POST, "/mmesh.ModelMesh/registerModel", Some("")),
            (Method::POST, "/v1/plan", None),
            (Method::POST, "/v1/plan/registry", None),
            (Method::POST, "/v1/validate", None),
            (Method::POST, "/v1/deployments/x/try", None),
            (Method::GET, "/v1/tokens", None),
            (Method::POST, "/mmesh.ModelMesh/getModelStatus", None),
        ] {
            let need = of(&method, path).expect("a route");
            let resource = need.resource().map(|resource| {
                format!("{} {} {}", resource.kind, resource.namespace.as_deref().unwrap_or("-"), resource.name)
            });
            let found = need.changes().then(|| resource.unwrap_or_default());
            assert_eq!(found.as_deref(), changed, "{method} {path}");
        }
    }

    #[test]
    fn calls_of_the_service_beside_need_the_same_at_both_ports() {
        for method in ["getModelStatus", "getVModelStatus", "ensureLoaded", "registerModel", "setVModel", "other"] {
            let path = format!("/mmesh.ModelMesh/{method}");
            assert_eq!(of(&Method::POST, &path).map(|need| need.action), Some(Action::of_management(method)));
        }
    }

    #[test]
    fn a_place_is_read_as_the_handlers_read_it() {
        let grant = Grant { role: Role::Deployer, namespaces: vec!["bank".to_owned()], models: Vec::new() };
        let asker = Asker(Some(Arc::new(Principal::of("x", vec![grant]))));
        for (method, path, allowed) in [
            (Method::GET, "/v1/namespaces/bank/deployments", true),
            (Method::HEAD, "/v1/namespaces/bank/deployments", true),
            (Method::GET, "/v1/namespaces/shop/deployments", false),
            (Method::GET, "/v1/namespaces/bank/replicas", true),
            (Method::GET, "/v1/namespaces/bank/revisions", true),
            (Method::GET, "/v1/namespaces/bank/events", true),
            (Method::GET, "/v1/namespaces/shop/events", false),
            (Method::GET, "/v1/events", false),
            (Method::GET, "/v1/deployments", false),
            (Method::GET, "/v1/namespaces/bank/deployments/a%2Fb", true),
            (Method::PUT, "/v1/namespaces/ba%6Ek/deployments/x", true),
            (Method::PUT, "/v1/deployments/x", false),
            (Method::PUT, "/v1/deployments/bank%2Fx", false),
            (Method::DELETE, "/v1/namespaces/no%20name/deployments/x", false),
            (Method::GET, "/v1/namespaces/bank/functions", true),
            (Method::GET, "/v1/namespaces/bank/functions/x/log", true),
            (Method::DELETE, "/v1/namespaces/bank/functions/x", true),
            (Method::GET, "/v1/namespaces/shop/functions/x", false),
            (Method::GET, "/v1/functions", false),
            (Method::GET, "/v1/functions/x", false),
            (Method::DELETE, "/v1/functions/bank%2Fx", false),
            (Method::GET, "/v1/namespaces/no%20name/functions/x", false),
            (Method::POST, "/v1/apply", true),
            (Method::POST, "/v1/nodes/a/drain", false),
            (Method::GET, "/healthz", true),
        ] {
            let need = of(&method, path).unwrap_or_else(|| panic!("{method} {path}"));
            assert_eq!(need.check(&asker).is_ok(), allowed, "{method} {path}");
        }
        let grant = Grant { role: Role::Deployer, namespaces: vec!["bank".to_owned()], models: vec!["x".to_owned()] };
        let asker = Asker(Some(Arc::new(Principal::of("x", vec![grant]))));
        for (path, allowed) in [("/v1/namespaces/bank/deployments/x", true), ("/v1/namespaces/bank/functions/x", false)]
        {
            let need = of(&Method::DELETE, path).expect("a route");
            assert_eq!(need.check(&asker).is_ok(), allowed, "{path}: of a model");
        }
        for (method, path) in [
            (Method::GET, "/v1/deployments/"),
            (Method::POST, "/v1/deployments"),
            (Method::GET, "/v1//deployments"),
            (Method::GET, "/V1/deployments"),
            (Method::OPTIONS, "/v1/deployments"),
            (Method::GET, "/v1/deployments/%ff"),
        ] {
            assert!(of(&method, path).is_none(), "{method} {path}");
        }
    }
}
