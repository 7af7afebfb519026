//! Resource kinds with all their names, and things as people name them on the command line: one rule for every command.

use std::str::FromStr;

use berth_spec::{DeploymentName, Namespace, manifest::closest};
use clap::{Arg, Args};

use super::{
    completing,
    namespace::{NamespaceArgs, events_in, list_in, path_in},
};
use crate::{client::Client, failure::Failure};

/// A kind of thing that the API lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    Deployments,
    Nodes,
    Workers,
    Replicas,
    Revisions,
    Aliases,
    Events,
    Sources,
    Secrets,
    Functions,
}

impl Resource {
    /// The kinds whose things have an address of their own: a name alone is looked for among them.
    pub(crate) const ADDRESSED: [Self; 5] =
        [Self::Deployments, Self::Aliases, Self::Functions, Self::Nodes, Self::Sources];

    /// Every kind with its names; the first is the one in addresses.
    const NAMES: [(Self, &[&str]); 10] = [
        (
            Self::Deployments,
            &["deployments", "deployment", "deploy", "models", "model", "m", "modeldeployments", "modeldeployment"],
        ),
        (Self::Nodes, &["nodes", "node", "no"]),
        (Self::Workers, &["workers", "worker", "wo"]),
        (Self::Replicas, &["replicas", "replica", "rep"]),
        (Self::Revisions, &["revisions", "revision", "rev"]),
        (Self::Aliases, &["aliases", "alias", "al"]),
        (Self::Events, &["events", "event", "ev"]),
        (Self::Sources, &["sources", "source", "src"]),
        (Self::Secrets, &["secrets", "secret", "sec"]),
        (Self::Functions, &["functions", "function", "fn"]),
    ];

    /// The name in addresses.
    pub(crate) fn plural(self) -> &'static str {
        self.names()[0]
    }

    /// Singular name.
    pub(crate) fn singular(self) -> &'static str {
        self.names()[1]
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.iter().map(|(resource, _)| *resource)
    }

    /// The names in addresses of all kinds.
    pub(crate) fn plurals() -> impl Iterator<Item = &'static str> {
        Self::all().map(Self::plural)
    }

    /// Things of this kind are in a namespace.
    pub(crate) fn has_namespace(self) -> bool {
        matches!(self, Self::Events) || self.is_listed_by_namespace()
    }

    /// A thing of this kind has an address in its namespace.
    pub(crate) fn is_addressed_by_namespace(self) -> bool {
        matches!(self, Self::Deployments | Self::Aliases | Self::Functions)
    }

    /// Things of this kind are asked for at an address of their namespace, which a role limited to that namespace opens. Events
    /// have one, too ([`super::namespace::events_in`]); those of the whole system are not there.
    pub(crate) fn is_listed_by_namespace(self) -> bool {
        matches!(self, Self::Replicas | Self::Revisions) || self.is_addressed_by_namespace()
    }

    /// The kind of a document as commands write it: `deployment` for `ModelDeployment`.
    pub(crate) fn of_document(kind: &str) -> String {
        kind.parse::<Self>().map_or_else(|_| kind.to_lowercase(), |resource| resource.singular().to_owned())
    }

    fn names(self) -> &'static [&'static str] {
        Self::NAMES.iter().find(|(resource, _)| *resource == self).map_or(&["", ""], |(_, names)| names)
    }
}

impl FromStr for Resource {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_lowercase();
        let found = Self::NAMES.iter().find(|(_, names)| names.contains(&lower.as_str()));
        found.map(|(resource, _)| *resource).ok_or_else(|| match closest(text, Self::plurals()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there are {}", Self::plurals().collect::<Vec<_>>().join(", ")),
        })
    }
}

/// Things as people write them: `NAME`, `KIND/NAME`, or `KIND NAME …` (docs/names.md).
#[derive(Debug, Clone, Args)]
pub(crate) struct Target {
    /// NAME, KIND/NAME, or a KIND and names. Kinds: deployment (model, m), alias, function (fn), node, worker, source, …
    #[arg(value_name = "[KIND/]NAME", required = true, add = completing::listed())]
    pub(crate) words: Vec<String>,
}

/// The things that the words of a [`Target`] name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ParsedTarget {
    /// A kind alone.
    All(Resource),
    /// Things, each once; those without a kind are to be looked for.
    Some(Vec<(Option<Resource>, String)>),
}

