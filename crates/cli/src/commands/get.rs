//! The command `berth get`: lists resources.

use berth_spec::{DeploymentName, Namespace, Origin};
use berth_wire::api::{
    API_VERSION, AliasView, DeploymentView, EventView, EventWatch, FunctionView, List, NodeList, NodeView, ReplicaView,
    RevisionView, SecretView, SourceView, WatchEvent, WorkerView,
};
use clap::Args;
use futures::{Stream, StreamExt, pin_mut};
use reqwest::Method;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    namespace::{NamespaceArgs, events_in, list_in, path_in},
    output::{Form, Row, print_value, table, table_of_namespaces, table_within},
    resource::{ParsedTarget, Resource, Target, events_about, not_found},
};
use crate::{
    client::{ApiArgs, Client},
    failure::Failure,
    terminal,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth get deployments                      all of them; also: models, deploy, m
  berth get iris                             one by its name, whatever it is
  berth get deployments,nodes                several kinds, one after the other
  berth get all -A -o yaml                   all that is declared, for `berth apply -f -`
  berth get deployments -l team=flowers      those with a label
  berth get deployments -n team              those of a namespace; -A: of all
  berth get iris -o yaml                     in a form that can be applied again
  berth get aliases                          other names for deployments, with the share of each
  berth get nodes -o wide                    memory, CPU, GPUs, models, load, addresses
  berth get nodes -o json                    with `status.leader`, the leading node
  berth get deployments --watch              changes as they happen
  berth get events                           recent events and their reasons
  berth get events --for function/words      those about a function; --for iris: about a deployment
  berth get replicas -n team                 allowed with a token for team alone
  berth get sources                          sources: the applied commit, and problems
  berth get functions                        phase, generation, message; -o wide: endpoint
  berth get functions -A                     those of all namespaces
  berth get secrets                          credentials by worker, without values

`get all -o json` and `-o yaml` leave out deployments that functions make. What belongs to a folder
or to Git (`metadata.origin`) is listed; `berth apply` refuses it unless `--force` takes it over.
With -l, `get all` lists deployments and aliases alone.")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    target: Target,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORM")]
    output: Form,
    /// Only deployments, aliases or nodes with these labels: KEY=VALUE, KEY!=VALUE, KEY, !KEY, separated by commas
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Keep printing changes, of deployments or events
    #[arg(short, long)]
    watch: bool,
    /// Only events about this: function/NAME, or deployment/NAME
    #[arg(long = "for", value_name = "KIND/NAME")]
    about: Option<String>,
    #[command(flatten)]
    namespace: NamespaceArgs,
    /// List all namespaces, with a column that names them
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    #[command(flatten)]
    api: ApiArgs,
}

/// The word for every kind of thing that is declared.
const ALL: &str = "all";

/// The kinds that `berth apply` takes.
const DECLARED: [Resource; 3] = [Resource::Deployments, Resource::Aliases, Resource::Functions];

