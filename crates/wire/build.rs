//! Compiles every `.proto` under `proto/` without an installed `protoc`.

use std::{env, error::Error, path::PathBuf};

use fs_err as fs;
use prost::Message as _;

/// Protocols that Berth does not serve, so that reflection leaves them out.
const NOT_SERVED: [&str; 2] = ["etcd.proto", "fleet.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let mut files: Vec<PathBuf> =
        fs::read_dir("proto")?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "proto"));
    files.sort();
    let descriptors = protox::compile(&files, ["proto"])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut served = descriptors.clone();
    served.file.retain(|file| !NOT_SERVED.contains(&file.name()));
    fs::write(out.join("descriptors.bin"), served.encode_to_vec())?;
    // `.bytes(".")`: raw tensors arrive as slices of the message's buffer, not as copies.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
