//! From an artifact to a session and its signature.

use std::path::{Path, PathBuf};

use berth_spec::{Datatype, FailureCategory, Signature, TensorSpec, deployment::RuntimeOptions};
use ort::{
    environment::Environment,
    ep,
    session::{
        Session,
        builder::{GraphOptimizationLevel, SessionBuilder},
    },
    value::{Outlet, TensorElementType, ValueType},
};
use tokio_util::sync::CancellationToken;

use super::{call::providers, load_watch};
use crate::{
    artifacts::Source,
    runtime::{LoadError, named::NamedDimensions},
};

/// A graph of one addition.
const FIRST_GRAPH: &[u8] = include_bytes!("first.onnx");

/// Makes a session and drops it. The library sets up tables of its own with its first session, more than a megabyte,
/// which would else be counted as memory of whichever model happens to be loaded first.
pub(super) fn warm(environment: &Environment) -> ort::Result<()> {
    options(environment, 1)?.commit_from_memory(FIRST_GRAPH).map(drop)
}

fn options(environment: &Environment, threads: usize) -> ort::Result<SessionBuilder> {
    let builder = Session::builder(environment)?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(threads)?
        .with_inter_threads(1)?
        // Threads that wait for work by spinning would take the cores of everybody else.
        .with_intra_op_spinning(false)?
        .with_inter_op_spinning(false)?
        // A plan of memory per shape seen: it grows with every new batch size and sequence length.
        .with_memory_pattern(false)?
        // Weights outside of the arena, so that an unloaded model's memory goes back to the system.
        .with_device_allocated_initializers()?
        // Of the two file formats, only this one can be inspected before it is loaded.
        .with_config_entry("session.load_model_format", "ONNX")?
        .with_execution_providers([ep::CPU::default().with_arena_allocator(false).build()])?;
    Ok(builder)
}

/// The graph of an artifact: the file, or of a folder `model.onnx` or its only `.onnx` file, with external data beside it.
pub(super) fn graph(artifact: &Source) -> Result<PathBuf, LoadError> {
    let invalid = |message: String| LoadError::new(FailureCategory::InvalidModel, message);
    let folder = match artifact {
        Source::File(path) => return Ok(path.clone()),
        Source::Folder(path) => path,
        Source::Opaque { .. } => {
            return Err(invalid("the built-in engine reads files of this machine only".to_owned()));
        }
    };
    let named = folder.join("model.onnx");
    if named.is_file() {
        return Ok(named);
    }
    let entries = fs_err::read_dir(folder).map_err(|error| invalid(format!("the folder cannot be read: {error}")))?;
    let graphs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "onnx"))
        .collect();
    <[PathBuf; 1]>::try_from(graphs).map(|[graph]| graph).map_err(|graphs| {
        let message =
            format!("the folder has {} .onnx files and no model.onnx: name one of them model.onnx", graphs.len());
        invalid(message)
    })
}

/// The end of a load that nobody waits for.
pub(super) fn unwanted() -> LoadError {
    LoadError::new(FailureCategory::Internal, "the load was given up")
}

/// Loads and optimises the graph, until it is `given_up`. `threads` run inside one run, the caller's included.
pub(super) fn build(
    environment: &Environment,
    artifact: &Path,
    threads: usize,
    given_up: &CancellationToken,
) -> Result<Session, LoadError> {
    let mut builder = options(environment, threads).map_err(|error| {
        LoadError::new(FailureCategory::Runtime, format!("onnxruntime refused its options: {}", error.message()))
    })?;
    let watched = load_watch::begin(given_up, builder.canceler());
    let session = builder.commit_from_file(artifact);
    drop(watched);
    if given_up.is_cancelled() {
        return Err(unwanted());
    }
    session.map_err(|error| {
        let message = without_path(error.message(), artifact);
        let category = if message.contains("bad_alloc") || message.contains("Failed to allocate memory") {
            FailureCategory::Memory
        } else {
            FailureCategory::InvalidModel
        };
        LoadError::new(category, explained(&message))
    })
}

