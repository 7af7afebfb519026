//! Roles and actions: the one table of who may do what.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Role of somebody who asks. A principal may have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Sees the state of the system, and changes nothing.
    Viewer,
    /// Asks models.
    Caller,
    /// Declares deployments and aliases, and asks models.
    Deployer,
    /// Keeps the fleet running: nodes, sources, loads.
    Operator,
    /// Does everything.
    Admin,
}

impl Role {
    /// Every role, the least first.
    pub const ALL: [Self; 5] = [Self::Viewer, Self::Caller, Self::Deployer, Self::Operator, Self::Admin];

    /// The word in tokens, access files and errors.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Caller => "caller",
            Self::Deployer => "deployer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| format!("{text:?} is no role: write viewer, caller, deployer, operator or admin"))
    }
}

/// Smallest thing that the right to an action can be limited to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The whole server: a role that is limited to namespaces or models does not give it.
    Server,
    /// A namespace, or models in it: the right may be limited to some of them.
    Model,
}

/// Something that can be asked for. Each route names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Health and readiness.
    Probe,
    /// Files of the dashboard, which hold no data.
    LoadDashboard,
    /// Webhooks of Git hosts, which prove a secret of their own.
    SendWebhook,
    /// The server's own description.
    ReadServer,
    /// Inference, calls of a model's own methods and of functions.
    Infer,
    /// Metadata, readiness, configuration and statistics of models; the list of models.
    ReadModels,
    /// Load or unload a declared model.
    LoadModels,
    /// Deployments, aliases, functions, replicas, revisions, explanations, and events about them.
    ReadDeployments,
    /// Declare, preview and delete deployments, aliases and functions.
    Declare,
    /// Declare a model card inside the manifest: whoever declares it chooses the code that runs.
    DeclareCode,
    /// Nodes, workers, sources and events of the whole system.
    ReadFleet,
    /// Cordon and drain.
    OperateFleet,
    /// Synchronize, pause and resume sources.
    OperateSources,
    /// Names and states of secrets. No value is ever shown.
    ReadSecrets,
    /// Metrics of the process, in the text format of Prometheus.
    ReadMetrics,
    /// Create, list and revoke tokens.
    ManageTokens,
    /// Certificates of nodes: join tokens and revocations.
    CertifyNodes,
    /// The audit log of all nodes.
    ReadAudit,
}

use Role::{Admin, Caller, Deployer, Operator, Viewer};

impl Action {
    /// Every action, in the order of the table.
    pub const ALL: [Self; 18] = [
        Self::Probe,
        Self::LoadDashboard,
        Self::SendWebhook,
        Self::ReadServer,
        Self::Infer,
        Self::ReadModels,
        Self::LoadModels,
        Self::ReadDeployments,
        Self::Declare,
        Self::DeclareCode,
        Self::ReadFleet,
        Self::OperateFleet,
        Self::OperateSources,
        Self::ReadSecrets,
        Self::ReadMetrics,
        Self::ManageTokens,
        Self::CertifyNodes,
        Self::ReadAudit,
    ];

