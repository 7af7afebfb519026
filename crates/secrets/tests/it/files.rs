use berth_secrets::{
    Contents, CredentialStore, Document, OpenError, Plain, SealError, SecretStatus, Stored, check, encrypt, plain_of,
    reseal, rewrap, vault::VaultSecrets,
};
use berth_spec::{Credential, Generation, Time, WorkerId, credential::Kind};

use super::fixture::{NOW, PLAIN, again, encrypted, keyring, plain, public, worker};

fn open(document: &Document, names: &[&str]) -> Result<Vec<String>, OpenError> {
    keyring(names).open(document).map(|secrets| secrets.into_keys().collect())
}

#[test]
fn what_is_encrypted_opens_for_its_recipients_alone() {
    let document = again(&encrypted());
    let text = document.to_yaml();
    assert!(!text.contains("SECRET") && !format!("{document:?}").contains("SECRET"), "{text}");
    for shown in ["region: us-east-1", "- repo:read", "type: git_token", "token: ENC[AES256,d1,"] {
        assert!(text.contains(shown), "{shown} in {text}");
    }
    assert_eq!(check(&text, "worker-us-east-1a-secrets.yaml"), []);
    let secrets = keyring(&["other", "one"]).open(&document).expect("it is ours");
    let Credential::S3(s3) = &secrets["s3_access"].credential else { panic!("S3") };
    assert_eq!((s3.secret_access_key.expose(), s3.region.as_str()), ("s3-SECRET", "us-east-1"));
    let Credential::Gcs(gcs) = &secrets["gcs_access"].credential else { panic!("GCS") };
    assert!(gcs.credentials_json.expose().ends_with("}\n"));
    let error = open(&document, &["other"]).expect_err("not for the other");
    assert!(matches!(error, OpenError::NoKey { .. }), "{error}");
    assert!(error.to_string().contains(public("one").id().as_str()), "{error}");
}

#[test]
fn plain_text_survives_being_written_for_an_editor() {
    let hard = "secrets:\n  x:\n    type: git_token\n    token: \"yes\"\n    username: \" #odd: 'x' \\\"y\\\" \"\n  \
                k:\n    type: git_token\n    deploy_key: \"-----BEGIN A PRIVATE KEY-----\\nabc\\n\\n-----END A PRIVATE KEY-----\\n\\n\"\n";
    for text in [PLAIN, hard] {
        let before = plain(text);
        let written = before.to_yaml();
        assert_eq!(plain(&written), before, "{}", *written);
        assert!(!format!("{before:?}").contains("SECRET"));
    }
    let document = encrypted();
    let opened = Plain::opened(&document, &keyring(&["one"])).expect("it is ours");
    assert_eq!(plain(&opened.to_yaml()).secrets.len(), 3);
}