impl Target {
    /// Changes help and completion of the words, for a command that takes only these kinds, the usual one first.
    pub(crate) fn words_of(kinds: &'static [Resource]) -> impl FnMut(Arg) -> Arg {
        let kinded: Vec<String> = kinds.iter().map(|kind| format!("{}/NAME", kind.singular())).collect();
        let help = match kinded.as_slice() {
            [before @ .., last] => format!("{} or {last}", [&["NAME".to_owned()], before].concat().join(", ")),
            [] => String::new(),
        };
        move |arg| match arg.get_id().as_str() {
            "words" => arg.help(help.clone()).add(completing::targets_of(kinds)),
            _ => arg,
        }
    }

    /// Reads the words, without asking anybody what exists.
    pub(crate) fn read(&self) -> ParsedTarget {
        let kind = |word: &String| word.parse::<Resource>().ok();
        let (of, names) = match self.words.as_slice() {
            [first] => match kind(first) {
                Some(resource) => return ParsedTarget::All(resource),
                None => (None, &self.words[..]),
            },
            [first, names @ ..] => match kind(first) {
                Some(resource) => (Some(resource), names),
                None => (None, &self.words[..]),
            },
            [] => (None, &[][..]),
        };
        let mut found: Vec<(Option<Resource>, String)> = Vec::new();
        for name in names {
            let one = match split(name) {
                (Some(own), name) if of.is_none_or(|of| of == own) => (Some(own), name.to_owned()),
                _ => (of, name.clone()),
            };
            if !found.contains(&one) {
                found.push(one);
            }
        }
        ParsedTarget::Some(found)
    }

    /// The things that are named, in their order; `kinds` are those that the command takes, the usual one first. A name
    /// without a kind is looked for in all of them.
    ///
    /// # Errors
    /// A kind alone or another kind; a name that several things have, or none.
    pub(crate) async fn find(
        &self,
        client: &Client,
        namespace: &NamespaceArgs,
        kinds: &[Resource],
    ) -> Result<Vec<(Resource, String)>, Failure> {
        let names = match self.read() {
            ParsedTarget::All(resource) if kinds.contains(&resource) => {
                let (word, kind) = (&self.words[0], resource.singular());
                let message =
                    format!("which {kind}? Write its name; if the name is {word:?} itself, write {kind}/{word}");
                return Err(Failure::Usage(message));
            }
            ParsedTarget::All(resource) => return Err(not_for(resource, kinds)),
            ParsedTarget::Some(names) => names,
        };
        let mut found = Vec::with_capacity(names.len());
        for (resource, name) in names {
            found.push(match resource {
                Some(resource) if kinds.contains(&resource) => (resource, namespace.written(resource, &name)?),
                Some(resource) => return Err(not_for(resource, kinds)),
                None => look_for(client, namespace, kinds, &name).await?,
            });
        }
        Ok(found)
    }
}

/// The kind in front of a name, if there is one: `deploy/iris`. `team/iris` is a name in the namespace `team`.
fn split(word: &str) -> (Option<Resource>, &str) {
    match word.split_once('/').map(|(kind, name)| (kind.parse(), name)) {
        Some((Ok(resource), name)) if !name.is_empty() => (Some(resource), name),
        _ => (None, word),
    }
}

/// The query that selects the events about a function or a deployment: `function/words`, `deployment/iris`, `iris`.
pub(crate) fn events_about(word: &str, namespace: &NamespaceArgs) -> Result<EventsAbout, Failure> {
    match split(word) {
        (Some(Resource::Functions), name) => namespace.name_of(Resource::Functions, name).map(EventsAbout::Function),
        (Some(Resource::Deployments) | None, name) => namespace.name(name).map(EventsAbout::Deployment),
        (Some(other), _) => Err(not_for(other, &[Resource::Deployments, Resource::Functions])),
    }
}

/// A thing that events are about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EventsAbout {
    Function(DeploymentName),
    Deployment(DeploymentName),
}

impl EventsAbout {
    /// The segments of the address of its events.
    pub(crate) fn path(&self) -> Vec<String> {
        let (Self::Function(name) | Self::Deployment(name)) = self;
        events_in(&name.to_namespace()).into_iter().map(str::to_owned).collect()
    }

    /// The query that selects them there.
    pub(crate) fn query(&self) -> (&'static str, String) {
        match self {
            Self::Function(name) => ("function", name.name().to_owned()),
            Self::Deployment(name) => ("deployment", name.name().to_owned()),
        }
    }
}

/// A name where only a model is meant: `iris`, `deploy/iris`, `alias/iris`.
pub(crate) fn model(word: &str) -> Result<&str, Failure> {
    let kinds = [Resource::Deployments, Resource::Aliases];
    match split(word) {
        (Some(resource), _) if !kinds.contains(&resource) => Err(not_for(resource, &kinds)),
        (_, name) => Ok(name),
    }
}

