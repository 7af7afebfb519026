//! `berth secrets`, run as people run it: a pair of keys, a worker's file, its whole life.

use std::{
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output, Stdio},
};

use fs_err as fs;

const PLAIN: &str = "secrets:
  s3_access:
    type: s3_credentials
    access_key_id: AKIA-SECRET
    secret_access_key: s3-SECRET
    region: us-east-1
";

const FILE: &str = "worker-a-secrets.yaml";

fn berth(folder: &Path, arguments: &[&str], input: &str, editor: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.current_dir(folder).arg("secrets").args(arguments).env("NO_COLOR", "1").env("EDITOR", editor);
    command.env_remove("VISUAL").env_remove("BERTH_SECRETS_KEY");
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("berth starts");
    // A command that reads nothing may be gone already.
    let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
    child.wait_with_output().expect("berth ends")
}

/// Runs a command, checks its exit code, and returns its output.
fn said(folder: &Path, code: i32, arguments: &[&str], input: &str) -> String {
    let output = berth(folder, arguments, input, "false");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(!text.contains("SECRET"), "{arguments:?}: {text}");
    text
}

fn with_keys() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    said(folder.path(), 0, &["keygen", "--out", "keys"], "");
    folder
}

#[test]
fn a_file_of_secrets_from_its_keys_to_their_rotation() {
    let folder = with_keys();
    let at = folder.path();
    let mode = fs::metadata(at.join("keys/registry.key")).expect("a key").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert!(said(at, 1, &["keygen", "--out", "keys"], "").contains("not overwritten"));
    let public = fs::read_to_string(at.join("keys/registry.pub")).expect("a key");
    assert_eq!(said(at, 0, &["public", "--private", "keys/registry.key"], ""), public);

    let key = ["--key", "keys/registry.pub"];
    said(at, 0, &["encrypt", key[0], key[1], "--worker", "worker-a", "--out", FILE], PLAIN);
    let text = fs::read_to_string(at.join(FILE)).expect("a file");
    assert!(text.contains("secret_access_key: ENC[AES256,d1,") && !text.contains("SECRET"), "{text}");
    assert!(said(at, 1, &["encrypt", key[0], key[1], "--worker", "worker-a", "--out", FILE], PLAIN).contains("--into"));
    assert_eq!(said(at, 0, &["check", FILE], ""), "1 file valid\n");
    let shown = said(at, 0, &["show", "."], "");
    assert!(shown.contains("s3_access") && shown.contains("access_key_id,secret_access_key"), "{shown}");

    // Without the private key; a token's line end is not a part of it.
    let add = ["encrypt", key[0], key[1], "--into", FILE, "--set", "git.type=git_token", "--set", "git.token=@-"];
    said(at, 0, &[&add[..], &["--set", "git.hosts=git.acme.com,*.acme.com"]].concat(), "tok-SECRET\n");
    let json: serde_json::Value = serde_json::from_str(&said(at, 0, &["show", FILE, "-o", "json"], "")).expect("JSON");
    assert_eq!(json[0]["secrets"][1]["encrypted"], serde_json::json!(["token"]));
    assert_eq!(json[0]["keys"].as_array().map(Vec::len), Some(2));

    // In an editor.
    let private = ["--private", "keys/registry.key"];
    let edit = |editor: &str| berth(at, &["edit", FILE, private[0], private[1]], "", editor);
    let before = fs::read_to_string(at.join(FILE)).expect("a file");
    let output = edit("grep -q tok-SECRET$ \"$1\"; sed -i s/us-east-1/eu-west-1/");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let after = fs::read_to_string(at.join(FILE)).expect("a file");
    assert!(after.contains("region: eu-west-1"), "{after}");
    let token = |text: &str| text.lines().find(|line| line.contains("token: ENC")).map(ToOwned::to_owned);
    assert_eq!(token(&before), token(&after), "what was not edited stays");
    assert_eq!(String::from_utf8_lossy(&edit("true").stdout), "nothing changed\n");
    for (editor, code) in [("false", 1), ("sed -i s/git_token/git/", 4), ("rm", 3)] {
        let output = edit(editor);
        assert_eq!(output.status.code(), Some(code), "{editor}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read_to_string(at.join(FILE)).expect("a file"), after);
    }

    // What somebody else wrote while one edited is not overwritten; what a crash left beside the file is in nobody's way.
    fs::write(at.join(format!("{FILE}.new")), "").expect("a file");
    let output = edit(&format!("echo '# more' >> {FILE}; sed -i s/eu-west-1/us-east-1/"));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("meanwhile"), "{output:?}");
    assert_eq!(fs::read_to_string(at.join(FILE)).expect("a file"), format!("{after}# more\n"));
    fs::write(at.join(FILE), &after).expect("a file");
    fs::remove_file(at.join(format!("{FILE}.new"))).expect("a file");

    // To another key by way of both.
    said(at, 0, &["keygen", "--out", "keys", "--name", "next"], "");
    said(at, 0, &["rotate", FILE, key[0], key[1], "--key", "keys/next.pub", private[0], private[1]], "");
    let to_next = ["rotate", FILE, "--key", "keys/next.pub", "--private"];
    said(at, 0, &[&to_next[..], &["keys/next.key", "--values"]].concat(), "");
    let refused = said(at, 1, &[&to_next[..], &["keys/registry.key"]].concat(), "");
    assert!(refused.contains("wrapped for") && refused.contains(FILE), "{refused}");
    assert_eq!(said(at, 0, &["check", "."], ""), "1 file valid\n");
}

#[test]
fn mistakes_are_told_with_their_remedy() {
    let folder = with_keys();
    let at = folder.path();
    let encrypt = ["encrypt", "--key", "keys/registry.pub", "--worker", "worker-a"];
    for (more, input, code, says) in [
        (&["--set", "g.type=git_token", "--set", "g.token=tok-SECRET"][..], "", 2, "g.token=@-"),
        (&["--set", "g.token=@-"], "x", 2, "add --set g.type=TYPE"),
        (&["--set", "g.type=git_tokn"], "", 2, "did you mean git_token?"),
        (&["--set", "g.type=git_token", "--set", "g.tokn=@-"], "", 2, "did you mean token?"),
        (&[], "secrets: {x: {type: s3_credentials, region: hush-SECRET}}", 4, "lacks its field access_key_id"),
        (&[], "worker_id: worker-b\nsecrets: {}", 2, "a file is one worker's"),
        (&["--key", "keys/registry.key"], "", 1, "give its public half"),
        (&["--key", "keys/registry.pub"], "", 2, "given twice"),
    ] {
        let text = said(at, code, &[&encrypt[..], more].concat(), input);
        assert!(text.contains(says), "{more:?}: {text}");
    }
    let plain = format!("worker_id: worker-a\n{PLAIN}").replace("s3-SECRET", "hush");
    fs::write(at.join(FILE), plain.replace("AKIA-", "")).expect("a file");
    let output = berth(at, &["check", FILE], "", "");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4));
    assert!(
        text.contains(&format!("{FILE}:6:24: secrets.s3_access.secret_access_key: this is a secret in plain text")),
        "{text}"
    );
    assert!(!text.contains("hush"), "{text}");
    fs::set_permissions(at.join("keys/registry.key"), std::fs::Permissions::from_mode(0o644)).expect("permissions");
    assert!(said(at, 1, &["public", "--private", "keys/registry.key"], "").contains("chmod 600"));
    assert!(said(at, 1, &["public", "--private", "keys/registry.pub"], "").contains("give the private key"));
    assert!(said(at, 2, &["edit", FILE], "").contains("--private"));
}
