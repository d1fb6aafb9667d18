//! The product's sources, as text and as syntax.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;
use syn::{Item, ItemEnum, ItemFn, ItemStruct};

/// The folders with sources.
pub(crate) const ROOMS: [&str; 6] = ["core", "edge", "app", "proof", "xtask", "guests"];

/// Every source of the repository.
pub(crate) struct Source {
    /// By path.
    pub texts: BTreeMap<String, String>,
    /// Types that are read from configurations, and the functions beside them, by name.
    pub structs: BTreeMap<String, ItemStruct>,
    pub enums: BTreeMap<String, ItemEnum>,
    pub functions: BTreeMap<String, ItemFn>,
}

impl Source {
    pub(crate) fn read() -> Result<Self> {
        let mut source = Self {
            texts: BTreeMap::new(),
            structs: BTreeMap::new(),
            enums: BTreeMap::new(),
            functions: BTreeMap::new(),
        };
        for room in ROOMS {
            for path in files(room, "")? {
                // Fonts and images are not text, and are skipped.
                if let Ok(text) = std::fs::read_to_string(&path) {
                    source.texts.insert(path, text);
                }
            }
        }
        source.read_configuration()?;
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
