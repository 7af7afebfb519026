//! The measured memory is near the true one, unloading gives it back, and loads that are given up keep none. Runs in a process
//! of its own: the other tests would take and give back memory beside it.

use std::{process::Command, sync::Arc, thread};

use berth_spec::{Datatype, deployment::Warmup};
use berth_worker::{
    artifacts::Source,
    runtime::{LoadRequest, Runtime, Validation},
};
use bytes::{BufMut, BytesMut};
use tokio_util::sync::CancellationToken;

use super::{engine, request};

/// A field of a protobuf message that holds bytes.
fn field(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    varint(out, number << 3 | 2);
    varint(out, content.len() as u64);
    out.extend_from_slice(content);
}

/// A field that holds a number.
fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn message(build: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    build(&mut out);
    out
}

/// `y = x · w` with a square `w` of `width`: `4 * width²` bytes of weights. Numbers are those of `onnx.proto`.
fn large(width: u64) -> Vec<u8> {
    let mut weights = BytesMut::new();
    (0..width * width).for_each(|index| weights.put_f32_le(index as f32));
    let tensor = message(|out| {
        number(out, 1, width);
        number(out, 1, width);
        number(out, 2, 1);
        field(out, 8, b"w");
        field(out, 9, &weights);
    });
    let node = message(|out| {
        [b"x", b"w"].iter().for_each(|name| field(out, 1, *name));
        field(out, 2, b"y");
        field(out, 4, b"MatMul");
    });
    let value = |name: &[u8]| {
        let rows = message(|out| field(out, 2, b"n"));
        let columns = message(|out| number(out, 1, width));
        let shape = message(|out| [rows, columns].iter().for_each(|dimension| field(out, 1, dimension)));
        let tensor = message(|out| {
            number(out, 1, 1);
            field(out, 2, &shape);
        });
        let kind = message(|out| field(out, 1, &tensor));
        message(|out| {
            field(out, 1, name);
            field(out, 2, &kind);
        })
    };
    let graph = message(|out| {
        field(out, 1, &node);
        field(out, 2, b"large");
        field(out, 5, &tensor);
        field(out, 11, &value(b"x"));
        field(out, 12, &value(b"y"));
    });
    message(|out| {
        number(out, 1, 8);
        field(out, 7, &graph);
        field(out, 8, &message(|out| number(out, 2, 17)));
    })
}

fn resident() -> u64 {
    let statm = fs_err::read_to_string("/proc/self/statm").expect("linux");
    let pages: u64 = statm.split_whitespace().nth(1).expect("a number").parse().expect("a number");
    pages * 4096
}

/// Set in the process that runs the test alone.
const ALONE: &str = "BERTH_TEST_ALONE";

#[test]
fn measured_and_given_back() {
    if std::env::var_os(ALONE).is_some() {
        return measure();
    }
    let tests = std::env::current_exe().expect("this program");
    let run = Command::new(tests)
        .args(["onnx::memory::measured_and_given_back", "--exact", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("it starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(String::from_utf8_lossy(&run.stdout).contains("1 passed"), "it ran");
}

fn measure() {
    let Some(engine) = engine() else { return };
    let directory = tempfile::tempdir().expect("a folder");
    let mut request = request("add");
    let graph = directory.path().join("large.onnx");
    request.artifact = Source::File(graph.clone());
    Arc::make_mut(&mut request.revision).uri = "file:///large.onnx".to_owned();
    fs_err::write(&graph, large(4096)).expect("a file");
    let weights = 4 * 4096 * 4096;

    let loaded = engine.load(&request).expect("it loads");
    assert_eq!(loaded.model.signature().inputs[0].datatype, Datatype::Fp32);
    assert_eq!(loaded.model.validate(&Warmup::Generated), Ok(Validation::Passed));
    let memory = loaded.memory.0;
    assert!(loaded.measured && memory > weights * 9 / 10 && memory < weights * 5 / 2, "{}", loaded.memory);

    let before = resident();
    drop(loaded);
    let freed = before.saturating_sub(resident());
    assert!(freed > memory / 2, "{freed} bytes of {memory} came back");

    let before = resident();
    for _ in 0..4 {
        let given_up = LoadRequest { cancel: CancellationToken::new(), ..request.clone() };
        thread::scope(|scope| {
            let load = scope.spawn(|| engine.load(&given_up).map(drop));
            // In the midst of it, unless it is faster than this looks.
            while !load.is_finished() && resident() < before + weights / 2 {
                thread::yield_now();
            }
            given_up.cancel.cancel();
        });
    }
    let kept = resident().saturating_sub(before);
    assert!(kept < weights / 2, "{kept} bytes of loads that were given up stayed");
}
