//! Looks into a graph before the library gets it: the files that it names, and operators whose run time nobody can tell
//! from the sizes of the inputs.
//!
//! The library opens any file that a graph names as the place of its weights, relative to the graph. So a graph of one
//! file may name none, and one of a folder only files of that folder.

use std::{
    collections::{BTreeSet, HashSet},
    fs::File,
    io,
    path::{Component, Path},
};

use berth_spec::FailureCategory;

use super::{
    labels,
    protobuf::{Content, Reader},
};
use crate::{artifacts::Source, runtime::LoadError};

/// The deepest nesting of graphs in graphs. Deeper than any that tools write; the reader recurses.
const DEPTH: usize = 16;

/// Operators that make tensors as large as the values of these inputs say.
const SIZED_BY_VALUE: [(&str, &[usize]); 9] = [
    ("ConstantOfShape", &[0]),
    ("Range", &[0, 1, 2]),
    ("Expand", &[1]),
    ("Tile", &[1]),
    ("Resize", &[1, 2, 3]),
    ("Upsample", &[1]),
    ("Pad", &[1]),
    ("OneHot", &[1]),
    // Compares all boxes that the values let through with each other.
    ("NonMaxSuppression", &[0, 1]),
];

/// Operators whose outputs depend on the shapes of their inputs only.
const OF_SHAPES: [&str; 3] = ["Shape", "Size", "Constant"];

/// Attribute of nodes that holds labels of classes.
const LABELS: &str = "classlabels_strings";

/// Facts about a graph that are read from its file before the engine loads it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// An operator by which the time of a run depends on the values of the inputs.
    pub(super) unbounded: Option<String>,
    /// The reason why the graph could not be read. One that the library reads all the same is refused.
    pub(super) unreadable: Option<String>,
    /// Files that hold weights, as the graph names them.
    external: BTreeSet<String>,
    /// Initializers that are inputs as well can be given with a request.
    takes_initializers: bool,
    /// Names of the classes; empty: it has none.
    pub(super) labels: Vec<String>,
}

/// Inspects the graph at `path`, of `artifact`.
pub(super) fn inspect(path: &Path, artifact: &Source) -> Result<Findings, LoadError> {
    let gone = |error: io::Error| {
        LoadError::new(FailureCategory::Internal, format!("the artifact cannot be read: {}", error.kind()))
    };
    let file = File::open(path).map_err(gone)?;
    let length = file.metadata().map_err(gone)?.len();
    let findings = match read(Reader::new(file, length)) {
        Ok(findings) => findings,
        // The library says better what is wrong with it.
        Err(error) => Findings { unreadable: Some(error.to_string()), ..Findings::default() },
    };
    let mut findings = findings;
    if let Source::Folder(_) = artifact {
        let beside = path.parent().map(labels::beside).unwrap_or_default();
        if !beside.is_empty() {
            findings.labels = beside;
        }
    }
    match findings.external.iter().find_map(|location| refusal(location, path, artifact)) {
        Some(message) => Err(LoadError::new(FailureCategory::InvalidModel, message)),
        None => Ok(findings),
    }
}

/// The reason why the graph at `path` may not read `location`.
fn refusal(location: &str, path: &Path, artifact: &Source) -> Option<String> {
    let Source::Folder(folder) = artifact else {
        return Some(format!(
            "its weights are in another file ({location:?}), and the artifact is one file: serve the folder that holds \
             both, or save the model with its weights inside"
        ));
    };
    let named = Path::new(location);
    let plain = !location.is_empty() && named.components().all(|part| matches!(part, Component::Normal(_)));
    let place = path.parent().unwrap_or(folder).join(named);
    let inside = || Some(place.canonicalize().ok()?.starts_with(folder.canonicalize().ok()?) && place.is_file());
    match (plain, plain.then(inside).flatten()) {
        (true, Some(true)) => None,
        (true, None) => Some(format!("it keeps weights in {location:?}, which the folder does not have")),
        _ => Some(format!(
            "it keeps weights in {location:?}, which is outside of its folder: move them beside the graph"
        )),
    }
}