    /// The roles that may do it; `None`: everybody may, without a token.
    #[must_use]
    pub const fn roles(self) -> Option<&'static [Role]> {
        match self {
            Self::Probe | Self::LoadDashboard | Self::SendWebhook => None,
            Self::ReadServer | Self::ReadModels => Some(&Role::ALL),
            Self::Infer => Some(&[Caller, Deployer, Admin]),
            Self::LoadModels => Some(&[Deployer, Operator, Admin]),
            Self::ReadDeployments | Self::ReadFleet => Some(&[Viewer, Deployer, Operator, Admin]),
            Self::Declare => Some(&[Deployer, Admin]),
            Self::OperateFleet | Self::OperateSources | Self::ReadSecrets => Some(&[Operator, Admin]),
            Self::ReadMetrics => Some(&[Viewer, Operator, Admin]),
            Self::DeclareCode | Self::ManageTokens | Self::CertifyNodes | Self::ReadAudit => Some(&[Admin]),
        }
    }

    /// Smallest thing that the right to it can be limited to.
    #[must_use]
    pub const fn reach(self) -> Reach {
        match self {
            Self::ReadServer
            | Self::Infer
            | Self::ReadModels
            | Self::LoadModels
            | Self::ReadDeployments
            | Self::Declare
            | Self::DeclareCode => Reach::Model,
            Self::Probe
            | Self::LoadDashboard
            | Self::SendWebhook
            | Self::ReadFleet
            | Self::OperateFleet
            | Self::OperateSources
            | Self::ReadSecrets
            | Self::ReadMetrics
            | Self::ManageTokens
            | Self::CertifyNodes
            | Self::ReadAudit => Reach::Server,
        }
    }

    /// In words, for people.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Probe => "health and readiness",
            Self::LoadDashboard => "the files of the dashboard and the page of the REST API, which hold no data",
            Self::SendWebhook => "webhooks of Git hosts, which prove a secret of their own",
            Self::ReadServer => "version, protocol extensions, OpenAPI document",
            Self::Infer => "inference, a model's own methods, functions",
            Self::ReadModels => {
                "metadata, readiness, configuration and statistics of models; lists of models, without those out of reach"
            }
            Self::LoadModels => "load and unload declared models",
            Self::ReadDeployments => {
                "deployments, aliases, functions, replicas, revisions, events of a namespace, explanations"
            }
            Self::Declare => "declare, preview, validate and delete deployments, aliases and functions",
            Self::DeclareCode => "declare model cards and functions by the API: their code is of the declarer's choice",
            Self::ReadFleet => "nodes, workers, sources, events, activity of the whole system",
            Self::OperateFleet => "cordon and drain nodes; settings of the log and of traces; regions of shared memory",
            Self::OperateSources => "synchronize, pause and resume sources",
            Self::ReadSecrets => "names and states of secrets; values are never shown",
            Self::ReadMetrics => "metrics",
            Self::ManageTokens => "create, list and revoke tokens",
            Self::CertifyNodes => "make join tokens for nodes; revoke certificates of nodes",
            Self::ReadAudit => "the audit log",
        }
    }

    /// The action of a method of ModelMesh's management API, which works on all namespaces.
    #[must_use]
    pub fn of_management(method: &str) -> Self {
        match method {
            "getModelStatus" | "getVModelStatus" => Self::ReadDeployments,
            "ensureLoaded" => Self::LoadModels,
            _ => Self::Declare,
        }
    }

    /// True if it needs no token.
    #[must_use]
    pub const fn is_public(self) -> bool {
        self.roles().is_none()
    }

    /// True if a role gives the right to it.
    #[must_use]
    pub fn allows(self, role: Role) -> bool {
        self.roles().is_none_or(|roles| roles.contains(&role))
    }

    /// Its name in the audit log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::LoadDashboard => "load-dashboard",
            Self::SendWebhook => "send-webhook",
            Self::ReadServer => "read-server",
            Self::Infer => "infer",
            Self::ReadModels => "read-models",
            Self::LoadModels => "load-models",
            Self::ReadDeployments => "read-deployments",
            Self::Declare => "declare",
            Self::DeclareCode => "declare-code",
            Self::ReadFleet => "read-fleet",
            Self::OperateFleet => "operate-fleet",
            Self::OperateSources => "operate-sources",
            Self::ReadSecrets => "read-secrets",
            Self::ReadMetrics => "read-metrics",
            Self::ManageTokens => "manage-tokens",
            Self::CertifyNodes => "certify-nodes",
            Self::ReadAudit => "read-audit",
        }
    }
}

/// The table as Markdown, for docs/security.md.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from("| action | limited by | without a token |");
    for role in Role::ALL {
        text.push_str(&format!(" {role} |"));
    }
    text.push_str("\n|---|---|---|");
    text.push_str(&"---|".repeat(Role::ALL.len()));
    text.push('\n');
    for action in Action::ALL {
        let reach = match action.reach() {
            _ if action.is_public() => "",
            Reach::Server => "–",
            Reach::Model => "namespace, model",
        };
        let mark = |yes: bool| if yes { "yes" } else { "" };
        text.push_str(&format!("| {} | {reach} | {} |", action.describe(), mark(action.is_public())));
        for role in Role::ALL {
            text.push_str(&format!(" {} |", mark(action.allows(role))));
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_may_do_everything_and_nobody_else_makes_tokens_or_brings_code() {
        for action in Action::ALL {
            assert!(action.allows(Admin), "{action:?}");
        }
        for role in [Viewer, Caller, Deployer, Operator] {
            assert!(
                !Action::ManageTokens.allows(role)
                    && !Action::DeclareCode.allows(role)
                    && !Action::CertifyNodes.allows(role),
                "{role}"
            );
        }
    }

    #[test]
    fn a_viewer_changes_nothing_and_a_caller_sees_no_deployments() {
        for action in [Action::Infer, Action::LoadModels, Action::Declare, Action::OperateFleet, Action::OperateSources]
        {
            assert!(!action.allows(Viewer), "{action:?}");
        }
        for action in [Action::ReadDeployments, Action::ReadFleet, Action::ReadMetrics, Action::LoadModels] {
            assert!(!action.allows(Caller), "{action:?}");
        }
    }

    #[test]
    fn the_page_on_security_has_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
        let page = fs_err::read_to_string(path).expect("the page is there");
        let (before, rest) = page.split_once("<!-- roles: ").expect("a mark before the table");
        let (mark, rest) = rest.split_once("-->\n").expect("the mark ends");
        let (_, after) = rest.split_once("<!-- end of roles -->").expect("a mark behind the table");
        let wanted = format!("{before}<!-- roles: {mark}-->\n\n{}\n<!-- end of roles -->{after}", markdown());
        if std::env::var_os("UPDATE").is_some() {
            fs_err::write(path, &wanted).expect("it can be written");
            return;
        }
        assert!(page == wanted, "docs/security.md is not up to date: UPDATE=1 cargo test -p berth-wire access");
    }

    #[test]
    fn every_action_has_one_name_and_every_role_comes_back_from_its_word() {
        let names: std::collections::BTreeSet<_> = Action::ALL.map(Action::as_str).into_iter().collect();
        assert_eq!(names.len(), Action::ALL.len());
        for role in Role::ALL {
            assert_eq!(role.as_str().parse(), Ok(role));
        }
        assert!("root".parse::<Role>().is_err_and(|error| error.contains("viewer, caller")));
    }
}
