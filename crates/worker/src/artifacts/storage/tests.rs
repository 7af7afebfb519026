use super::*;

const S3: &str = r#"{"type": "s3", "access_key_id": "id", "secret_access_key": "key-SECRET", "endpoint_url": "http://minio:9000", "default_bucket": "models"}"#;
const WEB: &str = r#"{"type": "http", "url": "https://models.acme.com/export/", "headers": {"Authorization": ["Bearer token-SECRET"]}}"#;

/// The settings with a mounted Secret of these entries, and a volume `claim`.
fn mounted(entries: &[(&str, &str)]) -> (tempfile::TempDir, StorageSettings) {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, volumes) = (folder.path().join("config"), folder.path().join("volumes"));
    for made in [&config, &volumes.join("claim/a b")] {
        fs_err::create_dir_all(made).expect("made");
    }
    fs_err::write(volumes.join("claim/a b/m.onnx"), "graph").expect("written");
    for (name, text) in entries {
        fs_err::write(config.join(name), text).expect("written");
    }
    let settings = StorageSettings { config: Some(config), volumes };
    (folder, settings)
}

fn resolved(settings: &StorageSettings, uri: &str) -> Result<Location, String> {
    resolve(settings, Location::parse(uri).expect(uri)).map_err(|fault| fault.message)
}

#[test]
fn a_storage_leads_to_a_bucket_a_container_or_a_server() {
    let gcs = r#"{"type": "gcs", "private_key": "-----BEGIN PRIVATE KEY-----", "client_email": "a@b", "bucket": "g"}"#;
    let account = r#"{"type": "azure", "account_name": "acme", "client_id": "i", "client_secret": "s", "tenant_id": "t", "container": "c"}"#;
    let named = r#"{"type": "azure", "account_name": "acme", "account_key": "a2V5"}"#;
    let (_folder, settings) = mounted(&[
        ("local_MinIO", S3),
        ("web", WEB),
        ("google", gcs),
        ("azure", account),
        ("default_azure", named),
        ("default", S3),
    ]);
    for (uri, url) in [
        ("storage://local_MinIO/a/b/", "s3://models/a/b/"),
        ("storage://local_MinIO/a%20b?bucket=other", "s3://other/a%20b"),
        ("storage://google/a", "gs://g/a"),
        ("storage://azure/a/", "az://c/a/"),
        ("storage://default/a?type=azure&bucket=x", "az://x/a"),
        ("storage://default/a", "s3://models/a"),
        ("storage://web/a/m.json/", "https://models.acme.com/export/a/m.json"),
        ("s3://bucket/a", "s3://bucket/a"),
        ("az://container/a", "az://container/a"),
    ] {
        let found = resolved(&settings, uri).expect(uri);
        assert_eq!(found.url.as_str(), url, "{uri}");
        assert!(
            found.storage.is_some() && found.secret.is_some_and(|name| name.ends_with("(storage-config)")),
            "{uri}"
        );
    }
    let plain = resolved(&settings, "gs://bucket/a").expect("a bucket");
    assert!(plain.storage.is_none(), "the usual storage is of another type");
    let shown = format!("{:?}", resolved(&settings, "storage://web/a"));
    assert!(!shown.contains("SECRET"), "{shown}");
}

#[test]
fn two_storages_share_no_cache_and_a_changed_one_no_connection() {
    let (folder, settings) = mounted(&[("one", S3), ("two", S3)]);
    let of = |name: &str| resolved(&settings, &format!("storage://{name}/a")).expect(name);
    assert_ne!(of("one").key(), of("two").key());
    let key = |location: Location| location.storage.expect("a storage").key.clone();
    let before = key(of("one"));
    assert_eq!(before, key(of("one")));
    fs_err::write(folder.path().join("config/one"), S3.replace("\"id\"", "\"other\"")).expect("written");
    assert_ne!(before, key(of("one")));
}

#[test]
fn a_manifest_of_the_secret_will_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("secret.yaml");
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: storage-config}\nstringData:\n  plain: |\n    ENTRY\ndata:\n  packed: e30=\n  odd: '%'\n";
    fs_err::write(&path, secret.replace("ENTRY", S3)).expect("written");
    let settings = StorageSettings { config: Some(path), ..StorageSettings::default() };
    assert_eq!(resolved(&settings, "storage://plain/a").expect("an entry").url.as_str(), "s3://models/a");
    for (uri, says) in [
        ("storage://packed/a", "lacks type"),
        ("storage://odd/a", "not Base64"),
        ("storage://none/a", "none of that name"),
    ] {
        let problem = resolved(&settings, uri).expect_err(uri);
        assert!(problem.contains(says), "{problem}");
    }
}

#[test]
fn entries_that_cannot_be_used_say_why_without_a_value() {
    let (_folder, settings) = mounted(&[
        ("text", "hush"),
        ("typeless", r#"{"url": "hush"}"#),
        ("nfs", r#"{"type": "nfs"}"#),
        ("keyless", r#"{"type": "s3", "access_key_id": "hush"}"#),
        ("half", r#"{"type": "http", "url": "http://x", "client_key": "hush"}"#),
        ("ftp", r#"{"type": "http", "url": "ftp://hush"}"#),
        ("bucketless", r#"{"type": "s3", "access_key_id": "hush", "secret_access_key": "hush"}"#),
    ]);
    for (name, says) in [
        ("text", "not JSON"),
        ("typeless", "lacks type"),
        ("nfs", "s3, gcs, azure, http or pvc"),
        ("keyless", "secret_access_key"),
        ("half", "go together"),
        ("ftp", "http or https"),
        ("bucketless", "no bucket"),
        ("a%2fb", "a name of letters"),
    ] {
        let problem = resolved(&settings, &format!("storage://{name}/a")).expect_err(name);
        assert!(problem.contains(says) && !problem.contains("hush"), "{name}: {problem}");
    }
    let problem = resolved(&settings, "storage://half/a?type=s3").expect_err("half");
    assert!(!problem.contains("hush"), "{problem}");
}

#[test]
fn without_a_configuration_the_environment_has_the_credentials() {
    let none = StorageSettings::default();
    let found = resolved(&none, "storage://k/a?bucket=b").expect("a bucket");
    assert_eq!((found.url.as_str(), found.storage.is_some()), ("s3://b/a", false));
    assert_eq!(resolved(&none, "storage://k/a?bucket=b&type=gs").expect("a bucket").url.as_str(), "gs://b/a");
    for (uri, says) in [("storage://k/a", "no bucket"), ("storage://k/a?type=http", "--storage-config")] {
        let problem = resolved(&none, uri).expect_err(uri);
        assert!(problem.contains(says), "{problem}");
    }
}

#[test]
fn nothing_leads_out_of_a_volume() {
    let pvc = r#"{"type": "pvc", "name": "claim"}"#;
    let (folder, settings) = mounted(&[("volume", pvc)]);
    for uri in ["pvc://claim/a%20b/m.onnx", "storage://volume/a%20b/m.onnx", "pvc://claim/a%20b/m.onnx/"] {
        let found = resolved(&settings, uri).expect(uri);
        assert_eq!(fs_err::read(found.path().expect("a file")).expect("read"), b"graph", "{uri}");
    }
    fs_err::write(folder.path().join("outside"), "hush").expect("written");
    std::os::unix::fs::symlink(folder.path().join("outside"), folder.path().join("volumes/claim/link"))
        .expect("linked");
    for uri in ["pvc://claim/link", "pvc://claim/..%2f..%2foutside", "pvc://none/a", "pvc://../outside"] {
        assert!(resolved(&settings, uri).is_err(), "{uri}");
    }
}
