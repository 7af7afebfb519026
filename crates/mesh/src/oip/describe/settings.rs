//! Settings of the trace and logging extensions, in Triton's words. What means nothing here is shown with the value that says so,
//! and can be set to no other.
//!
//! Source: Triton's `protocol/extension_trace.md` and `protocol/extension_logging.md`.

use std::collections::BTreeMap;

use berth_spec::InferError;
use berth_wire::oip::{
    LogSettingsRequest, LogSettingsResponse, TraceSettingRequest, TraceSettingResponse, log_settings_request,
    log_settings_response, trace_setting_response,
};
use serde_json::{Map, Value, json};

use crate::controls::{LogSettings, TraceSettings};

fn invalid(name: &str, what: &str) -> InferError {
    InferError::Invalid(format!("setting {name:?} must be {what}"))
}

fn object(body: &[u8]) -> Result<Map<String, Value>, InferError> {
    if body.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(body).map_err(|error| InferError::Invalid(format!("the settings: {error}")))
}

/// Log settings with the changes of a REST body, a JSON object of settings. Fails on an unknown name or a wrong value.
pub(crate) fn change_log(mut settings: LogSettings, body: &[u8]) -> Result<LogSettings, InferError> {
    for (name, value) in object(body)? {
        change_log_setting(&mut settings, &name, &value)?;
    }
    Ok(settings)
}

/// The same of a gRPC request.
pub(crate) fn change_log_by_message(
    mut settings: LogSettings,
    request: &LogSettingsRequest,
) -> Result<LogSettings, InferError> {
    use log_settings_request::setting_value::ParameterChoice;
    for (name, value) in &request.settings {
        let value = match &value.parameter_choice {
            None => continue,
            Some(ParameterChoice::BoolParam(value)) => json!(value),
            Some(ParameterChoice::Uint32Param(value)) => json!(value),
            Some(ParameterChoice::StringParam(value)) => json!(value),
        };
        change_log_setting(&mut settings, name, &value)?;
    }
    Ok(settings)
}

fn change_log_setting(settings: &mut LogSettings, name: &str, value: &Value) -> Result<(), InferError> {
    let flag = || value.as_bool().ok_or_else(|| invalid(name, "true or false"));
    match name {
        "log_info" => settings.info = flag()?,
        "log_warning" => settings.warning = flag()?,
        "log_error" => settings.error = flag()?,
        "log_verbose_level" => {
            let level = value.as_u64().and_then(|level| u32::try_from(level).ok());
            settings.verbose = level.ok_or_else(|| invalid(name, "a whole number from 0"))?;
        }
        "log_file" if value == "" => {}
        "log_file" => return Err(invalid(name, "\"\": the log goes to standard error")),
        "log_format" if value == "default" => {}
        "log_format" => return Err(invalid(name, "\"default\": --log-format chooses it at the start")),
        _ => return Err(InferError::Invalid(format!("there is no log setting {name:?}"))),
    }
    Ok(())
}

/// The body of an answer about the log.
pub(crate) fn log_json(settings: LogSettings) -> Value {
    json!({
        "log_file": "",
        "log_info": settings.info,
        "log_warning": settings.warning,
        "log_error": settings.error,
        "log_verbose_level": settings.verbose,
        "log_format": "default",
    })
}

/// The levels of the log as the message of `LogSettings` over gRPC.
pub(crate) fn log_message(settings: LogSettings) -> LogSettingsResponse {
    use log_settings_response::{SettingValue, setting_value::ParameterChoice};
    let of = |name: &str, choice| (name.to_owned(), SettingValue { parameter_choice: Some(choice) });
    let text = |value: &str| ParameterChoice::StringParam(value.to_owned());
    let settings = [
        of("log_file", text("")),
        of("log_info", ParameterChoice::BoolParam(settings.info)),
        of("log_warning", ParameterChoice::BoolParam(settings.warning)),
        of("log_error", ParameterChoice::BoolParam(settings.error)),
        of("log_verbose_level", ParameterChoice::Uint32Param(settings.verbose)),
        of("log_format", text("default")),
    ];
    LogSettingsResponse { settings: settings.into() }
}

/// Values of settings, each a list of texts; an empty one is the default again.
type Values = BTreeMap<String, Vec<String>>;

/// Changes to trace settings from a REST body.
pub(crate) fn trace_changes(body: &[u8]) -> Result<Values, InferError> {
    let text = |name: &str, value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(invalid(name, "a string, a list of strings, or null")),
    };
    let values = object(body)?.into_iter().map(|(name, value)| {
        let values = match value {
            Value::Null => Vec::new(),
            Value::Array(values) => values.into_iter().map(|value| text(&name, value)).collect::<Result<_, _>>()?,
            value => vec![text(&name, value)?],
        };
        Ok((name, values))
    });
    values.collect()
}

