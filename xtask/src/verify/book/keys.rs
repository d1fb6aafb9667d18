//! The page of configuration keys, made from the types that read a configuration.
//!
//! Type and default come from the code alone. The meaning of a key is its doc comment. If other code
//! decides the default of an optional key, the comment has it as `(default …)`.

use crate::source::Source;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use syn::{
    Attribute, Expr, ExprLit, Field, Fields, GenericArgument, ItemEnum, ItemStruct, Lit, Meta,
    PathArguments, Stmt, Type,
};

/// The type of a whole configuration.
const ROOT: &str = "ReplicaConfig";

const HEAD: &str = "# Every configuration key

This page is made from the types that read the configuration; `./x verify` checks that it is current. A replica refuses
keys that are not here. The file is TOML: `plover replica --config FILE`.

The column *change* says when a change of the key takes effect ([Change the configuration](operate.md#change-the-configuration)):

| change | takes effect |
|---|---|
| `now` | at once, by `plover reload` on this host |
| `restart` | when this host's service is started again, one host after the other |
| `group` | when the services of all hosts have been stopped and are started with it. It must be the same on all of them, and the guest boots anew |
| `never` | never: the replica with its state directory is bound to it |

";

/// A table of the configuration.
struct Table {
    path: String,
    /// The name of its type.
    name: String,
    /// It is an array of tables.
    many: bool,
    /// The doc comment of the key that holds it.
    about: String,
    /// Its keys that have an effect.
    keys: Vec<String>,
}

/// A type as a reader of a configuration sees it.
enum Kind {
    /// A table, or an array of tables.
    Table { name: String, many: bool },
    /// A value: its description, and its choices if it has only some.
    Value(String, Option<String>),
}

pub(crate) fn page(source: &Source) -> Result<String> {
    let mut page = HEAD.to_owned();
    let mut tables = vec![Table {
        path: String::new(),
        name: ROOT.to_owned(),
        many: false,
        about: String::new(),
        keys: Vec::new(),
    }];
    let mut next = 0;
    while next < tables.len() {
        let mut below = Vec::new();
        let (text, keys) = section(source, &tables[next], &mut below)?;
        page.push_str(&text);
        tables[next].keys = keys;
        next += 1;
        // Depth first, so that a table stands behind its parent.
        tables.splice(next..next, below);
    }
    let read: BTreeSet<&String> = tables.iter().flat_map(|table| &table.keys).collect();
    if let Some(key) = source.effects.keys().find(|key| !read.contains(key)) {
        bail!("{key} has an effect, and is no key");
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    Ok(page)
}

/// A table's heading, purpose and keys, and the names of those that have an effect. The tables in it are added to `below`.
fn section(
    source: &Source,
    table: &Table,
    below: &mut Vec<Table>,
) -> Result<(String, Vec<String>)> {
    let fields = source.structs.get(&table.name);
    let fields = fields.with_context(|| format!("there is no struct {}", table.name))?;
    let mut keys = Vec::new();
    let rows = rows(source, fields, &table.path, below, &mut keys)?;
    if table.many {
        keys.push(table.path.clone());
    }
    if table.path.is_empty() {
        return Ok((rows, keys));
    }
    let (open, close) = if table.many { ("[[", "]]") } else { ("[", "]") };
    let mut text = format!("## `{open}{}{close}`\n\n", table.path);
    for about in [&table.about, &documentation(&fields.attrs)] {
        let about = without_name(about);
        if !about.is_empty() {
            let _ = writeln!(text, "{about}\n");
        }
    }
    if !rows.is_empty() {
        let head = "| key | type | default | change | meaning |\n|---|---|---|---|---|\n";
        let _ = writeln!(text, "{head}{rows}");
    }
    Ok((text, keys))
}

/// A comment such as "`[host]`: which CPUs …" without the name that it begins with.
fn without_name(about: &str) -> String {
    let after = |end: &str| about.split_once(end).map(|(_, rest)| rest);
    let rest = if about.starts_with("`[") {
        after("`:").or_else(|| after("`.")).unwrap_or(about)
    } else {
        about
    };
    let mut letters = rest.trim().chars();
    let first = letters.next().map(|c| c.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

fn rows(
    source: &Source,
    table: &ItemStruct,
    path: &str,
    below: &mut Vec<Table>,
    keys: &mut Vec<String>,
) -> Result<String> {
    let all_default = serde_of(&table.attrs).contains("default");
    let mut rows = String::new();
    // No file has a field that serde skips.
    let fields = table
        .fields
        .iter()
        .filter(|it| serde_of(&it.attrs) != "skip");
    for field in fields {
        let key = field
            .ident
            .as_ref()
            .context("a field without a name")?
            .to_string();
        let full = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        let describe = || format!("{full} ({})", table.ident);
        let about = documentation(&field.attrs);
        if about.is_empty() {
            bail!("{} has no documentation", describe());
        }
        match kind(source, &field.ty).with_context(describe)? {
            Kind::Table { name, many } => below.push(Table {
                path: full,
                name,
                many,
                about,
                keys: Vec::new(),
            }),
            Kind::Value(kind, choices) => {
                let (about, told) = without_default(&about);
                let default = match (
                    default(source, field, all_default).with_context(describe)?,
                    told,
                ) {
                    (Default::Is(value), None) => format!("`{value}`"),
                    (Default::Is(_), Some(_)) => {
                        bail!(
                            "{}: the code has a default; its comment repeats it",
                            describe()
                        )
                    }
                    (Default::Optional, Some(told)) => told,
                    (Default::Optional, None) => "none".into(),
                    (Default::Required, _) => "required".into(),
                };
                let choices = choices.map_or_else(String::new, |choices| format!(" {choices}"));
                let text = format!("{about}{choices}").replace('|', "\\|");
                let effect = source.effects.get(&full);
                let effect = effect.with_context(|| {
                    format!(
                        "{} is not in plover_node::KEYS: when does a change take effect?",
                        describe()
                    )
                })?;
                let _ = writeln!(
                    rows,
                    "| `{key}` | {kind} | {default} | `{effect}` | {text} |"
                );
                keys.push(full.clone());
            }
        }
    }
    Ok(rows)
}

enum Default {
    Required,
    /// Other code decides if the key is missing. The comment has to say what.
    Optional,
    Is(String),
}

fn default(source: &Source, field: &Field, all: bool) -> Result<Default> {
    if inner(&field.ty, "Option").is_some() {
        return Ok(Default::Optional);
    }
    let serde = serde_of(&field.attrs);
    if let Some((_, function)) = serde.split_once("default = ") {
        let name: String = function.chars().skip(1).take_while(|c| *c != '"').collect();
        return Ok(Default::Is(value_of(source, &name)?));
    }
    if !all && !serde.contains("default") {
        return Ok(Default::Required);
    }
    let name = name_of(&field.ty)?;
    Ok(Default::Is(match name.as_str() {
        "bool" => "false".into(),
        "u8" | "u32" | "u64" | "usize" => "0".into(),
        "String" => "\"\"".into(),
        "Vec" => "[]".into(),
        _ => match source.enums.get(&name) {
            Some(choices) => match default_choice(choices) {
                Some(choice) => format!("\"{choice}\""),
                None => return Ok(Default::Optional),
            },
            None => return Ok(Default::Optional),
        },
    }))
}

/// The value that a function such as `default_timeout_ms` returns.
fn value_of(source: &Source, function: &str) -> Result<String> {
    let function = source
        .functions
        .get(function)
        .with_context(|| format!("no function {function}"))?;
    match function.block.stmts.as_slice() {
        [Stmt::Expr(Expr::Lit(ExprLit { lit, .. }), None)] => Ok(match lit {
            Lit::Int(number) => number.base10_digits().into(),
            Lit::Bool(value) => value.value.to_string(),
            Lit::Str(text) => format!("\"{}\"", text.value()),
            _ => bail!("a default of an unknown kind"),
        }),
        _ => bail!("{} is more than a value", function.sig.ident),
    }
}

fn kind(source: &Source, ty: &Type) -> Result<Kind> {
    if let Some(inside) = inner(ty, "Option") {
        return kind(source, inside);
    }
    if let Some(inside) = inner(ty, "Vec") {
        return Ok(match kind(source, inside)? {
            Kind::Table { name, .. } => Kind::Table { name, many: true },
            Kind::Value(name, choices) => Kind::Value(format!("list of {name}s"), choices),
        });
    }
    let name = name_of(ty)?;
    let value = |text: &str| Ok(Kind::Value(text.into(), None));
    match name.as_str() {
        "bool" => value("boolean"),
        "u8" | "u32" | "u64" | "usize" | "i32" => value("integer"),
        "String" | "PolicyName" | "Spin" => value("string"),
        "PathBuf" => value("path"),
        "SocketAddr" => value("address:port"),
        "Mac" => value("MAC address"),
        _ if source.enums.contains_key(&name) => Ok(Kind::Value(
            "string".into(),
            Some(choices(&source.enums[&name])?),
        )),
        _ if source.structs.contains_key(&name) => Ok(Kind::Table { name, many: false }),
        _ => bail!("a key of the type {name}, which this page cannot describe"),
    }
}

/// The choices of an enum, each with its meaning.
fn choices(choices: &ItemEnum) -> Result<String> {
    let mut text = String::new();
    for variant in &choices.variants {
        if !matches!(variant.fields, Fields::Unit) {
            bail!("{}::{} is no plain choice", choices.ident, variant.ident);
        }
        let about = documentation(&variant.attrs);
        let about = about.trim_end_matches('.');
        let comma = if text.is_empty() { "" } else { "; " };
        let _ = write!(
            text,
            "{comma}`\"{}\"`: {about}",
            written(choices, &variant.ident)
        );
    }
    Ok(text + ".")
}

fn default_choice(choices: &ItemEnum) -> Option<String> {
    let is_default = |attribute: &Attribute| attribute.path().is_ident("default");
    let found = choices
        .variants
        .iter()
        .find(|variant| variant.attrs.iter().any(is_default))?;
    Some(written(choices, &found.ident))
}

/// A choice as it is written in a configuration, by serde's `rename_all`.
fn written(choices: &ItemEnum, variant: &syn::Ident) -> String {
    let kebab = serde_of(&choices.attrs).contains("kebab-case");
    let mut text = String::new();
    for c in variant.to_string().chars() {
        if c.is_uppercase() && kebab && !text.is_empty() {
            text.push('-');
        }
        text.extend(c.to_lowercase());
    }
    text
}

/// The type inside of `Option<…>` or `Vec<…>`.
fn inner<'a>(ty: &'a Type, of: &str) -> Option<&'a Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last().filter(|last| last.ident == of)?;
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) => match arguments.args.first()? {
            GenericArgument::Type(inside) => Some(inside),
            _ => None,
        },
        _ => None,
    }
}

fn name_of(ty: &Type) -> Result<String> {
    match ty {
        Type::Path(path) => {
            let last = path.path.segments.last().context("a type without a name")?;
            Ok(last.ident.to_string())
        }
        _ => bail!("a type that is no name"),
    }
}

/// The tokens of all `#[serde(…)]`.
fn serde_of(attributes: &[Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes.iter().filter(|it| it.path().is_ident("serde")) {
        if let Meta::List(list) = &attribute.meta {
            text.push_str(&list.tokens.to_string());
        }
    }
    text
}

/// A doc comment as one paragraph.
fn documentation(attributes: &[Attribute]) -> String {
    let mut words = Vec::new();
    for attribute in attributes.iter().filter(|it| it.path().is_ident("doc")) {
        if let Meta::NameValue(pair) = &attribute.meta {
            if let Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) = &pair.value
            {
                words.extend(text.value().split_whitespace().map(str::to_owned));
            }
        }
    }
    // Links within the code lead nowhere on the page.
    words.join(" ").replace("[`", "`").replace("`]", "`")
}

/// A text without its `(default …)`, and the default named there.
fn without_default(text: &str) -> (String, Option<String>) {
    let Some((before, rest)) = text.split_once(" (default") else {
        return (text.into(), None);
    };
    let Some((told, after)) = rest.split_once(')') else {
        return (text.into(), None);
    };
    let told = told.trim_start_matches([':', ' ']).to_owned();
    (
        format!("{before}{after}"),
        Some(told).filter(|told| !told.is_empty()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without one for a key, the page is not made.
    #[test]
    fn every_key_has_an_effect() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        std::env::set_current_dir(root).unwrap();
        let mut source = Source::read().unwrap();
        page(&source).unwrap();
        let effect = source.effects.remove("net.tap").unwrap();
        let error = format!("{:#}", page(&source).unwrap_err());
        assert!(error.contains("net.tap"), "{error}");
        source.effects.insert("net.tap".into(), effect.clone());
        source.effects.insert("net.tpa".into(), effect);
        let error = format!("{:#}", page(&source).unwrap_err());
        assert!(error.contains("net.tpa"), "{error}");
    }

    #[test]
    fn a_default_is_taken_out_of_the_text() {
        let (text, told) = without_default("RAM in MiB (default 256), all of it.");
        assert_eq!(
            (text.as_str(), told.as_deref()),
            ("RAM in MiB, all of it.", Some("256"))
        );
        assert_eq!(without_default("The name."), ("The name.".into(), None));
    }

    #[test]
    fn a_choice_is_written_as_serde_reads_it() {
        let choices: ItemEnum =
            syn::parse_str("#[serde(rename_all = \"kebab-case\")] enum E { #[default] AllOf, B }")
                .unwrap();
        assert_eq!(default_choice(&choices).as_deref(), Some("all-of"));
    }
}