/// A node of a graph, as far as it matters.
#[derive(Debug, Default)]
struct Node {
    operator: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    /// Runs a graph of its own.
    has_graph: bool,
}

fn read<R: io::Read + io::Seek>(mut file: Reader<R>) -> io::Result<Findings> {
    let (mut findings, end) = (Findings::default(), file.whole());
    let (mut labels, mut version) = (Vec::new(), 0);
    while let Some(field) = file.field(end)? {
        match (field.number, field.content) {
            (1, Content::Number(number)) => version = number,
            // A graph, or a function: its nodes have another number.
            (7, Content::Until(end)) => {
                // Before this version initializers had to be inputs as well, and could not be given with a request.
                findings.takes_initializers = version >= 4;
                graph(&mut file, end, 1, 0, &mut findings)?;
            }
            (14, Content::Until(end)) => {
                let (key, value) = pair(&mut file, end)?;
                if labels.is_empty() && (key == "labels" || key == "names") {
                    labels = labels::of_metadata(&value);
                }
            }
            (25, Content::Until(end)) => graph(&mut file, end, 7, 0, &mut findings)?,
            (_, Content::Until(end)) => file.skip(end)?,
            _ => {}
        }
    }
    if !labels.is_empty() {
        findings.labels = labels;
    }
    Ok(findings)
}

/// Reads a graph whose nodes have the number `nodes`.
fn graph<R: io::Read + io::Seek>(
    file: &mut Reader<R>,
    end: u64,
    nodes: u64,
    depth: usize,
    findings: &mut Findings,
) -> io::Result<()> {
    if depth > DEPTH {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "graphs nested too deep"));
    }
    let (mut read, mut known, mut inputs) = (Vec::new(), HashSet::new(), HashSet::new());
    while let Some(field) = file.field(end)? {
        match (field.number, field.content) {
            (number, Content::Until(end)) if number == nodes => read.push(node(file, end, depth, findings)?),
            (5, Content::Until(end)) if nodes == 1 => known.extend(tensor(file, end, findings)?),
            (15, Content::Until(end)) if nodes == 1 => known.extend(sparse(file, end, findings)?),
            (11, Content::Until(end)) if depth == 0 && nodes == 1 && findings.takes_initializers => {
                inputs.extend(name(file, end)?);
            }
            (_, Content::Until(end)) => file.skip(end)?,
            _ => {}
        }
    }
    // Initializers that are inputs as well can be given with a request.
    known.retain(|name| !inputs.contains(name));
    if findings.unbounded.is_none() {
        findings.unbounded = unbounded(&read, known);
    }
    Ok(())
}

/// The first operator whose run time depends on values. `known` are names of tensors that no input changes; a name that
/// is used before it is made counts as changed.
fn unbounded(nodes: &[Node], mut known: HashSet<String>) -> Option<String> {
    for node in nodes {
        let is_known = |name: &String| name.is_empty() || known.contains(name);
        if node.has_graph {
            return Some(node.operator.clone());
        }
        let sized = SIZED_BY_VALUE.iter().find(|(operator, _)| *operator == node.operator);
        let sizes = sized.map_or(&[][..], |(_, inputs)| inputs);
        if sizes.iter().filter_map(|&index| node.inputs.get(index)).any(|name| !is_known(name)) {
            return Some(node.operator.clone());
        }
        if OF_SHAPES.contains(&node.operator.as_str()) || node.inputs.iter().all(is_known) {
            known.extend(node.outputs.iter().cloned());
        }
    }
    None
}

