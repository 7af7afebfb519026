use std::{
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use berth_secrets::{
    CredentialStore, Document, KeyId, Keyring, encrypt,
    keys::{Decrypt, Exec, File, KeyEnvironment, KeyError, PublicKey, generate, open},
};
use berth_spec::WorkerId;
use fs_err as fs;

use super::fixture::{NOW, PLAIN, encrypted, folder, plain, public, worker};

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
}

#[test]
fn a_pair_is_private_and_not_overwritten() {
    let folder = folder();
    let mode = |name: &str| fs::metadata(folder.join(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode("one.key"), mode("one.pub")), (0o600, 0o644));
    let error = generate(&folder.join("one.key"), &folder.join("new.pub")).expect_err("it is there");
    assert!(error.to_string().contains("not overwritten"), "{error}");
    assert!(!folder.join("new.pub").exists());
}

#[test]
fn keys_that_others_may_read_or_that_are_none_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("key");
    let good = fs::read_to_string(super::fixture::folder().join("one.key")).expect("a key");
    let small = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
    for (text, permissions, says) in [
        (good.clone(), 0o640, "chmod 600"),
        (good.clone(), 0o604, "chmod 600"),
        (good.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"), 0o600, "passphrase"),
        (good.replace("PRIVATE KEY", "RSA PRIVATE KEY"), 0o600, "PKCS#1"),
        (good.replace("PRIVATE KEY", "CERTIFICATE"), 0o600, "holds a CERTIFICATE"),
        (good.replacen("MII", "MIA", 1), 0o600, "no RSA key"),
        ("nothing".to_owned(), 0o600, "no PEM file"),
    ] {
        fs::write(&key, text).expect("a file");
        mode(&key, permissions);
        let error = File::open(&key).expect_err(says).to_string();
        assert!(error.contains(says) && error.contains("key"), "{error}");
    }
    for (text, says) in [(good.as_str(), "private key"), (small, "no RSA key"), ("", "no PEM file")] {
        let error = PublicKey::from_pem(text).expect_err(says);
        assert!(error.contains(says), "{error}");
    }
    let error = File::open(Path::new("/nowhere/key")).expect_err("none").to_string();
    assert!(error.contains("/nowhere/key"), "{error}");
    for (text, says) in [("vault:x", "no such keys"), ("exec:relative", "absolute"), ("pkcs11:object=x", "module-path")]
    {
        let error = open(text, &KeyEnvironment::default()).expect_err(text).to_string();
        assert!(error.contains(says), "{error}");
    }
}

fn script(folder: &Path, name: &str, body: &str) -> PathBuf {
    let path = folder.join(name);
    // Written by another process: what this one writes is held open by whatever other tests start meanwhile, and a file
    // that is open for writing cannot be run.
    let mut writes = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh");
    writes.stdin.take().expect("piped").write_all(format!("#!/bin/sh\n{body}\n").as_bytes()).expect("it reads");
    assert!(writes.wait().expect("it ends").success());
    path
}

#[test]
fn a_program_unwraps_and_sees_only_what_it_may() {
    let folder = tempfile::tempdir().expect("a folder");
    let document = encrypted();
    // It decrypts with openssl, as a KMS would with its own key.
    let private = super::fixture::folder().join("one.key");
    let body = format!(
        "PATH=/usr/bin:/bin; [ \"$ALLOWED\" = yes ] && [ -z \"$HOME\" ] || {{ echo 'environment' >&2; exit 3; }}\n\
         sed 's/.*\"wrapped\":\"\\([^\"]*\\)\".*/\\1/' | base64 -d | openssl pkeyutl -decrypt -inkey {} \
         -pkeyopt rsa_padding_mode:oaep -pkeyopt rsa_oaep_md:sha256 -pkeyopt rsa_mgf1_md:sha256 | base64 -w0 | \
         sed 's/.*/{{\"key\":\"&\"}}/'",
        private.display()
    );
    let program = script(folder.path(), "kms", &body);
    let around = KeyEnvironment { environment: [("ALLOWED".to_owned(), "yes".to_owned())].into() };
    let key = open(&format!("exec:{}", program.display()), &around).expect("a program");
    let keyring = Keyring::new(vec![key]);
    assert_eq!(keyring.open(&document).expect("it opens").len(), 3);

    let refused = Keyring::new(vec![Box::new(Exec::new(&program, &KeyEnvironment::default()).expect("a program"))]);
    let error = refused.open(&document).expect_err("it may not see the variable").to_string();
    assert!(error.contains("environment") && error.contains("exit status: 3"), "{error}");
}

