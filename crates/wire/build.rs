//! Compiles every `.proto` under `proto/` without an installed `protoc`.

use std::{env, error::Error, path::PathBuf};

use fs_err as fs;
use prost::Message as _;

/// Files whose services clients may call: what is described to them.
const PUBLIC: [&str; 3] = ["health.proto", "inference.proto", "model-mesh.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut files: Vec<PathBuf> =
        fs::read_dir("proto")?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "proto"));
    files.sort();
    let descriptors = protox::compile(&files, ["proto"])?;
    let mut public = descriptors.clone();
    public.file.retain(|file| PUBLIC.contains(&file.name()));
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no folder for output")?);
    fs::write(out.join("descriptors"), public.encode_to_vec())?;
    // `.bytes(".")`: raw tensors arrive as slices of the message's buffer, not as copies.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
