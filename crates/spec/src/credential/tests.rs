use super::*;

fn text(value: &str) -> FieldValue {
    FieldValue::Text(Secret::new(value))
}

fn list(items: &[&str]) -> FieldValue {
    FieldValue::List(items.iter().map(|&item| item.to_owned()).collect())
}

fn build(kind: Kind, fields: &[(&str, FieldValue)]) -> Result<Granted, Vec<WrongField>> {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Credential::build(kind, fields).map(|(credential, scope)| Granted { credential, scope, expires: None })
}

fn token(hosts: &[&str], urls: &[&str]) -> Granted {
    let mut fields = vec![("token", text("tok-12345"))];
    fields.extend((!hosts.is_empty()).then(|| ("hosts", list(hosts))));
    fields.extend((!urls.is_empty()).then(|| ("urls", list(urls))));
    build(Kind::Git, &fields).expect("a token")
}

const KEY: &str = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n";

fn everything() -> CredentialSet {
    let json = r#"{"type":"service_account","client_email":"a@b","private_key":"k"}"#;
    let connection =
        "DefaultEndpointsProtocol=https;AccountName=acme;AccountKey=a2V5==;EndpointSuffix=core.windows.net";
    let s3 = [
        ("access_key_id", text("AKIA-SECRET")),
        ("secret_access_key", text("s3-SECRET")),
        ("session_token", text("session-SECRET")),
        ("region", text("us-east-1")),
        ("endpoint", text("http://minio:9000")),
        ("hosts", list(&["models", "*.models"])),
    ];
    let registry = [("username", text("u")), ("password", text("pw-SECRET")), ("registry_url", text("ghcr.io"))];
    let deploy = [("deploy_key", text(KEY)), ("known_hosts", text("git.acme.com ssh-ed25519 AAAA\n"))];
    let secrets = [
        ("s3_access", build(Kind::S3, &s3)),
        ("gcs", build(Kind::Gcs, &[("credentials_json", text(json))])),
        ("azure", build(Kind::Azure, &[("connection_string", text(connection))])),
        ("azure_key", build(Kind::Azure, &[("account_name", text("acme")), ("account_key", text("k-SECRET"))])),
        ("token", build(Kind::Git, &[("token", text("t-SECRET")), ("scopes", list(&["repo:read"]))])),
        ("deploy", build(Kind::Git, &deploy)),
        ("registry", build(Kind::Registry, &registry)),
    ];
    let secrets = secrets.into_iter().map(|(name, granted)| (name.to_owned(), granted.expect(name))).collect();
    CredentialSet { generation: Generation(7), secrets }
}

#[test]
fn a_set_survives_the_wire_and_shows_nothing() {
    let mut set = everything();
    set.secrets.get_mut("s3_access").expect("s3").expires = Some(Time(5));
    let wire = set.to_wire();
    assert_eq!(wire.len(), wire.capacity(), "no copies were left behind by growing");
    assert_eq!(CredentialSet::from_wire(&wire), Ok(set.clone()));
    let shown = format!("{set:?}");
    assert!(!shown.contains("SECRET") && !shown.contains("private_key\":"), "{shown}");
    assert_eq!(format!("{} {:?}", Secret::new("x"), Secret::new("x")), "*** \"***\"");
}

#[test]
fn bad_bytes_are_refused_without_a_word_of_them() {
    let wrong = br#"{"generation":1,"secrets":{"x":{"type":"s3_credentials","fields":{"region":"hush"}}}}"#;
    for bytes in [&b"hush"[..], br#"{"generation":"hush"}"#, wrong] {
        let error = CredentialSet::from_wire(bytes).expect_err("it is wrong");
        assert!(!error.to_string().contains("hush"), "{error}");
    }
    let large = vec![b' '; MAX_WIRE + 1];
    assert_eq!(CredentialSet::from_wire(&large), Err(InvalidWire::TooLarge(MAX_WIRE + 1)));
}