/// A keeper that does not answer, and how often it was asked.
#[derive(Debug, Default)]
struct Mute(Arc<AtomicUsize>);

impl Decrypt for Mute {
    fn id(&self) -> Option<&KeyId> {
        None
    }

    fn name(&self) -> String {
        "mute".to_owned()
    }

    fn public(&self) -> Option<PublicKey> {
        None
    }

    fn unwrap(&self, _: &KeyId, _: &[u8]) -> Result<zeroize::Zeroizing<Vec<u8>>, KeyError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Err(KeyError { key: "mute".to_owned(), reason: "silence".to_owned(), transient: true, silent: true })
    }
}

/// A thousand workers' files must not each wait for a KMS that hangs.
#[test]
fn a_keeper_that_does_not_answer_is_asked_once_for_all_files() {
    let (mute, document) = (Mute::default(), encrypted());
    let asked = Arc::clone(&mute.0);
    let keyring = Keyring::new(vec![Box::new(mute)]);
    let files: Vec<(String, String)> = ["a", "b", "c"]
        .map(|name| {
            let document = Document { worker: WorkerId::new(name).expect("a name"), ..document.clone() };
            (format!("workers/secrets/{name}-secrets.yaml"), document.to_yaml())
        })
        .into();
    let mut safe = CredentialStore::default();
    safe.from_files(&files, &keyring, NOW);
    assert_eq!((asked.load(Ordering::Relaxed), safe.awaits_keys()), (1, true));
    let problems: Vec<_> = safe.status().into_iter().filter_map(|status| status.problem).collect();
    assert!(problems.len() == 9 && problems.iter().all(|problem| problem.contains("silence")), "{problems:?}");
    safe.from_files(&files, &super::fixture::keyring(&["one"]), NOW);
    assert!(!safe.awaits_keys(), "what is wrong with a file is not waited for");
}

#[test]
fn a_program_that_fails_hangs_or_babbles_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let id = public("one").id().clone();
    let (soon, long) = (Duration::from_millis(300), Duration::from_secs(120));
    for (name, body, within, says) in [
        ("fails", "echo 'no access to key' >&2; exit 1", long, "no access to key"),
        ("silent", "exit 4", long, "said nothing"),
        ("babbles", "cat >/dev/null; echo hello", long, "not {\"key\""),
        ("hangs", "sleep 600 & wait", soon, "did not answer"),
    ] {
        let program = script(folder.path(), name, body);
        let key = Exec::new(&program, &KeyEnvironment::default()).expect("a program").within(within);
        let begun = Instant::now();
        let error = key.unwrap(&id, &[1; 512]).expect_err(name).to_string();
        assert!(error.contains(says), "{name}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(600), "{name} is not waited for to its end");
    }
    let open_to_all = script(folder.path(), "open", "exit 0");
    mode(&open_to_all, 0o777);
    let error = Exec::new(&open_to_all, &KeyEnvironment::default()).expect_err("others may change it").to_string();
    assert!(error.contains("chmod go-w"), "{error}");
}

const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";