fn not_for(resource: Resource, kinds: &[Resource]) -> Failure {
    let known: Vec<&str> = kinds.iter().map(|kind| kind.plural()).collect();
    Failure::Usage(format!("this command takes {}, not {}", known.join(", "), resource.plural()))
}

/// The one thing of that name among these kinds.
async fn look_for(
    client: &Client,
    namespace: &NamespaceArgs,
    kinds: &[Resource],
    name: &str,
) -> Result<(Resource, String), Failure> {
    if let [only] = kinds {
        return Ok((*only, namespace.written(*only, name)?));
    }
    let (mut found, mut forbidden) = (Vec::new(), None);
    for &resource in kinds {
        // A name that cannot be one of this kind is none.
        let Ok(written) = namespace.written(resource, name) else { continue };
        let path = path_of_thing(resource, &written);
        match client.get::<serde_json::Value>(&path.iter().map(String::as_str).collect::<Vec<_>>()).await {
            Ok(_) => found.push((resource, written)),
            Err(Failure::NotFound(_) | Failure::Invalid(_)) => {}
            // Nodes and sources are out of reach of limited roles; the thing may be of another kind.
            Err(failure @ Failure::Forbidden(_)) => forbidden = forbidden.or(Some(failure)),
            Err(other) => return Err(other),
        }
    }
    let mut found = without_its_worker(found);
    match (found.len(), forbidden) {
        (0, Some(forbidden)) => {
            Err(forbidden.with(|why| format!("there is nothing of the name {name:?} among what you may see: {why}")))
        }
        (0, None) => Err(nothing(client, namespace, kinds, name).await),
        (1, _) => Ok(found.remove(0)),
        _ => {
            let each: Vec<String> = found.iter().map(|(kind, name)| format!("{}/{name}", kind.singular())).collect();
            Err(Failure::Usage(format!("{name:?} is the name of several things: write {}", each.join(" or "))))
        }
    }
}

/// A worker has the name of its node: of both, the name alone means the node, whose page tells more.
fn without_its_worker(mut found: Vec<(Resource, String)>) -> Vec<(Resource, String)> {
    if found.iter().any(|(kind, _)| *kind == Resource::Nodes) {
        found.retain(|(kind, _)| *kind != Resource::Workers);
    }
    found
}

/// The segments of a thing's address.
fn path_of_thing(resource: Resource, written: &str) -> Vec<String> {
    match DeploymentName::new(written).ok().filter(|_| resource.is_addressed_by_namespace()) {
        Some(name) => path_in(resource, &name).into_iter().map(str::to_owned).collect(),
        None => vec![resource.plural().to_owned(), written.to_owned()],
    }
}

/// The failure for a name that nothing has, with what was most likely meant: a kind, or a name of any kind.
async fn nothing(client: &Client, namespace: &NamespaceArgs, kinds: &[Resource], name: &str) -> Failure {
    if let Ok(written) = namespace.written(Resource::Deployments, name)
        && let Some(hint) = of_another_kind(client, kinds, &written).await
    {
        return Failure::NotFound(format!("{name:?} is not what this command takes: {hint}"));
    }
    let mut known = Vec::new();
    for &resource in kinds {
        known.extend(names(client, resource).await.unwrap_or_default().into_iter().map(|name| (resource, name)));
    }
    let near = meant(name, known.iter().map(|(_, name)| name.as_str()));
    let near = near.and_then(|near| known.iter().find(|(_, name)| name == near));
    let kind = || closest(name, Resource::plurals()).map(str::to_owned);
    let kinded = kind_meant(name, kinds, known.iter().map(|(_, name)| name.as_str()));
    let hint = match (near, kinded.or_else(kind)) {
        (Some((resource, near)), _) => format!("did you mean {}/{near}?", resource.singular()),
        (None, Some(kind)) => format!("did you mean {kind}?"),
        (None, None) => {
            format!("`berth get {}` lists what there is", kinds.first().map_or("deployments", |kind| kind.plural()))
        }
    };
    Failure::NotFound(format!("there is nothing of the name {name:?}: {hint}"))
}

/// A name with the kind in front that was most likely meant: `deployment/iris` for `depolyment/iris`. What stands there may be a namespace,
/// too: one that has anything, and `work`, which is no slip of `worker`.
fn kind_meant<'a>(name: &str, kinds: &[Resource], mut known: impl Iterator<Item = &'a str>) -> Option<String> {
    let (front, name) = name.split_once('/')?;
    let kind = closest(front, kinds.iter().map(|kind| kind.singular()))?;
    let is_slip = kind.len().abs_diff(front.len()) <= 1;
    let is_namespace = known.any(|known| known.split_once('/').is_some_and(|(namespace, _)| namespace == front));
    (is_slip && !is_namespace).then(|| format!("{kind}/{name}"))
}