/// Changes to trace settings from a message of `TraceSetting` over gRPC.
pub(crate) fn trace_changes_of_message(request: TraceSettingRequest) -> Values {
    request.settings.into_iter().map(|(name, value)| (name, value.value)).collect()
}

/// Trace settings with changes. Fails on a setting or value that there is not.
pub(crate) fn change_trace(mut settings: TraceSettings, changes: Values) -> Result<TraceSettings, InferError> {
    let default = TraceSettings::default();
    for (name, values) in changes {
        let number = |least: i64, what: &str| match values.as_slice() {
            [one] => one.parse().ok().filter(|number| *number >= least).ok_or_else(|| invalid(&name, what)),
            _ => Err(invalid(&name, what)),
        };
        match name.as_str() {
            "trace_level" => {
                settings.on = match values.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                    [] => default.on,
                    ["OFF"] => false,
                    ["TIMESTAMPS"] => true,
                    _ => return Err(invalid(&name, "OFF or TIMESTAMPS: tensors are not traced")),
                };
            }
            "trace_rate" if values.is_empty() => settings.rate = default.rate,
            "trace_rate" => {
                let rate = number(1, "a whole number from 1")?;
                settings.rate = u32::try_from(rate).unwrap_or(u32::MAX);
            }
            "trace_count" if values.is_empty() => settings.count = default.count,
            "trace_count" => settings.count = number(-1, "a whole number from -1")?,
            // What means nothing here can be left as it is.
            "log_frequency" | "trace_file" | "trace_mode"
                if values.is_empty() || values == [constant(&name).to_owned()] => {}
            "log_frequency" | "trace_file" | "trace_mode" => {
                return Err(invalid(&name, &format!("{:?}: traces go to --otlp", constant(&name))));
            }
            _ => return Err(InferError::Invalid(format!("there is no trace setting {name:?}"))),
        }
    }
    Ok(settings)
}

/// The only value of a setting.
fn constant(name: &str) -> &'static str {
    match name {
        "log_frequency" => "0",
        "trace_mode" => "opentelemetry",
        _ => "",
    }
}

fn trace_values(settings: TraceSettings) -> [(&'static str, String); 6] {
    [
        ("trace_level", if settings.on { "TIMESTAMPS" } else { "OFF" }.to_owned()),
        ("trace_rate", settings.rate.to_string()),
        ("trace_count", settings.count.to_string()),
        ("log_frequency", constant("log_frequency").to_owned()),
        ("trace_file", constant("trace_file").to_owned()),
        ("trace_mode", constant("trace_mode").to_owned()),
    ]
}

/// The body of an answer about traces.
pub(crate) fn trace_json(settings: TraceSettings) -> Value {
    let values = trace_values(settings).into_iter().map(|(name, value)| {
        let value = if name == "trace_level" { json!([value]) } else { json!(value) };
        (name.to_owned(), value)
    });
    Value::Object(values.collect())
}

/// Trace settings as the message of `TraceSetting` over gRPC.
pub(crate) fn trace_message(settings: TraceSettings) -> TraceSettingResponse {
    let of =
        |(name, value): (&str, String)| (name.to_owned(), trace_setting_response::SettingValue { value: vec![value] });
    TraceSettingResponse { settings: trace_values(settings).map(of).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: LogSettings = LogSettings { info: true, warning: true, error: true, verbose: 0 };

    #[test]
    fn log_settings_change_one_by_one() {
        let changed = change_log(LOG, br#"{"log_info": false, "log_verbose_level": 2, "log_file": ""}"#);
        assert_eq!(changed.expect("settings"), LogSettings { info: false, verbose: 2, ..LOG });
        assert_eq!(change_log(LOG, b" ").expect("no changes"), LOG);
        for body in [&br#"{"log_info": 1}"#[..], br#"{"log_file": "/tmp/x"}"#, br#"{"other": 1}"#, b"[]", b"{"] {
            assert!(change_log(LOG, body).is_err(), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn trace_settings_change_one_by_one_and_go_back() {
        let change = |settings, body: &str| change_trace(settings, trace_changes(body.as_bytes())?);
        let body = r#"{"trace_level": ["OFF"], "trace_rate": "500", "trace_count": 7, "trace_mode": "opentelemetry"}"#;
        let changed = change(TraceSettings::default(), body).expect("settings");
        assert_eq!(changed, TraceSettings { on: false, rate: 500, count: 7 });
        let body = r#"{"trace_level": null, "trace_rate": null, "trace_count": null, "trace_file": null}"#;
        assert_eq!(change(changed, body).expect("settings"), TraceSettings::default());
        for body in [
            r#"{"trace_level": ["TENSORS"]}"#,
            r#"{"trace_rate": "0"}"#,
            r#"{"trace_count": "-2"}"#,
            r#"{"trace_file": "/tmp/x"}"#,
            r#"{"trace_rate": [{}]}"#,
            r#"{"other": "1"}"#,
        ] {
            assert!(change(changed, body).is_err(), "{body}");
        }
    }
}
