//! Changes seeds as fuzzers do, in the same way each time: no coverage, no clock, no nightly compiler.
//!
//! `cargo xtask fuzz` sets the number of cases (`BERTH_FUZZ_CASES`) and where they begin (`BERTH_FUZZ_SEED`); `cargo test` runs ten
//! thousand of each target. An input that fails is kept below `target/fuzz`, and its path is printed: put it among the seeds of
//! its target once the fault is mended.

use std::{
    env, fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
};

/// Changed seeds of a target where nobody says.
const CASES: u64 = 10_000;

/// xorshift64*, Vigna 2016: good enough to choose bytes, the same everywhere.
struct Choices(u64);

impl Choices {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound.max(1)
    }

    fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// Pieces that mean something somewhere in the formats.
const PIECES: [&[u8]; 24] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"\\",
    b"\\ud800",
    b"null",
    b"-",
    b"1e999",
    b"0.0",
    b"NaN",
    b"Infinity",
    b"18446744073709551616",
    b"-9223372036854775809",
    b"\"BYTES\"",
    b"\"FP16\"",
    b"\"shape\":",
    b"\"binary_data_size\":",
    &[0xFF, 0xFF, 0xFF, 0xFF],
    &[0, 0, 0, 0],
    &[0x80, 0x00],
];

/// Runs `property` over every seed of `target`, and over changed ones. Longer inputs than `MAX` are cut.
pub(crate) fn run(target: &str, property: impl Fn(&[u8])) {
    const MAX: usize = 2048;
    let folder = root().join("fuzz/corpus").join(target);
    let mut names: Vec<_> = fs::read_dir(&folder)
        .and_then(|entries| entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>())
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    names.retain(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"seed-")));
    names.sort();
    assert!(!names.is_empty(), "{} has no seeds", folder.display());
    let seeds: Vec<Vec<u8>> = names
        .iter()
        .map(|path| {
            let mut seed = Vec::new();
            let read = fs::File::open(path).and_then(|mut file| std::io::Read::read_to_end(&mut file, &mut seed));
            read.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            seed
        })
        .collect();
    // Odd, and so never the one state that xorshift does not leave.
    let mut choices = Choices((0x9E37_79B9_7F4A_7C15 ^ number("BERTH_FUZZ_SEED", 0).rotate_left(17)) | 1);
    let held = |input: &[u8]| {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| property(input))) else { return };
        eprintln!("the input is in {}", keep(target, input).display());
        resume_unwind(panic);
    };
    for seed in &seeds {
        held(seed);
    }
    for _ in 0..number("BERTH_FUZZ_CASES", CASES) {
        let mut input = seeds[choices.below(seeds.len())].clone();
        for _ in 0..=choices.below(4) {
            change(&mut input, &seeds, &mut choices);
        }
        input.truncate(MAX);
        held(&input);
    }
}

fn number(name: &str, unless: u64) -> u64 {
    env::var_os(name).and_then(|text| text.to_str()?.parse().ok()).unwrap_or(unless)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Writes an input that fails to a file of its own.
fn keep(target: &str, input: &[u8]) -> PathBuf {
    let mut hash = DefaultHasher::new();
    input.hash(&mut hash);
    let folder = root().join("target/fuzz").join(target);
    let place = folder.join(format!("seed-{:016x}", hash.finish()));
    let written = fs::create_dir_all(&folder)
        .and_then(|()| fs::File::create(&place))
        .and_then(|mut file| std::io::Write::write_all(&mut file, input));
    if let Err(error) = written {
        eprintln!("{}: {error}", place.display());
    }
    place
}

fn change(input: &mut Vec<u8>, seeds: &[Vec<u8>], choices: &mut Choices) {
    let at = choices.below(input.len() + 1);
    let end = (at + 1 + choices.below(16)).min(input.len());
    match choices.below(7) {
        0 => drop(input.drain(at..end.max(at))),
        1 => drop(input.splice(at..at, choices.of(&PIECES).iter().copied())),
        2 => drop(input.splice(at..end.max(at), choices.of(&PIECES).iter().copied())),
        3 => {
            let copy = input[at..end.max(at)].to_vec();
            let to = choices.below(input.len() + 1);
            input.splice(to..to, copy);
        }
        4 => {
            let other = &seeds[choices.below(seeds.len())];
            let from = choices.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        5 if at < input.len() => input[at] = choices.next() as u8,
        _ if at < input.len() => input[at] ^= 1 << choices.below(8),
        _ => input.push(b' '),
    }
}