#[test]
fn the_closest_scope_wins() {
    let named = |granted: Vec<Granted>| CredentialSet {
        generation: Generation(1),
        secrets: granted.into_iter().enumerate().map(|(i, granted)| (i.to_string(), granted)).collect(),
    };
    let set = named(vec![
        token(&[], &[]),
        token(&["*.acme.com"], &[]),
        token(&["git.acme.com"], &[]),
        token(&["git.acme.com:8443"], &[]),
        token(&[], &["https://git.acme.com/team"]),
        token(&[], &["https://git.acme.com/team/iris"]),
        token(&["*.git.acme.com"], &[]),
        build(Kind::Git, &[("deploy_key", text(KEY))]).expect("a key"),
    ]);
    for (url, name) in [
        ("https://github.com/a/b", "0"),
        ("https://www.acme.com/a", "1"),
        ("https://acme.com/a", "0"),
        ("https://evil-acme.com/a", "0"),
        ("https://GIT.acme.com/other", "2"),
        ("https://git.acme.com:8443/team/iris", "3"),
        ("https://git.acme.com:443/team/x.git", "4"),
        ("https://git.acme.com/teams/x", "2"),
        ("https://git.acme.com/team/../other", "2"),
        ("https://git.acme.com/team/%2e%2e/other", "2"),
        ("https://user:pw@git.acme.com/team/iris.git?x#y", "5"),
        ("https://git.acme.com/team/iris2", "4"),
        ("http://git.acme.com/team/iris", "2"),
        ("https://a.git.acme.com/x", "6"),
        ("git@git.acme.com:team/iris.git", "7"),
        ("ssh://git@git.acme.com/team/iris.git", "7"),
    ] {
        assert_eq!(set.granted(url, Kind::Git).map(|(name, _)| name), Some(name), "{url}");
    }
    assert_eq!(set.granted("https://git.acme.com/x", Kind::S3), None);
    assert_eq!(set.granted("no place", Kind::Git), None);
}

#[test]
fn buckets_are_hosts_and_registries_know_their_own() {
    let set = everything();
    let found = |url, kind| set.granted(url, kind).map(|(name, _)| name);
    assert_eq!(found("s3://models/iris.onnx", Kind::S3), Some("s3_access"));
    assert_eq!(found("s3://others/iris.onnx", Kind::S3), None);
    assert_eq!(found("ghcr.io/acme/iris:1", Kind::Registry), Some("registry"));
    assert_eq!(found("https://docker.io/acme/iris", Kind::Registry), None);
    assert_eq!(found("localhost:5000/acme/iris", Kind::Registry), None);
    assert_eq!(found("az://container/x", Kind::Azure), Some("azure"));
}

#[test]
fn connection_strings_are_understood() {
    let set = everything();
    let found = set.granted("az://c/x", Kind::Azure).map(|(_, granted)| &granted.credential);
    let Some(Credential::Azure(azure)) = found else { panic!("azure") };
    assert_eq!((azure.account(), azure.key()), (Some("acme"), Some("a2V5==")));
    assert_eq!(azure.endpoint().as_deref(), Some("https://acme.blob.core.windows.net"));
}

#[test]
fn wrong_fields_are_told_with_a_remedy_and_without_the_value() {
    let json = r#"{"type":"external_account","hush":1}"#;
    type Case<'a> = (Kind, &'a [(&'a str, FieldValue)], &'a str, &'a str);
    let cases: &[Case<'_>] = &[
        (Kind::S3, &[("acces_key_id", text("hush"))], "acces_key_id", "did you mean access_key_id?"),
        (Kind::S3, &[("region", list(&["hush"]))], "region", "write region: TEXT"),
        (Kind::S3, &[("endpoint", text("ftp://hush"))], "endpoint", "write https://HOST[:PORT]"),
        (Kind::Gcs, &[("credentials_json", text(json))], "credentials_json", "type: service_account"),
        (Kind::Azure, &[("account_key", text("hush"))], "account_name", "add account_name"),
        (Kind::Azure, &[("connection_string", text("hush"))], "connection_string", "NAME=VALUE"),
        (Kind::Git, &[], "token", "deploy_key for SSH"),
        (Kind::Git, &[("token", text("hush\nX-Evil: 1"))], "token", "without a line's end"),
        (Kind::Git, &[("token", text("hush")), ("deploy_key", text(KEY))], "deploy_key", "make two secrets"),
        (Kind::Git, &[("deploy_key", text("hush"))], "deploy_key", "BEGIN and END"),
        (Kind::Git, &[("token", text("hush")), ("hosts", list(&["https://x"]))], "hosts", "belongs into urls"),
        (Kind::Git, &[("token", text(" "))], "token", "leave the field out"),
        (Kind::Registry, &[("registry_url", text("http://ghcr.io"))], "registry_url", "this machine alone"),
    ];
    for (kind, fields, field, remedy) in cases {
        let wrong = build(*kind, fields).expect_err("it is wrong");
        let found = wrong.iter().find(|wrong| wrong.field == *field).unwrap_or_else(|| panic!("{field}: {wrong:?}"));
        assert!(found.remedy.contains(remedy), "{field}: {found}");
        assert!(wrong.iter().all(|wrong| !wrong.to_string().contains("hush")), "{wrong:?}");
    }
    assert_eq!("s3_credential".parse::<Kind>(), Err("did you mean s3_credentials?".to_owned()));
}
