//! `docs/configuration.md`: every setting of a server, by its key in a file.

use std::fmt::Write as _;

use clap::Arg;

use super::{default, env, help, spelled};
use crate::settings::{
    effective::default_text,
    layers::{definitions, is_setting, key},
};

const INTRODUCTION: &str = "# Configuration

<!-- Generated from crates/cli/src: `UPDATE=1 cargo test -p berth-cli reference` rewrites it. -->

`berth up` and `berth node` take their settings from flags, the environment and a file. If a setting is given more than once,
the first of these counts:

1. a flag, `--memory 8GiB`
2. the environment, `BERTH_MEMORY=8GiB`
3. the file that `--config` or `BERTH_CONFIG` names, `memory: 8GiB`
4. the default

All settings are read once, when the process starts. An invalid one ends the process before anything runs; the message
names its place.

## The file

The file is one YAML mapping. Keys have the names of the flags. An unknown key is an error, and so is a value that the flag
does not accept. Settings with several values take a list, labels also a mapping. Relative paths start at the folder in which
`berth` is started, not at the file's.

```yaml
# berth.yaml, for `berth node --config berth.yaml`
data: /var/lib/berth
http: 127.0.0.1:8080
api: 127.0.0.1:8081
memory: 8GiB
labels:
  pool: production
  region: eu-west-1
pki: /etc/berth/pki
store: etcds://10.0.0.2:2379,10.0.0.3:2379,10.0.0.4:2379
store-ca: /etc/berth/etcd-ca.pem
gossip: 10.0.0.2:7946
peer: 10.0.0.2:7947
join: [10.0.0.3, 10.0.0.4]
```

`berth config show` prints the settings that `berth up` would use, with the origin of each; `berth config show node` does the
same for `berth node`. Both take all flags of these commands. The output is a valid file again:

```text
$ BERTH_LOG=debug berth config show --config berth.yaml --memory 2GiB
data: ./.berth                               # default
memory: 2GiB                                 # flag --memory
labels: [pool=production]                    # berth.yaml:4
log: debug                                   # env BERTH_LOG
# threads:                                   # one per core
…
```

";

/// Generates the page.
pub(super) fn page() -> String {
    let (up, node) = (definitions(&["up"]), definitions(&["node"]));
    let up: Vec<&Arg> = up.get_arguments().filter(|arg| is_setting(arg)).collect();
    let node: Vec<&Arg> = node.get_arguments().filter(|arg| is_setting(arg)).collect();
    let is_in = |settings: &[&Arg], arg: &Arg| settings.iter().any(|other| other.get_id() == arg.get_id());
    let mut out = INTRODUCTION.to_owned();
    let (both, of_up): (Vec<&Arg>, Vec<&Arg>) = up.iter().partition(|arg| is_in(&node, arg));
    let of_node: Vec<&Arg> = node.iter().filter(|arg| !is_in(&up, arg)).copied().collect();
    table("Settings of every server", &both, &mut out);
    table("Settings of `berth up`", &of_up, &mut out);
    table("Settings of `berth node`", &of_node, &mut out);
    out.push_str(CREDENTIALS);
    out
}

const CREDENTIALS: &str = "## Other environment variables

Object stores read `AWS_*`, `GOOGLE_*` and `AZURE_*`, with the names that their own tools use. `ORT_DYLIB_PATH` names the ONNX
Runtime library if `onnxruntime` is not set. `NO_COLOR` turns colours off. `BERTH_API` and `BERTH_HTTP` are the addresses that
commands use; `BERTH_API` may list several nodes, separated by commas.
";

fn table(heading: &str, settings: &[&Arg], out: &mut String) {
    // Formatting into a string cannot fail.
    let _ = writeln!(out, "## {heading}\n\n| key | flag | environment | default | meaning |\n|---|---|---|---|---|");
    for arg in settings {
        let default = match (default(arg), default_text(arg)) {
            (_, Some(text)) => text,
            (text, None) if text == "–" => "not set".to_owned(),
            (text, None) => text,
        };
        let (key, env, help) = (key(arg), env(arg), help(arg));
        let meaning = help.split(" [default: ").next().unwrap_or_default();
        let choices = super::choices(arg);
        let _ = writeln!(out, "| `{key}` | `{}` | {env} | {default} | {meaning}{choices} |", spelled(arg));
    }
    out.push('\n');
}