/// Every change by hand is seen, whatever it is.
#[test]
fn nothing_can_be_changed_dropped_mixed_or_carried_elsewhere() {
    let document = encrypted();
    let entry = |name: &str| document.secrets.iter().position(|entry| entry.name == name).expect(name);
    let (s3, git) = (entry("s3_access"), entry("model_registry_token"));
    type Change = (&'static str, Box<dyn Fn(&mut Document)>);
    let changes: Vec<Change> = vec![
        ("a secret dropped", Box::new(move |d| drop(d.secrets.remove(git)))),
        ("a field dropped", Box::new(move |d| drop(d.secrets[git].fields.pop()))),
        (
            "a plain field changed",
            Box::new(move |d| {
                let region = d.secrets[s3].fields.iter_mut().find(|(name, _)| name == "region").expect("region");
                region.1 = Stored::Plain("eu-west-1".to_owned());
            }),
        ),
        (
            "two fields swapped",
            Box::new(move |d| {
                let fields = &mut d.secrets[s3].fields;
                let first = fields[0].1.clone();
                fields[0].1 = std::mem::replace(&mut fields[1].1, first);
            }),
        ),
        ("a secret renamed", Box::new(move |d| d.secrets[s3].name = "other".to_owned())),
        ("another type", Box::new(move |d| d.secrets[git].kind = Kind::Registry)),
        ("another worker", Box::new(|d| d.worker = WorkerId::new("worker-eu").expect("a name"))),
        (
            "another file's secret",
            Box::new(move |d| {
                let other = encrypt(&worker(), &plain(PLAIN), &[public("one")], None, NOW).expect("a file");
                d.secrets[s3] = other.secrets[s3].clone();
            }),
        ),
        ("another file's seal", Box::new(|d| d.seal = encrypted().seal)),
    ];
    let keyring = keyring(&["one"]);
    for (what, change) in changes {
        let mut changed = document.clone();
        change(&mut changed);
        let error = keyring.open(&changed).expect_err(what);
        assert!(matches!(error, OpenError::Seal), "{what}: {error}");
    }
    assert!(keyring.open(&document).is_ok());
    // The order of secrets and fields, comments and line ends mean nothing.
    let mut turned = document.clone();
    turned.secrets.reverse();
    turned.secrets[0].fields.reverse();
    let text = format!("# a comment\n{}", turned.to_yaml().replace('\n', "\r\n"));
    let turned = Document::parse(&text, "-").expect("a file");
    assert!(keyring.open(&turned).is_ok());
}

/// Somebody who has the public key alone can seal what he likes, but not make old values mean something else.
#[test]
fn a_value_is_bound_to_its_place_even_under_a_new_seal() {
    let document = encrypted();
    let one_more = "x: {type: git_token, token: mine}";
    let redirect = |change: &dyn Fn(&mut Document)| {
        let mut changed = document.clone();
        change(&mut changed);
        let worker = changed.worker.clone();
        encrypt(&worker, &plain(one_more), &[public("one")], Some(&changed), NOW).expect("a new seal")
    };
    let keyring = keyring(&["one"]);
    assert!(keyring.open(&redirect(&|_| {})).is_ok());
    let hosts = |d: &mut Document| {
        let field = d.secrets[2].fields.iter_mut().find(|(name, _)| name == "hosts").expect("hosts");
        field.1 = Stored::List(vec!["evil.com".to_owned()]);
    };
    let rename = |d: &mut Document| d.secrets[2].name = "renamed".to_owned();
    let carry = |d: &mut Document| d.worker = WorkerId::new("worker-eu").expect("a name");
    for change in [&hosts as &dyn Fn(&mut Document), &rename, &carry] {
        let error = keyring.open(&redirect(change)).expect_err("it is bound");
        assert!(matches!(error, OpenError::Value { .. }), "{error}");
    }
}

#[test]
fn without_the_private_key_secrets_are_added_and_replaced() {
    let before = encrypted();
    let change =
        "s3_access: {type: s3_credentials, secret_access_key: new-SECRET}\nmore: {type: git_token, token: t-SECRET}";
    let after = again(&encrypt(&worker(), &plain(change), &[public("one")], Some(&before), NOW).expect("a change"));
    let secrets = keyring(&["one"]).open(&after).expect("it opens");
    let Credential::S3(s3) = &secrets["s3_access"].credential else { panic!("S3") };
    assert_eq!((s3.access_key_id.expose(), s3.secret_access_key.expose()), ("AKIA-SECRET", "new-SECRET"));
    assert_eq!(secrets.len(), 4);
    // All else is as it was, to the letter.
    assert_eq!(after.secrets[1..3], before.secrets[1..3]);
    assert_eq!(after.keys.len(), 2);

    let bound = "s3_access: {type: s3_credentials, region: eu-west-1}";
    let error = encrypt(&worker(), &plain(bound), &[public("one")], Some(&before), NOW).expect_err("bound");
    assert!(matches!(error, SealError::Bound { .. }), "{error}");
    for (bad, says) in [
        ("new: {type: s3_credentials, region: x}", "lacks its field access_key_id"),
        ("model_registry_token: {type: git_token, deploy_key: PRIVATE KEY-----}", "another name"),
        ("new: {type: git_token, token: \"a\\nb\"}", "end of a line"),
    ] {
        let error = encrypt(&worker(), &plain(bad), &[public("one")], Some(&before), NOW).expect_err(bad);
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn an_edit_changes_what_was_edited_and_nothing_else() {
    let (before, keyring) = (encrypted(), keyring(&["one"]));
    let opened = Plain::opened(&before, &keyring).expect("it opens");
    assert_eq!(reseal(&before, &keyring, &opened).expect("no change"), before);
    let text = opened.to_yaml().replace("s3-SECRET", "changed-SECRET");
    let after = again(&reseal(&before, &keyring, &plain(&text)).expect("a change"));
    let changed: Vec<_> = before
        .to_yaml()
        .lines()
        .zip(after.to_yaml().lines())
        .filter(|(a, b)| a != b)
        .map(|(a, _)| a.trim().split(':').next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(changed, ["secret_access_key", "seal"]);
    let less = plain("secrets: {one: {type: git_token, token: x}}");
    let after = reseal(&before, &keyring, &less).expect("less");
    assert_eq!(keyring.open(&after).expect("it opens").into_keys().collect::<Vec<_>>(), ["one"]);
}

#[test]
fn keys_rotate_by_way_of_both() {
    let before = encrypted();
    let both = rewrap(&before, &keyring(&["one"]), &[public("one"), public("other")], false, NOW).expect("both");
    let both = again(&both);
    assert!(open(&both, &["one"]).is_ok() && open(&both, &["other"]).is_ok());
    assert_eq!((&both.secrets, &both.seal), (&before.secrets, &before.seal), "only keys change");
    let other = again(&rewrap(&both, &keyring(&["other"]), &[public("other")], false, NOW).expect("the other"));
    assert!(open(&other, &["one"]).is_err() && open(&other, &["other"]).is_ok());
    // With new values, whoever kept the old data key reads nothing new.
    let fresh = again(&rewrap(&other, &keyring(&["other"]), &[public("other")], true, NOW).expect("fresh"));
    assert_eq!(fresh.keys.len(), 1);
    assert_ne!(fresh.keys[0].data, other.keys[0].data);
    assert_eq!(open(&fresh, &["other"]).expect("it opens").len(), 3);
}

#[test]
fn problems_have_places_and_never_quote_the_value() {
    let fine = encrypted().to_yaml();
    let cases: &[(&str, &str, &str, &str)] = &[
        (
            "region: us-east-1",
            "region: us-east-1\n    session_token: hush",
            "secrets.s3_access.session_token",
            "plain text",
        ),
        (
            "region: us-east-1",
            "region: us-east-1\n    session_token: 12345",
            "secrets.s3_access.session_token",
            "plain text",
        ),
        (
            "region: us-east-1",
            "region: us-east-1\n    session_token: {a: hush}",
            "secrets.s3_access.session_token",
            "plain text",
        ),
        ("region: us-east-1", "regoin: us-east-1", "secrets.s3_access.regoin", "has no field"),
        ("region: us-east-1", "endpoint: https://x", "secrets.s3_access.region", "lacks its field"),
        ("type: git_token", "type: git", "secrets.model_registry_token.type", "unknown"),
        ("token: ENC[AES256,d1,", "token: ENC[AES256,hush", "secrets.model_registry_token.token", "form"),
        ("token: ENC[AES256,d1,", "token: ENC[AES256,d7,", "keys", "d7"),
        ("worker_id: worker-us-east-1a", "worker_id: worker-eu", "worker_id", "called after"),
        ("seal: ", "saal: ", "seal", "no seal"),
        ("keys:", "kees:", "keys", "no keys"),
        ("  s3_access:", "  s3_access: &a", "", ""),
        ("secrets:", "secrets: [hush", "", "not well-formed"),
    ];
    for (from, to, path, says) in cases {
        assert!(fine.contains(from), "{from}");
        let text = fine.replacen(from, to, 1);
        let problems = check(&text, "workers/secrets/worker-us-east-1a-secrets.yaml");
        if says.is_empty() {
            assert_eq!(problems, [], "{to}");
            continue;
        }
        let found = problems.iter().find(|problem| problem.path == *path && problem.message.contains(says));
        let found = found.unwrap_or_else(|| panic!("{to}: {problems:#?}"));
        assert!(!found.remedy.is_empty());
        let all: String = problems.iter().map(ToString::to_string).collect();
        assert!(!all.contains("hush") && !all.contains("12345"), "{all}");
    }
    let text = fine.replacen("region: us-east-1", "region: us-east-1\n    session_token: hush", 1);
    let line = text.lines().position(|line| line.contains("hush")).expect("the line") + 1;
    let problem = &check(&text, "f.yaml")[0];
    assert_eq!((problem.file.as_str(), problem.line as usize, problem.column), ("f.yaml", line, 20));
}

/// The example of the specification, whose values are only placeholders.
#[test]
fn placeholders_are_told_from_values() {
    let text = "worker_id: worker-us-east-1a\nsecrets:\n  s3_access:\n    type: s3_credentials\n    \
                access_key_id: ENC[AES256,encrypted_value_here]\n    secret_access_key: plain\n    region: us-east-1\n";
    let problems = check(text, "worker-us-east-1a-secrets.yaml");
    let shown: Vec<String> = problems.iter().map(|p| format!("{}:{} {}", p.line, p.column, p.path)).collect();
    assert_eq!(
        shown,
        ["1:1 keys", "1:1 seal", "5:20 secrets.s3_access.access_key_id", "6:24 secrets.s3_access.secret_access_key"]
    );
}

#[test]
fn files_that_refer_to_vault_are_understood() {
    let text = "worker_id: worker-us-east-1a\nsecrets:\n  backend: vault\n  vault_addr: https://vault.acme.com\n  \
                vault_namespace: model-workers\n  paths:\n    s3_credentials: secret/workers/us-east-1a/s3\n    \
                sts: {type: s3_credentials, path: aws/creds/reader, region: us-east-1, hosts: [models]}\n";
    assert_eq!(check(text, "worker-us-east-1a-secrets.yaml"), []);
    let Ok(Contents::Vault(_, declared)) = Contents::parse(text, "-") else { panic!("Vault") };
    let paths: Vec<String> = declared.wants.values().map(berth_secrets::vault::SecretRequest::api_path).collect();
    assert_eq!(paths, ["secret/data/workers/us-east-1a/s3", "aws/creds/reader"]);
    for (from, to, says) in [
        ("https://vault", "http://vault", "not encrypted"),
        ("backend: vault", "backend: vualt", "no such backend"),
        ("s3_credentials: secret", "s3: secret", "no type of secret"),
        ("secret/workers", "../workers", "no path"),
        ("secret/workers", "secret/data/workers", "data/"),
        ("secret/workers", "sys/raw", "no secrets are kept there"),
        ("region: us", "secret_access_key: hush, region: us", "plain text"),
        ("vault_addr", "vault_adr", "no field"),
        ("paths:", "path:", "missing"),
    ] {
        let problems = check(&text.replacen(from, to, 1), "-");
        assert!(problems.iter().any(|p| p.to_string().contains(says)), "{to}: {problems:?}");
        assert!(problems.iter().all(|p| !p.to_string().contains("hush")));
    }
}

#[test]
fn a_safe_numbers_what_changes_and_keeps_what_was_good() {
    let (mut safe, keyring) = (CredentialStore::default(), keyring(&["one"]));
    let path = "workers/secrets/worker-us-east-1a-secrets.yaml".to_owned();
    let files = |text: String| vec![(path.clone(), text)];
    let good = encrypted().to_yaml();
    assert_eq!(safe.from_files(&files(good.clone()), &keyring, NOW), [worker()]);
    let first = safe.set(&worker());
    assert_eq!(first.generation, Generation(NOW.as_millis()));
    assert_eq!(safe.from_files(&files(good.clone()), &keyring, Time(NOW.0 + 1)), [] as [WorkerId; 0]);
    // A bad commit takes nothing away, and is told.
    assert_eq!(
        safe.from_files(&files(good.replace("region: us-east-1", "region: x")), &keyring, NOW),
        [] as [WorkerId; 0]
    );
    assert_eq!(safe.set(&worker()), first);
    assert!(safe.status().iter().all(|status| status.problem.as_deref().is_some_and(|p| p.contains("seal"))));
    assert_eq!(safe.from_files(&files("secrets: [".to_owned()), &keyring, NOW), [] as [WorkerId; 0]);
    assert_eq!(safe.status().len(), 3);
    // Mended: the same set, without problems.
    assert_eq!(safe.from_files(&files(good), &keyring, NOW), [] as [WorkerId; 0]);
    assert!(safe.status().iter().all(|status| status.problem.is_none() && status.generation == first.generation));
    // Removed: an empty set with a higher number.
    assert_eq!(safe.from_files(&[], &keyring, NOW), [worker()]);
    let last = safe.set(&worker());
    assert!(last.secrets.is_empty() && last.generation > first.generation);
    assert_eq!(safe.sets().get(&worker()), Some(&last), "so that it is told");
}

/// A file may refer to Vault where no controller has one: somebody must be told.
#[test]
fn what_vault_should_give_is_told_until_it_does() {
    let mut safe = CredentialStore::default();
    let text = "worker_id: worker-us-east-1a\nsecrets:\n  backend: vault\n  vault_addr: https://vault.acme.com\n  \
                paths: {git_token: secret/x}\n";
    let files = [("workers/secrets/worker-us-east-1a-secrets.yaml".to_owned(), text.to_owned())];
    safe.from_files(&files, &keyring(&["one"]), NOW);
    let problem = |safe: &CredentialStore| safe.status().first().and_then(|status| status.problem.clone());
    assert!(problem(&safe).is_some_and(|problem| problem.contains("have a Vault")));
    let status = SecretStatus { problem: None, ..safe.status().remove(0) };
    safe.from_vault(&VaultSecrets { status: vec![status], ..VaultSecrets::default() }, NOW);
    assert_eq!((safe.status().len(), problem(&safe)), (1, None));
    safe.from_vault(&VaultSecrets::default(), NOW);
    safe.from_files(&[], &keyring(&["one"]), NOW);
    assert_eq!(safe.status(), []);
}

#[test]
fn what_people_write_is_checked_in_form() {
    for (text, says) in [
        ("secrets: {a b: {type: git_token, token: hush}}", "name of a secret"),
        ("secrets: {a: {token: hush}}", "type is missing"),
        ("secrets: {a: {type: git_token, token: [hush, 1]}}", "put quotes"),
        ("secrets: {a: {type: git_token, token: 1234}}", "put quotes"),
        ("secrets: {a: {type: git_token, token: 'ENC[AES256,d1,AAAA]'}}", "encrypted already"),
        ("secrets: hush", "no mapping"),
        ("[hush]", "no secrets"),
        ("a: [", "well-formed"),
    ] {
        let problems = plain_of(text, "-").expect_err(text);
        let all: String = problems.iter().map(ToString::to_string).collect();
        assert!(all.contains(says) && !all.contains("hush") && !all.contains("1234"), "{text}: {all}");
    }
}