/// Says where SoftHSM is not installed, and passes, unless `BERTH_REQUIRE_TOOLS` is set, as `cargo xtask test` does.
fn installed() -> bool {
    let found = Path::new(MODULE).exists() && Command::new("softhsm2-util").arg("--version").output().is_ok();
    if !found {
        assert!(
            std::env::var_os("BERTH_REQUIRE_TOOLS").is_none(),
            "SoftHSM is not installed: run `cargo xtask test`, which installs it"
        );
        eprintln!("skipped: SoftHSM is not installed; apt-get install softhsm2");
    }
    found
}

/// The variable that tells SoftHSM where its tokens are has to be set before the module is loaded: a process of its own.
#[test]
fn an_hsm_unwraps_and_its_key_never_leaves() {
    if !installed() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (tokens, configuration) = (folder.path().join("tokens"), folder.path().join("softhsm2.conf"));
    fs::create_dir(&tokens).expect("a folder");
    fs::write(&configuration, format!("directories.tokendir = {}\nlog.level = ERROR\n", tokens.display()))
        .expect("a file");
    let run = |arguments: &[&str]| {
        let output = Command::new("softhsm2-util")
            .args(arguments)
            .env("SOFTHSM2_CONF", &configuration)
            .output()
            .expect("softhsm2-util");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["--init-token", "--free", "--label", "berth", "--pin", "1234", "--so-pin", "5678"]);
    let key = super::fixture::folder().join("one.key");
    run(&[
        "--import",
        &key.display().to_string(),
        "--token",
        "berth",
        "--label",
        "registry",
        "--id",
        "a1",
        "--pin",
        "1234",
    ]);
    fs::write(folder.path().join("pin"), "1234\n").expect("a PIN");

    let us = std::env::current_exe().expect("the test's program");
    let output = Command::new(us)
        .args(["--exact", "keys::within_the_process_of_an_hsm", "--nocapture", "--include-ignored"])
        .env("SOFTHSM2_CONF", &configuration)
        .env("BERTH_TEST_HSM", folder.path())
        .env("BERTH_TEST_HSM_KEYS", super::fixture::folder())
        .output()
        .expect("the test's program");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("the HSM was asked"), "{said}");
}

#[test]
fn within_the_process_of_an_hsm() {
    // A part of the test above, not a test of its own.
    let (Some(folder), Some(keys)) = (std::env::var_os("BERTH_TEST_HSM"), std::env::var_os("BERTH_TEST_HSM_KEYS"))
    else {
        return;
    };
    let (folder, keys) = (PathBuf::from(folder), PathBuf::from(keys));
    let public = PublicKey::read(&keys.join("one.pub")).expect("a public key");
    let document = encrypt(&worker(), &plain(PLAIN), std::slice::from_ref(&public), None, NOW).expect("a file");
    let around = KeyEnvironment { environment: [("PIN".to_owned(), "1234".to_owned())].into() };
    let uri =
        |object: &str, pin: &str| format!("pkcs11:token=berth;object={object}?module-path={MODULE}&pin-source={pin}");
    let file = format!("file:{}", folder.join("pin").display());
    for pin in [file.as_str(), "env:PIN"] {
        let key = open(&uri("registry", pin), &around).expect("the key");
        assert_eq!(key.id(), Some(public.id()));
        assert_eq!(key.public().map(|key| key.to_pem()), Some(public.to_pem()));
        let keyring = Keyring::new(vec![key]);
        assert_eq!(keyring.open(&document).expect("it opens").len(), 3);
    }
    let key = open(&uri("registry", &file), &around).expect("the key");
    let error = key.unwrap(public.id(), &[7; 512]).expect_err("not wrapped for it").to_string();
    assert!(error.contains("not wrapped for it"), "{error}");
    for (uri, says) in [
        (uri("registry", "env:NONE"), "NONE"),
        (uri("nothing", &file), "no such private RSA key"),
        (uri("registry", &file).replace("token=berth", "token=other"), "there are: berth"),
        (uri("registry", &file).replace(MODULE, "/nowhere.so"), "cannot be loaded"),
    ] {
        let error = open(&uri, &around).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    println!("the HSM was asked");
}