pub(crate) async fn run(args: &GetArgs) -> Result<(), Failure> {
    let client = args.api.client()?;
    let groups = groups(&client, args).await?;
    // Before anything is printed.
    groups.iter().try_for_each(|(resource, names)| fits(args, *resource, names))?;
    if args.watch && groups.len() > 1 {
        let message = "--watch follows one kind: `berth get deployments --watch`, or `berth get events --watch`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let documents = matches!(args.output, Form::Json | Form::Yaml);
    let mut gathered = (groups.len() > 1 && documents).then(Vec::new);
    for (at, (resource, names)) in groups.iter().enumerate() {
        if at > 0 && matches!(args.output, Form::Table | Form::Wide) {
            terminal::print("\n")?;
        }
        one_kind(&client, args, *resource, names, &mut gathered).await?;
    }
    if is_all(args)
        && let Some(items) = &mut gathered
    {
        items.retain(|item| !is_made_by_functions(item));
    }
    match (gathered, args.output) {
        (Some(items), Form::Yaml) => print_documents(&items),
        (Some(items), form) => print_value(&json!({"apiVersion": API_VERSION, "kind": "List", "items": items}), form),
        (None, _) => Ok(()),
    }
}

fn is_all(args: &GetArgs) -> bool {
    matches!(args.target.words.as_slice(), [word] if word == ALL)
}

/// True of a deployment that a function makes: nobody declares it.
fn is_made_by_functions(item: &Value) -> bool {
    let origin = item.pointer("/metadata/origin").and_then(Value::as_str);
    origin.is_some_and(|origin| Origin::read(origin).kind() == "functions")
}

/// The things to print by kind; no names mean all of a kind.
async fn groups(client: &Client, args: &GetArgs) -> Result<Vec<(Resource, Vec<String>)>, Failure> {
    if is_all(args) {
        // Functions are not selected by labels.
        let selects = args.selector.is_some();
        let kinds = DECLARED.into_iter().filter(|kind| !selects || *kind != Resource::Functions);
        return Ok(kinds.map(|kind| (kind, Vec::new())).collect());
    }
    if let Some(kinds) = listed_kinds(&args.target.words)? {
        return Ok(kinds.into_iter().map(|kind| (kind, Vec::new())).collect());
    }
    let named = match args.target.read() {
        ParsedTarget::All(resource) => return Ok(vec![(resource, Vec::new())]),
        ParsedTarget::Some(named) => named,
    };
    let kinds = named.iter().filter_map(|(kind, _)| *kind);
    let kinds: Vec<Resource> = Resource::ADDRESSED.into_iter().chain(kinds).collect();
    let mut groups: Vec<(Resource, Vec<String>)> = Vec::new();
    for (resource, name) in args.target.find(client, &args.namespace, &kinds).await? {
        match groups.iter_mut().find(|(kind, _)| *kind == resource) {
            Some((_, names)) => names.push(name),
            None => groups.push((resource, vec![name])),
        }
    }
    Ok(groups)
}

/// The kinds of a list such as `deployments,nodes`, each once; `None` where the first word is no such list.
fn listed_kinds(words: &[String]) -> Result<Option<Vec<Resource>>, Failure> {
    let [list, names @ ..] = words else { return Ok(None) };
    let parts: Vec<&str> = list.split(',').collect();
    // A name may have a comma, too.
    if parts.len() < 2 || !parts.iter().any(|part| part.parse::<Resource>().is_ok()) {
        return Ok(None);
    }
    if !names.is_empty() {
        let message = format!("{list:?} lists kinds, which take no names: write KIND/NAME for each thing");
        return Err(Failure::Usage(message));
    }
    let mut kinds = Vec::new();
    for part in parts {
        let kind = part.parse::<Resource>();
        let kind = kind.map_err(|hint| Failure::Usage(format!("{part:?} in {list:?} is no kind: {hint}")))?;
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    Ok(Some(kinds))
}

/// Values of several kinds, which are printed together; `None`: each is printed at once.
type Gathered = Option<Vec<Value>>;

/// Checks that the flags are for things of this kind; no names mean all.
fn fits(args: &GetArgs, resource: Resource, names: &[String]) -> Result<(), Failure> {
    if args.selector.is_some() && !matches!(resource, Resource::Deployments | Resource::Aliases | Resource::Nodes) {
        let message = format!("--selector is for deployments, aliases and nodes, not for {}", resource.plural());
        return Err(Failure::Usage(message));
    }
    if args.selector.is_some() && !names.is_empty() {
        return Err(Failure::Usage("give names or --selector, not both".to_owned()));
    }
    if args.about.is_some() && (resource != Resource::Events || !names.is_empty()) {
        return Err(Failure::Usage("--for is for lists of events: `berth get events --for KIND/NAME`".to_owned()));
    }
    Ok(())
}

/// Prints things of one kind; no names mean all.
async fn one_kind(
    client: &Client,
    args: &GetArgs,
    resource: Resource,
    names: &[String],
    gathered: &mut Gathered,
) -> Result<(), Failure> {
    if let Some(word) = &args.about {
        return events_for(client, args, word).await;
    }
    if args.watch {
        return watch(client, args, resource, names).await;
    }
    match resource {
        Resource::Deployments => show::<DeploymentView>(client, args, resource, names, gathered).await,
        Resource::Nodes if names.is_empty() => {
            let query = labels(args);
            let nodes: NodeList = client.json(client.request(Method::GET, &[resource.plural()], &query)).await?;
            match (args.output, gathered, &nodes.status.mass_loss) {
                (Form::Json | Form::Yaml, Some(gathered), _) => return gather(gathered, &nodes.items),
                (form @ (Form::Json | Form::Yaml), None, _) => return print_value(&nodes, form),
                (Form::Name, ..) | (.., None) => {}
                (.., Some(loss)) => terminal::print(&super::nodes::mass_loss(loss))?,
            }
            print_items(&nodes.items, resource, args)
        }
        Resource::Nodes => show::<NodeView>(client, args, resource, names, gathered).await,
        Resource::Workers => show::<WorkerView>(client, args, resource, names, gathered).await,
        Resource::Replicas => show::<ReplicaView>(client, args, resource, names, gathered).await,
        Resource::Revisions => show::<RevisionView>(client, args, resource, names, gathered).await,
        Resource::Aliases => show::<AliasView>(client, args, resource, names, gathered).await,
        Resource::Events => show::<EventView>(client, args, resource, names, gathered).await,
        Resource::Sources => show::<SourceView>(client, args, resource, names, gathered).await,
        Resource::Functions => show::<FunctionView>(client, args, resource, names, gathered).await,
        Resource::Secrets => show::<SecretView>(client, args, resource, names, gathered).await,
    }
}

async fn show<T>(
    client: &Client,
    args: &GetArgs,
    resource: Resource,
    names: &[String],
    gathered: &mut Gathered,
) -> Result<(), Failure>
where
    T: Row + Serialize + DeserializeOwned,
{
    let form = args.output;
    if let [name] = names {
        let one: T = one(client, resource, name, inside(args, resource, names).as_ref()).await?;
        return match (form, gathered) {
            (Form::Json | Form::Yaml, Some(gathered)) => gather(gathered, &[one]),
            (Form::Json | Form::Yaml, None) => print_value(&one, form),
            _ => print_items(&[one], resource, args),
        };
    }
    let inside = inside(args, resource, names);
    let query = [labels(args), selected(resource, inside.as_ref())].concat();
    let listed = client.list::<T>(&list_in(resource, inside.as_ref()), &query).await;
    let mut list = match (listed, events_alone(resource, inside.as_ref())) {
        (Err(Failure::Forbidden(_)), Some(path)) => client.list::<T>(&path, &[]).await?,
        (listed, _) => listed?,
    };
    if !names.is_empty() {
        list.items.retain(|item| names.contains(&item.name()));
        for name in names {
            if !list.items.iter().any(|item| item.name() == *name) {
                return Err(not_found(client, resource, name).await);
            }
        }
    }
    match (form, gathered) {
        (Form::Json | Form::Yaml, Some(gathered)) => gather(gathered, &list.items),
        _ => print_list(&list, resource, args),
    }
}

fn gather<T: Serialize>(gathered: &mut Vec<Value>, items: &[T]) -> Result<(), Failure> {
    for item in items {
        gathered.push(serde_json::to_value(item).map_err(|e| Failure::doing("cannot write JSON", e))?);
    }
    Ok(())
}

/// Events about one thing.
async fn events_for(client: &Client, args: &GetArgs, word: &str) -> Result<(), Failure> {
    let about = events_about(word, &args.namespace)?;
    let path = about.path();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    if args.watch {
        let events = client.watch::<EventWatch>(&path, &[("watch", "true".to_owned()), about.query()]).await?;
        return print_events(events, &mut Printer { args, resource: Resource::Events, begun: false }).await;
    }
    let list = client.list::<EventView>(&path, &[about.query()]).await?;
    print_list(&list, Resource::Events, args)
}

fn print_list<T: Row + Serialize>(list: &List<T>, resource: Resource, args: &GetArgs) -> Result<(), Failure> {
    match args.output {
        Form::Json => print_value(list, Form::Json),
        Form::Yaml => print_documents(&list.items),
        _ => print_items(&list.items, resource, args),
    }
}

/// The namespace whose things are listed, where things of this kind are in one. Things that are named are looked for in all, unless
/// their names say that they are in the same one.
fn inside(args: &GetArgs, resource: Resource, names: &[String]) -> Option<Namespace> {
    match &args.namespace.namespace {
        _ if args.all_namespaces || !resource.has_namespace() => None,
        Some(namespace) => Some(namespace.clone()),
        None if names.is_empty() => Some(Namespace::DEFAULT),
        None if resource.is_listed_by_namespace() => shared(names),
        None => None,
    }
}

/// The namespace that all of these names are in.
fn shared(names: &[String]) -> Option<Namespace> {
    let mut all = names.iter().map(|name| DeploymentName::new(name).map(|name| name.to_namespace()).ok());
    let first = all.next()??;
    all.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

/// The query that selects a namespace, where the address of the list does not name it.
fn selected(resource: Resource, namespace: Option<&Namespace>) -> Vec<(&'static str, String)> {
    let namespace = namespace.filter(|_| !resource.is_listed_by_namespace());
    namespace.map(|namespace| ("namespace", namespace.to_string())).into_iter().collect()
}

/// The address of the events of a namespace, for roles that are limited to it: those of the whole system are not for them.
fn events_alone(resource: Resource, namespace: Option<&Namespace>) -> Option<Vec<&str>> {
    namespace.filter(|_| resource == Resource::Events).map(events_in)
}

/// The query that selects by labels.
fn labels(args: &GetArgs) -> Vec<(&'static str, String)> {
    args.selector.iter().map(|labels| ("labelSelector", labels.clone())).collect()
}

/// One thing by its name, from its own address where it has one.
async fn one<T: Row + DeserializeOwned>(
    client: &Client,
    resource: Resource,
    name: &str,
    namespace: Option<&Namespace>,
) -> Result<T, Failure> {
    let is_inside = resource.is_addressed_by_namespace();
    if is_inside || matches!(resource, Resource::Nodes | Resource::Workers) {
        let inside = DeploymentName::new(name).ok().filter(|_| is_inside);
        let path = inside.as_ref().map_or_else(|| vec![resource.plural(), name], |name| path_in(resource, name));
        return match client.get(&path).await {
            Err(Failure::NotFound(_)) => Err(not_found(client, resource, name).await),
            other => other,
        };
    }
    let list = client.list::<T>(&list_in(resource, namespace), &[]).await?;
    match list.items.into_iter().find(|item| item.name() == name) {
        Some(item) => Ok(item),
        None => Err(not_found(client, resource, name).await),
    }
}

/// One document each, as `berth apply -f -` reads them.
fn print_documents<T: Serialize>(items: &[T]) -> Result<(), Failure> {
    let documents: Result<Vec<String>, Failure> = items.iter().map(document).collect();
    Ok(terminal::print(&documents?.concat())?)
}

fn document(item: &impl Serialize) -> Result<String, Failure> {
    Ok(format!("---\n{}", super::output::yaml(item)?))
}

fn print_items<T: Row>(items: &[T], resource: Resource, args: &GetArgs) -> Result<(), Failure> {
    let form = args.output;
    if form == Form::Name {
        let lines: String = items.iter().map(|item| format!("{}/{}\n", resource.singular(), item.name())).collect();
        return if lines.is_empty() { Ok(()) } else { Ok(terminal::print(&lines)?) };
    }
    if items.is_empty() {
        // For people, so not on standard output, where a script would read it as a result.
        eprintln!("no {} yet", resource.plural());
        return Ok(());
    }
    Ok(terminal::print(&shown(items, resource, args))?)
}

fn shown<T: Row>(items: &[T], resource: Resource, args: &GetArgs) -> String {
    if !resource.has_namespace() {
        return table(items, args.output);
    }
    match (args.all_namespaces, &args.namespace.namespace) {
        (true, _) => table_of_namespaces(items, args.output),
        (false, Some(_)) => table_within(items, args.output),
        (false, None) => table(items, args.output),
    }
}

async fn watch(client: &Client, args: &GetArgs, resource: Resource, names: &[String]) -> Result<(), Failure> {
    let inside = inside(args, resource, names);
    let path = list_in(resource, inside.as_ref());
    let query = [vec![("watch", "true".to_owned())], labels(args), selected(resource, inside.as_ref())].concat();
    let mut printer = Printer { args, resource, begun: false };
    match resource {
        Resource::Deployments => {
            let changes = client.watch::<WatchEvent>(&path, &query).await?;
            pin_mut!(changes);
            while let Some(change) = changes.next().await {
                match change? {
                    WatchEvent::Added(one) | WatchEvent::Modified(one) | WatchEvent::Deleted(one)
                        if names.is_empty() || names.contains(&one.metadata.written()) =>
                    {
                        printer.print(&*one)?;
                    }
                    WatchEvent::Error(error) => return Err(Failure::Failed(crate::client::describe(&error))),
                    _ => {}
                }
            }
        }
        Resource::Events => {
            let events = match (client.watch::<EventWatch>(&path, &query).await, inside.as_ref().map(events_in)) {
                (Err(Failure::Forbidden(_)), Some(path)) => {
                    client.watch::<EventWatch>(&path, &[("watch", "true".to_owned())]).await?
                }
                (events, _) => events?,
            };
            return print_events(events, &mut printer).await;
        }
        other => return Err(Failure::Usage(format!("--watch is for deployments and events, not {}", other.plural()))),
    }
    Err(watch_ended())
}

/// Prints events as they come.
async fn print_events(
    events: impl Stream<Item = Result<EventWatch, Failure>>,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event? {
            EventWatch::Added(event) => printer.print(&*event)?,
            EventWatch::Error(error) => return Err(Failure::Failed(crate::client::describe(&error))),
        }
    }
    Err(watch_ended())
}

fn watch_ended() -> Failure {
    Failure::Failed("the server ended the watch".to_owned())
}

/// Prints one row after another under one head.
struct Printer<'a> {
    args: &'a GetArgs,
    resource: Resource,
    begun: bool,
}

impl Printer<'_> {
    fn print<T: Row + Serialize>(&mut self, item: &T) -> Result<(), Failure> {
        let text = match self.args.output {
            Form::Json => serde_json::to_string(item).map_err(|e| Failure::doing("cannot write JSON", e))?,
            Form::Yaml => document(item)?,
            Form::Name => format!("{}/{}", self.resource.singular(), item.name()),
            _ => {
                let text = shown(std::slice::from_ref(item), self.resource, self.args);
                match text.split_once('\n') {
                    Some((_, row)) if self.begun => row.to_owned(),
                    _ => text,
                }
            }
        };
        self.begun = true;
        Ok(terminal::print(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_kinds_is_read_strictly() {
        let read = |words: &[&str]| {
            listed_kinds(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>()).map_err(|e| e.to_string())
        };
        let (deployments, nodes) = (Resource::Deployments, Resource::Nodes);
        assert_eq!(read(&["deployments,nodes"]), Ok(Some(vec![deployments, nodes])));
        assert_eq!(read(&["no,deploy,models"]), Ok(Some(vec![nodes, deployments])), "each once");
        for words in [&["deployments"][..], &["iris"], &["iris,digits"], &["deployment/iris,nodes/a"], &[]] {
            assert_eq!(read(words), Ok(None), "{words:?}");
        }
        let refused = |words: &[&str]| read(words).expect_err("it is wrong");
        assert!(refused(&["deployments,nodes", "iris"]).contains("write KIND/NAME"));
        let hint = "\"depolyments\" in \"nodes,depolyments\" is no kind: did you mean deployments?";
        assert_eq!(refused(&["nodes,depolyments"]), hint);
        assert!(refused(&["nodes,"]).contains("is no kind: there are deployments, nodes"));
    }

    #[test]
    fn what_functions_make_is_not_declared() {
        for (origin, made) in
            [("functions:own", true), ("api", false), ("directory:/functions", false), ("etcd", false)]
        {
            assert_eq!(is_made_by_functions(&json!({"metadata": {"name": "f", "origin": origin}})), made, "{origin}");
        }
        assert!(!is_made_by_functions(&json!({"metadata": {"name": "f"}})));
    }
}