fn node<R: io::Read + io::Seek>(
    file: &mut Reader<R>,
    end: u64,
    depth: usize,
    findings: &mut Findings,
) -> io::Result<Node> {
    let mut node = Node::default();
    while let Some(field) = file.field(end)? {
        match (field.number, field.content) {
            (1, Content::Until(end)) => node.inputs.push(file.text(end)?),
            (2, Content::Until(end)) => node.outputs.push(file.text(end)?),
            (4, Content::Until(end)) => node.operator = file.text(end)?,
            (5, Content::Until(end)) => node.has_graph |= attribute(file, end, depth, findings)?,
            (_, Content::Until(end)) => file.skip(end)?,
            _ => {}
        }
    }
    Ok(node)
}

/// Reads an attribute; true if it holds a graph.
fn attribute<R: io::Read + io::Seek>(
    file: &mut Reader<R>,
    end: u64,
    depth: usize,
    findings: &mut Findings,
) -> io::Result<bool> {
    let (mut has_graph, mut name, mut texts) = (false, String::new(), Vec::new());
    while let Some(field) = file.field(end)? {
        match (field.number, field.content) {
            (1, Content::Until(end)) => name = file.text(end)?,
            // Texts come behind the name. Others than labels are not looked at.
            (9, Content::Until(end)) if name == LABELS && texts.len() < labels::MAX_LABELS => {
                texts.push(file.text_or_nothing(end)?);
            }
            (5 | 10, Content::Until(end)) => drop(tensor(file, end, findings)?),
            (6 | 11, Content::Until(end)) => {
                has_graph = true;
                graph(file, end, 1, depth + 1, findings)?;
            }
            (22 | 23, Content::Until(end)) => drop(sparse(file, end, findings)?),
            (_, Content::Until(end)) => file.skip(end)?,
            _ => {}
        }
    }
    if findings.labels.is_empty() {
        findings.labels = texts;
    }
    Ok(has_graph)
}

/// Reads a sparse tensor; gives its name.
fn sparse<R: io::Read + io::Seek>(
    file: &mut Reader<R>,
    end: u64,
    findings: &mut Findings,
) -> io::Result<Option<String>> {
    let mut name = None;
    while let Some(field) = file.field(end)? {
        match (field.number, field.content) {
            (1, Content::Until(end)) => name = tensor(file, end, findings)?,
            (2, Content::Until(end)) => drop(tensor(file, end, findings)?),
            (_, Content::Until(end)) => file.skip(end)?,
            _ => {}
        }
    }
    Ok(name)
}

/// Reads a tensor but for its elements; gives its name.
fn tensor<R: io::Read + io::Seek>(
    file: &mut Reader<R>,
    end: u64,
    findings: &mut Findings,
) -> io::Result<Option<String>> {
    let mut name = None;
    while let Some(field) = file.field(end)? {
        match (field.number, field.content) {
            (8, Content::Until(end)) => name = Some(file.text(end)?),
            (13, Content::Until(end)) => {
                let (key, value) = pair(file, end)?;
                if key == "location" {
                    findings.external.insert(value);
                }
            }
            (_, Content::Until(end)) => file.skip(end)?,
            _ => {}
        }
    }
    Ok(name)
}

/// Reads a pair of key and value.
fn pair<R: io::Read + io::Seek>(file: &mut Reader<R>, end: u64) -> io::Result<(String, String)> {
    let (mut key, mut value) = (String::new(), String::new());
    while let Some(field) = file.field(end)? {
        match (field.number, field.content) {
            (1, Content::Until(end)) => key = file.text(end)?,
            // A long one is none that is asked for here.
            (2, Content::Until(end)) => value = file.text_or_nothing(end)?,
            (_, Content::Until(end)) => file.skip(end)?,
            _ => {}
        }
    }
    Ok((key, value))
}

/// Reads the name of an input.
fn name<R: io::Read + io::Seek>(file: &mut Reader<R>, end: u64) -> io::Result<Option<String>> {
    let mut name = None;
    while let Some(field) = file.field(end)? {
        match (field.number, field.content) {
            (1, Content::Until(end)) => name = Some(file.text(end)?),
            (_, Content::Until(end)) => file.skip(end)?,
            _ => {}
        }
    }
    Ok(name)
}
