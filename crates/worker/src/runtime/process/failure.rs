//! Failures of a model's process, in words that its author can do something with.

use std::{io, time::Duration};

use berth_spec::{ByteSize, FailureCategory, InferError, inference::Shed};

use super::{
    ended::Ended,
    message::Raised,
    plan::{Plan, Program},
};
use crate::runtime::LoadError;

/// Part of Python's message where a file has no room (`ENOSPC`).
const NO_ROOM: &str = "[Errno 28]";

/// The process could not be started.
pub(in crate::runtime) fn not_started(program: &dyn Program, error: &io::Error) -> LoadError {
    let category = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FailureCategory::Disk,
        _ => FailureCategory::Runtime,
    };
    LoadError::new(category, format!("{} cannot be started: {error}", program.name()))
}

/// An error of Python's ended the load.
pub(in crate::runtime) fn raised(raised: &Raised, ended: &Ended, limit: Option<ByteSize>) -> LoadError {
    if raised.memory || ended.memory {
        return out_of_memory(limit).with_trace(&raised.trace);
    }
    let lacks_library = raised.kind == "ImportError" && raised.message.contains("cannot open shared object file");
    // "code" says no more than that it was raised.
    let category = match FailureCategory::of_word(&raised.category) {
        Some(told) if told != FailureCategory::Code => told,
        _ if lacks_library || raised.kind == "ModuleNotFoundError" => FailureCategory::Dependencies,
        _ => FailureCategory::Code,
    };
    let mut message = match raised.expected {
        true => raised.message.clone(),
        false => format!("the model's code raised {}: {}", raised.kind, raised.message),
    };
    if lacks_library {
        message += "; add the package of the operating system that has it to runtime.system_packages";
    } else if raised.kind == "ModuleNotFoundError" && !raised.expected {
        message += "; add the package that has it to runtime.dependencies, or to spec.model.environment of a model without a card";
    }
    message += room(raised);
    LoadError::new(category, message).with_trace(&raised.trace)
}

/// The process ended before it was loaded.
pub(in crate::runtime) fn died_loading(plan: &Plan, ended: &Ended) -> LoadError {
    if ended.memory {
        return out_of_memory(plan.memory()).with_trace(&ended.tail);
    }
    let message = format!("the model's process ended while it loaded: {}", ended.cause);
    LoadError::new(plan.program.fails_as(), message).with_trace(&ended.tail)
}

/// The process ended during the validation inference.
pub(in crate::runtime) fn died_validating(ended: &Ended, limit: Option<ByteSize>) -> LoadError {
    if ended.memory {
        let allowed = limit.map_or_else(String::new, |limit| format!(": it may take {limit} (resources.memory)"));
        let message = format!("out of memory during the validation inference{allowed}");
        return LoadError::new(FailureCategory::Memory, message).with_trace(&ended.tail);
    }
    let message = format!("the validation inference failed: the model's process ended: {}", ended.cause);
    LoadError::new(FailureCategory::Validation, message).with_trace(&ended.tail)
}

/// The error for a load that did not end in time.
pub(in crate::runtime) fn too_long(program: &dyn Program, limit: Duration, ended: &Ended) -> LoadError {
    let minutes = limit.as_secs() / 60;
    let message = format!("{} took longer than {minutes} min to load it: see what it waits for", program.name());
    LoadError::new(FailureCategory::Timeout, message).with_trace(&ended.tail)
}

fn out_of_memory(limit: Option<ByteSize>) -> LoadError {
    let message = match limit {
        Some(limit) => format!("out of memory during model initialization: it may take {limit} (resources.memory)"),
        None => "out of memory during model initialization: the worker has no more".to_owned(),
    };
    LoadError::new(FailureCategory::Memory, message)
}

/// The answer while there is no process; it may be back in `wait`.
pub(in crate::runtime) fn down(wait: Duration) -> InferError {
    let message = "the model's process ended and is being started again: try again";
    InferError::shed(Shed::Unavailable, message, wait.clamp(Duration::from_millis(500), Duration::from_secs(30)))
}

/// `preprocessing raised ValueError: …`
pub(in crate::runtime) fn told(raised: &Raised) -> String {
    let Raised { kind, message, stage, .. } = raised;
    let told = match stage.as_str() {
        "answer" => format!("the answer is no JSON: {kind}: {message}"),
        "size" => message.clone(),
        "model" => format!("the model raised {kind}: {message}"),
        stage => format!("{stage} raised {kind}: {message}"),
    };
    told + room(raised)
}

/// The remedy where files have no room; else nothing.
fn room(raised: &Raised) -> &'static str {
    if !raised.message.contains(NO_ROOM) {
        return "";
    }
    "; in a sandbox, files that a model writes are in memory, half of resources.memory at most: write less, or raise it"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_author_whose_files_have_no_room_is_told_where_they_are() {
        let raised = |message: &str| Raised {
            kind: "OSError".to_owned(),
            message: message.to_owned(),
            stage: "model".to_owned(),
            ..Raised::default()
        };
        let full = told(&raised("[Errno 28] No space left on device"));
        assert!(full.contains("No space left on device; in a sandbox,"), "{full}");
        assert_eq!(told(&raised("[Errno 2] No such file")), "the model raised OSError: [Errno 2] No such file");
    }
}
