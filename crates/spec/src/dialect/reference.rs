//! `docs/dialects.md`, made from the tables of the dialects.

use std::fmt::Write as _;

use super::{ALL, Dialect, Field, Mapping};

const INTRODUCTION: &str = "# Dialects

<!-- Generated from crates/spec/src/dialect: `UPDATE=1 cargo test -p berth-spec dialect` rewrites it. -->

Berth reads models and functions in several forms. The *hub version* is the manifest of `berth.dev/v1` ([manifest.md](manifest.md));
every other form is a dialect that converts to it; the hub version is what the rest of Berth works with. What is kept and
shown is the manifest as it was written. For objects of KServe and ModelMesh, and for models of a Git registry, it is
the hub version that they become.

A field of a dialect has one of four fates:

* it goes **to** a field of the hub version;
* it is kept as an **annotation** of the deployment and has no other effect;
* it is **refused**: the manifest is not accepted, and the error names the field;
* it is **ignored**: the manifest is accepted, and the field has no effect. Each section says where ignored fields are named.
";

/// Writes docs/dialects.md: every dialect with the table of its fields.
#[must_use]
pub fn reference_markdown() -> String {
    let mut page = INTRODUCTION.to_owned();
    for dialect in ALL {
        section(dialect, &mut page);
    }
    page
}

// Writing to a String cannot fail.
fn section(dialect: &Dialect, page: &mut String) {
    let _ = write!(
        page,
        "\n## {}\n\n{}\n\n| field | goes to | note |\n|---|---|---|\n",
        dialect.title, dialect.introduction
    );
    dialect.fields.iter().for_each(|field| row(field, page));
    if !dialect.inputs.is_empty() {
        page.push_str("\nThe conversion reads more than the manifest:\n\n| input | goes to | note |\n|---|---|---|\n");
        dialect.inputs.iter().for_each(|field| row(field, page));
    }
    let Some(unreachable) = unreachable(dialect) else { return };
    if unreachable.is_empty() {
        page.push_str("\nThe dialect has a field for every part of the hub version.\n");
        return;
    }
    let back = if dialect.one_way { "" } else { " A deployment that sets one of them does not convert back." };
    let _ = writeln!(
        page,
        "\nThe dialect has no field for these parts of the hub version, which keep their defaults: {}.{back}",
        unreachable.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ")
    );
}

fn row(field: &Field, page: &mut String) {
    let mapping = match field.mapping {
        Mapping::To(paths) => paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", "),
        Mapping::Annotation(name) => format!("annotation `{name}`"),
        Mapping::Refused => "refused".to_owned(),
        Mapping::Ignored => "ignored".to_owned(),
    };
    let _ = writeln!(page, "| `{}` | {mapping} | {} |", field.path, field.note);
}

/// Fields of `spec` and of `spec.model` that no field of the dialect goes to; `None` where the hub's fields are not known here.
fn unreachable(dialect: &Dialect) -> Option<Vec<String>> {
    let reached: Vec<&str> = dialect
        .fields
        .iter()
        .chain(dialect.inputs)
        .filter_map(|field| match field.mapping {
            Mapping::To(paths) => Some(paths),
            _ => None,
        })
        .flatten()
        .copied()
        .collect();
    let of_interest = |path: &String| match path.strip_prefix("spec.") {
        Some(rest) => {
            rest.strip_prefix("model.").map_or(!rest.contains('.') && rest != "model", |rest| !rest.contains('.'))
        }
        None => false,
    };
    let is_reached = |path: &str| {
        reached.iter().any(|reached| *reached == path || is_below(reached, path) || is_below(path, reached))
    };
    let paths = dialect.hub.field_paths()?;
    Some(paths.into_iter().filter(of_interest).filter(|path| !is_reached(path)).collect())
}

/// True for `spec.model.uri` below `spec.model`.
fn is_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.starts_with('.'))
}
