//! Properties that hold for any bytes that somebody puts into etcd as the object of a function.

use berth_control::store::Rev;
use berth_functions::deployment::{Declared, identity_of};
use serde_json::Value;

/// It is read the same each time; what is refused has words. A status, whoever writes it, changes nothing that is wanted.
pub(crate) fn function(data: &[u8]) {
    let read = || Declared::read("words", data, Rev(7));
    let declared = read();
    let again = read();
    assert_eq!((&declared.identity, &declared.spec), (&again.identity, &again.spec));
    match &declared.spec {
        Ok(spec) => {
            assert_eq!(spec.name.as_str(), "words");
            assert!(declared.writable && !declared.text.is_empty());
        }
        Err(mistakes) => assert!(!mistakes.is_empty()),
    }
    assert_eq!(declared.writable, identity_of(data).is_some());
    let Ok(Value::Object(mut object)) = serde_json::from_slice(data) else { return };
    let identity = |object: &serde_json::Map<String, Value>| {
        identity_of(Value::Object(object.clone()).to_string().as_bytes()).expect("an object")
    };
    let before = identity(&object);
    object.insert("status".to_owned(), Value::from("of somebody else"));
    assert_eq!(identity(&object), before);
}