/// The name that was most likely meant: the same in another namespace, else the closest.
fn meant<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let longer = known.clone().find(|known| known.strip_suffix(name).is_some_and(|front| front.ends_with('/')));
    longer.or_else(|| closest(name, known))
}

/// The hint where a thing of a kind that is not taken has the name.
async fn of_another_kind(client: &Client, taken: &[Resource], name: &str) -> Option<String> {
    let kinds = [Resource::Deployments, Resource::Aliases, Resource::Functions];
    for kind in kinds.into_iter().filter(|kind| !taken.contains(kind)) {
        let path = path_of_thing(kind, name);
        let found = client.get::<serde_json::Value>(&path.iter().map(String::as_str).collect::<Vec<_>>()).await;
        if found.is_ok() {
            let (article, kind) = (if kind == Resource::Aliases { "an" } else { "a" }, kind.singular());
            return Some(format!("that is {article} {kind}, `berth describe {kind}/{name}` shows it"));
        }
    }
    None
}

/// The failure for a name that does not exist, with the name that was most likely meant.
pub(crate) async fn not_found(client: &Client, resource: Resource, name: &str) -> Failure {
    if let Some(hint) = of_another_kind(client, &[resource], name).await {
        return Failure::NotFound(format!("there is no {} {name:?}: {hint}", resource.singular()));
    }
    let listed = names_near(client, resource, name).await;
    let is_none_yet = listed.as_ref().is_ok_and(Vec::is_empty);
    let known = listed.unwrap_or_default();
    let hint = match meant(name, known.iter().map(String::as_str)) {
        Some(near) => format!("did you mean {near:?}?"),
        None if is_none_yet => format!("there are no {} yet", resource.plural()),
        None => format!("`berth get {}` lists them", resource.plural()),
    };
    Failure::NotFound(format!("there is no {} {name:?}: {hint}", resource.singular()))
}

/// The names of all things of a kind; where a role is limited, of those in the namespace of `name`.
async fn names_near(client: &Client, resource: Resource, name: &str) -> Result<Vec<String>, Failure> {
    match (names(client, resource).await, DeploymentName::new(name)) {
        (Err(Failure::Forbidden(_)), Ok(name)) if resource.is_listed_by_namespace() => {
            names_at(client, &list_in(resource, Some(&name.to_namespace()))).await
        }
        (listed, _) => listed,
    }
}

/// The names of all things of a kind: for suggestions, so the first page is enough.
pub(super) async fn names(client: &Client, resource: Resource) -> Result<Vec<String>, Failure> {
    names_at(client, &list_in(resource, None)).await
}