/// The library's word on a graph, with what to do about it.
fn explained(message: &str) -> String {
    let said = message.split_once("the artifact failed:").map_or(message, |(_, said)| said);
    let said = said.trim_matches(|c: char| c == '.' || c.is_whitespace());
    if said.contains("rotobuf parsing failed") {
        return "it is not an ONNX file, or is cut short: export or copy it again".to_owned();
    }
    let lower = said.to_lowercase();
    let remedy = if lower.contains("opset") || lower.contains("ir version") {
        "export it with an older opset, or give the worker a newer ONNX Runtime"
    } else if lower.contains("allocat") || lower.contains("bad_alloc") {
        "give the worker more memory"
    } else {
        "check it with the onnx package's checker, and export it again"
    };
    format!("onnxruntime cannot load it ({said}): {remedy}")
}

/// The place of an artifact in the cache says nothing to its author.
fn without_path(message: &str, artifact: &Path) -> String {
    let message = message.replace(&*artifact.to_string_lossy(), "the artifact");
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks that the engine has the execution provider that the revision wants.
pub(super) fn check_provider(options: &RuntimeOptions) -> Result<(), LoadError> {
    let wanted = options.execution_provider.as_str();
    if wanted == "cpu" {
        return Ok(());
    }
    let offered = providers().join(", ");
    let message = format!(
        "execution provider {wanted:?} cannot be used: set runtime.executionProvider to \"cpu\" (this onnxruntime \
         was built with {offered}; Berth drives cpu)"
    );
    Err(LoadError::new(FailureCategory::Runtime, message))
}

/// Derives the signature from the session's inputs and outputs, narrowed by the author's declaration.
pub(super) fn signature(session: &Session, declared: Option<&Signature>) -> Result<Signature, LoadError> {
    let mut own = Signature {
        inputs: session.inputs().iter().map(|outlet| spec("input", outlet)).collect::<Result<_, _>>()?,
        outputs: session.outputs().iter().map(|outlet| spec("output", outlet)).collect::<Result<_, _>>()?,
        optional: optional(session),
        ..Signature::default()
    };
    if let Some(declared) = declared {
        // Whoever declares one that may be left out says nothing about it that the graph does not.
        let given = declared.inputs.iter().filter(|input| own.optional.iter().all(|other| other.name != input.name));
        let given: Vec<TensorSpec> = given.cloned().collect();
        narrow("input", &mut own.inputs, &given)?;
        narrow("output", &mut own.outputs, &declared.outputs)?;
    }
    Ok(own)
}

/// The names that the graph gives to dimensions of its inputs.
pub(super) fn named(session: &Session) -> NamedDimensions {
    NamedDimensions::of(session.inputs().iter().map(|outlet| match outlet.dtype() {
        ValueType::Tensor { dimension_symbols, .. } => dimension_symbols.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }))
}

fn invalid(message: String) -> LoadError {
    LoadError::new(FailureCategory::InvalidModel, message)
}

/// The most inputs with defaults that a model has. A graph with more was saved with its weights as inputs, by mistake or for
/// old tools: nobody is to give those.
const MOST_OPTIONAL: usize = 32;

/// Initializers that are inputs as well: a request may give them.
fn optional(session: &Session) -> Vec<TensorSpec> {
    let initializers = session.overridable_initializers();
    if initializers.len() > MOST_OPTIONAL {
        return Vec::new();
    }
    let known = initializers.iter().filter_map(|one| tensor_spec("input", one.name(), one.dtype()).ok());
    known.collect()
}

fn spec(side: &str, outlet: &Outlet) -> Result<TensorSpec, LoadError> {
    tensor_spec(side, outlet.name(), outlet.dtype())
}

fn tensor_spec(side: &str, name: &str, kind: &ValueType) -> Result<TensorSpec, LoadError> {
    let ValueType::Tensor { ty, shape, .. } = kind else {
        return Err(invalid(format!(
            "{side} {name:?} is a {}, and only tensors can be served: for a scikit-learn model convert it with \
             skl2onnx's options={{\"zipmap\": False}}",
            kind
        )));
    };
    let Some(datatype) = datatype(*ty) else {
        return Err(invalid(format!("{side} {name:?} has element type {ty}, which the protocol has no name for")));
    };
    let shape = shape.iter().map(|&dimension| dimension.max(-1)).collect();
    Ok(TensorSpec { name: name.to_owned(), datatype, shape })
}

fn datatype(element: TensorElementType) -> Option<Datatype> {
    Some(match element {
        TensorElementType::Float32 => Datatype::Fp32,
        TensorElementType::Float64 => Datatype::Fp64,
        TensorElementType::Float16 => Datatype::Fp16,
        TensorElementType::Bfloat16 => Datatype::Bf16,
        TensorElementType::Int8 => Datatype::Int8,
        TensorElementType::Int16 => Datatype::Int16,
        TensorElementType::Int32 => Datatype::Int32,
        TensorElementType::Int64 => Datatype::Int64,
        TensorElementType::Uint8 => Datatype::Uint8,
        TensorElementType::Uint16 => Datatype::Uint16,
        TensorElementType::Uint32 => Datatype::Uint32,
        TensorElementType::Uint64 => Datatype::Uint64,
        TensorElementType::Bool => Datatype::Bool,
        TensorElementType::String => Datatype::Bytes,
        _ => return None,
    })
}

/// Takes over the author's fixed dimensions where the graph leaves them open; anything else must agree.
fn narrow(side: &str, own: &mut [TensorSpec], declared: &[TensorSpec]) -> Result<(), LoadError> {
    if declared.is_empty() {
        return Ok(());
    }
    for spec in declared {
        let name = &spec.name;
        let Some(found) = own.iter_mut().find(|own| own.name == *name) else {
            let names: Vec<&str> = own.iter().map(|own| own.name.as_str()).collect();
            return Err(invalid(format!("{side} {name:?} is declared, and the artifact has only {names:?}")));
        };
        let agree = |(&a, &b): (&i64, &i64)| a < 0 || b < 0 || a == b;
        let rank = found.shape.len() == spec.shape.len();
        if found.datatype != spec.datatype || !rank || !found.shape.iter().zip(&spec.shape).all(agree) {
            return Err(invalid(format!(
                "{side} {name:?} is declared as {} {:?}, and the artifact has {} {:?}",
                spec.datatype, spec.shape, found.datatype, found.shape
            )));
        }
        for (own, &declared) in found.shape.iter_mut().zip(&spec.shape) {
            *own = (*own).max(declared);
        }
    }
    match own.iter().find(|own| declared.iter().all(|spec| spec.name != own.name)) {
        Some(missing) => Err(invalid(format!("{side} {:?} of the artifact is not declared", missing.name))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::runtime::onnx::library::{self, OpenError};

    /// Longer than the watchdog needs, also on a machine that compiles beside the tests.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// The library for the tests of this program, all of which have to ask here: a process loads one. `None`: there is none, and nobody
    /// named one.
    fn environment() -> Option<Environment> {
        let named = std::env::var_os("ORT_DYLIB_PATH").map(PathBuf::from);
        let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/onnxruntime");
        match library::open(Some(named.as_ref().unwrap_or(&fetched))) {
            Ok(environment) => Some(environment),
            Err(error @ OpenError::NotFound(_)) if named.is_none() => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Needs the library of ONNX Runtime, as the tests of the engine do.
    #[test]
    fn a_load_that_is_given_up_is_ended_by_the_library() {
        let Some(environment) = environment() else { return };
        let given_up = CancellationToken::new();
        let mut builder = options(&environment, 1).expect("its options");
        let watched = load_watch::begin(&given_up, builder.canceler());
        builder.commit_from_memory(FIRST_GRAPH).map(drop).expect("it is wanted");
        given_up.cancel();
        let end = Instant::now() + PATIENCE;
        let error = loop {
            match builder.commit_from_memory(FIRST_GRAPH).map(drop) {
                Err(error) => break error,
                Ok(()) => assert!(Instant::now() < end, "nobody tells the library"),
            }
        };
        assert_eq!(error.code(), ort::ErrorCode::ModelLoadCanceled, "{error}");
        drop(watched);
    }

    #[test]
    fn the_librarys_words_become_sentences_with_a_remedy() {
        let cases = [
            (
                "Load model from the artifact failed:Protobuf parsing failed.",
                "it is not an ONNX file, or is cut short: export or copy it again",
            ),
            (
                "Load model from the artifact failed:/src/ir.cc:1 Unsupported model IR version: 99, max supported IR \
                 version: 11",
                "onnxruntime cannot load it (/src/ir.cc:1 Unsupported model IR version: 99, max supported IR version: \
                 11): export it with an older opset, or give the worker a newer ONNX Runtime",
            ),
            (
                "This is an invalid model. ",
                "onnxruntime cannot load it (This is an invalid model): check it with the onnx package's checker, and \
                 export it again",
            ),
        ];
        for (said, explained_as) in cases {
            assert_eq!(explained(said), explained_as);
        }
    }
}
