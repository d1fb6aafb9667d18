//! The product's sources, as text and as syntax.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;
use syn::{Expr, ExprLit, Item, ItemEnum, ItemFn, ItemStruct, Lit};

/// The folders with sources.
pub(crate) const ROOMS: [&str; 6] = ["core", "edge", "app", "proof", "xtask", "guests"];

/// Every source of the repository.
#[derive(Default)]
pub(crate) struct Source {
    /// By path.
    pub texts: BTreeMap<String, String>,
    /// Types that are read from configurations, and the functions beside them, by name.
    pub structs: BTreeMap<String, ItemStruct>,
    pub enums: BTreeMap<String, ItemEnum>,
    pub functions: BTreeMap<String, ItemFn>,
    /// When a change of a key takes effect, by key.
    pub effects: BTreeMap<String, String>,
}

/// The file with the table of effects.
const EFFECTS: &str = "edge/node/src/config/effect.rs";

impl Source {
    pub(crate) fn read() -> Result<Self> {
        let mut source = Self::default();
        for room in ROOMS {
            for path in files(room, "")? {
                // Fonts and images are not text, and are skipped.
                if let Ok(text) = std::fs::read_to_string(&path) {
                    source.texts.insert(path, text);
                }
            }
        }
        source.read_configuration()?;
        source.effects = effects(source.texts.get(EFFECTS).context("no table of effects")?)?;
        Ok(source)
    }

    /// Types that derive `Deserialize`. Of two types with the same name the node's is kept, because its
    /// configuration is described.
    fn read_configuration(&mut self) -> Result<()> {
        let product = |path: &&String| {
            path.ends_with(".rs") && (path.starts_with("core/") || path.starts_with("edge/"))
        };
        let mut paths: Vec<&String> = self.texts.keys().filter(product).collect();
        paths.sort_by_key(|path| path.starts_with("edge/node/"));
        for path in paths {
            let text = &self.texts[path];
            if !text.contains("Deserialize") {
                continue;
            }
            let file = syn::parse_file(text).with_context(|| format!("cannot parse {path}"))?;
            for item in file.items {
                match item {
                    Item::Struct(it) => drop(self.structs.insert(it.ident.to_string(), it)),
                    Item::Enum(it) => drop(self.enums.insert(it.ident.to_string(), it)),
                    Item::Fn(it) => drop(self.functions.insert(it.sig.ident.to_string(), it)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// The effect of each key, by the constant `KEYS` in `text`: a list of pairs, each an effect and its keys.
fn effects(text: &str) -> Result<BTreeMap<String, String>> {
    let file = syn::parse_file(text).with_context(|| format!("cannot parse {EFFECTS}"))?;
    let table = file.items.into_iter().find_map(|item| match item {
        Item::Const(it) if it.ident == "KEYS" => Some(*it.expr),
        _ => None,
    });
    let mut effects = BTreeMap::new();
    for pair in parts(&table.context("no constant KEYS")?) {
        let Expr::Tuple(pair) = pair else { continue };
        let (Some(Expr::Path(effect)), Some(keys)) = (pair.elems.first(), pair.elems.get(1)) else {
            continue;
        };
        let effect = effect
            .path
            .segments
            .last()
            .context("an effect without a name")?;
        for key in parts(keys) {
            if let Expr::Lit(ExprLit {
                lit: Lit::Str(key), ..
            }) = key
            {
                effects.insert(key.value(), effect.ident.to_string().to_lowercase());
            }
        }
    }
    Ok(effects)
}

/// The parts of `&[…]`.
fn parts(list: &Expr) -> Vec<&Expr> {
    match list {
        Expr::Reference(it) => parts(&it.expr),
        Expr::Array(it) => it.elems.iter().collect(),
        _ => Vec::new(),
    }
}

/// The files below `folder` whose names end in `extension`, as paths with slashes.
pub(crate) fn files(folder: &str, extension: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    collect(Path::new(folder), extension, &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, extension: &str, found: &mut Vec<String>) -> Result<()> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            collect(&path, extension, found)?;
        } else if path.is_file() && name.ends_with(extension) {
            found.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}