async fn names_at(client: &Client, path: &[&str]) -> Result<Vec<String>, Failure> {
    let list: serde_json::Value = client.get(path).await?;
    let items = list.get("items").and_then(serde_json::Value::as_array).cloned().unwrap_or_default();
    let text = |item: &serde_json::Value, field: &str| item.pointer(field).and_then(|n| n.as_str().map(str::to_owned));
    let name = |item: &serde_json::Value| {
        let name = text(item, "/metadata/name")?;
        match text(item, "/metadata/namespace").map(|namespace| Namespace::new(&namespace)) {
            Some(Ok(namespace)) => DeploymentName::within(&namespace, &name).ok().map(|name| name.to_string()),
            _ => Some(name),
        }
    };
    Ok(items.iter().filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_asked_for_by_what_they_are_about() {
        let team = NamespaceArgs { namespace: Namespace::new("team").ok() };
        let asked = |word: &str, namespace: &NamespaceArgs| {
            events_about(word, namespace).map(|about| (about.path().join("/"), about.query())).ok()
        };
        let found = |path: &str, key: &'static str, name: &str| Some((path.to_owned(), (key, name.to_owned())));
        let none = NamespaceArgs::default();
        assert_eq!(asked("function/words", &team), found("namespaces/team/events", "function", "words"));
        assert_eq!(asked("fn/Words", &none), found("namespaces/default/events", "function", "Words"));
        assert_eq!(asked("fn/team/words", &none), found("namespaces/team/events", "function", "words"));
        assert_eq!(asked("iris", &none), found("namespaces/default/events", "deployment", "iris"));
        assert_eq!(asked("deploy/iris", &team), found("namespaces/team/events", "deployment", "iris"));
        assert_eq!(asked("team/iris", &none), found("namespaces/team/events", "deployment", "iris"));
        assert_eq!(asked("node/a", &none), None);
    }

    #[test]
    fn a_thing_is_written_in_three_ways() {
        use Resource::{Deployments, Events, Functions, Nodes};
        let some = |found: &[(Option<Resource>, &str)]| {
            ParsedTarget::Some(found.iter().map(|(kind, name)| (*kind, (*name).to_owned())).collect())
        };
        for (words, wanted) in [
            (&["iris"][..], some(&[(None, "iris")])),
            (&["team/iris"], some(&[(None, "team/iris")])),
            (&["deployment/iris"], some(&[(Some(Deployments), "iris")])),
            (&["m/iris", "no/a", "m/iris"], some(&[(Some(Deployments), "iris"), (Some(Nodes), "a")])),
            (&["Models", "a", "a", "deployment/b"], some(&[(Some(Deployments), "a"), (Some(Deployments), "b")])),
            (&["deploy", "team/iris"], some(&[(Some(Deployments), "team/iris")])),
            (&["deploy", "node/a"], some(&[(Some(Deployments), "node/a")])),
            (&["events"], ParsedTarget::All(Events)),
            (&["ev", "17"], some(&[(Some(Events), "17")])),
            (&["function/team/words"], some(&[(Some(Functions), "team/words")])),
        ] {
            let target = Target { words: words.iter().map(|&word| word.to_owned()).collect() };
            assert_eq!(target.read(), wanted, "{words:?}");
        }
        assert_eq!(model("m/iris").ok(), Some("iris"));
        assert_eq!(model("team/iris").ok(), Some("team/iris"));
        assert!(model("node/a").is_err_and(|error| error.to_string().contains("takes deployments, aliases")));
    }

    #[test]
    fn a_name_without_its_namespace_is_told_with_it() {
        let known = ["default/a/b", "iris", "team/forest"];
        assert_eq!(meant("a/b", known.into_iter()), Some("default/a/b"));
        assert_eq!(meant("forest", known.into_iter()), Some("team/forest"));
        assert_eq!(meant("irsi", known.into_iter()), Some("iris"));
        assert_eq!(meant("nothing", known.into_iter()), None);
    }

    #[test]
    fn a_kind_with_a_slip_is_told_with_its_name() {
        let all: Vec<Resource> = Resource::all().collect();
        let meant = |name: &str| kind_meant(name, &all, ["iris", "noed/iris"].into_iter());
        assert_eq!(meant("depolyment/iris").as_deref(), Some("deployment/iris"));
        assert_eq!(meant("ndoe/a/b").as_deref(), Some("node/a/b"));
        for namespace in ["team/iris", "work/iris", "node-a/iris", "noed/digits", "depolyment"] {
            assert_eq!(meant(namespace), None, "{namespace}");
        }
        assert_eq!(kind_meant("ndoe/a", &[Resource::Deployments], std::iter::empty()), None, "not for this command");
    }

    #[test]
    fn the_help_of_a_command_names_only_the_kinds_that_it_takes() {
        use Resource::{Aliases, Deployments, Functions};
        let help = |kinds: &'static [Resource]| {
            let words = Target::words_of(kinds)(Arg::new("words"));
            words.get_help().map(ToString::to_string)
        };
        assert_eq!(help(&[Deployments]).as_deref(), Some("NAME or deployment/NAME"));
        let three = "NAME, deployment/NAME, alias/NAME or function/NAME";
        assert_eq!(help(&[Deployments, Aliases, Functions]).as_deref(), Some(three));
    }

    #[test]
    fn a_worker_is_named_only_by_those_who_ask_for_it() {
        use Resource::{Deployments, Nodes, Workers};
        let named = |kinds: &[Resource]| kinds.iter().map(|&kind| (kind, "a".to_owned())).collect::<Vec<_>>();
        assert_eq!(without_its_worker(named(&[Nodes, Workers])), named(&[Nodes]));
        assert_eq!(without_its_worker(named(&[Workers])), named(&[Workers]));
        assert_eq!(without_its_worker(named(&[Deployments, Nodes, Workers])), named(&[Deployments, Nodes]));
    }

    #[test]
    fn no_name_of_a_kind_is_that_of_another() {
        let mut seen = std::collections::BTreeSet::new();
        for word in Resource::NAMES.iter().flat_map(|(_, names)| *names) {
            assert!(seen.insert(word), "{word}");
        }
        assert_eq!("deploymints".parse::<Resource>(), Err("did you mean deployments?".to_owned()));
    }
}
