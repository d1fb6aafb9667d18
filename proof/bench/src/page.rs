//! Pages that need nothing but themselves: no script, no network, light and dark alike.

use anyhow::{Context, Result};
use std::path::Path;

const STYLE: &str = "
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; font-size: 12px; }
svg text { fill: currentColor; }
figure { margin: 0 0 1.5rem; }
figcaption { font-weight: 600; }
.grid { stroke: currentColor; opacity: .2; }
.whisker { stroke: currentColor; fill: none; }
rect { stroke: currentColor; }
.solid { fill: #2f6fbf; }
.outlined { fill: none; stroke-dasharray: 4 2; }
.part { stroke-width: .5; }
.part0, .part4, .part8 { fill: #2f6fbf; }
.part1, .part5, .part9 { fill: url(#hatch); }
.part2, .part6 { fill: #8fb7e6; }
.part3, .part7 { fill: none; }
svg text.letter { fill: currentColor; paint-order: stroke; stroke: Canvas; stroke-width: 3px; }
.hatched { fill: url(#hatch); }
.hatch { stroke: currentColor; opacity: .55; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .2rem .6rem .2rem 0; vertical-align: top; }
tr { border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }
pre { overflow-x: auto; font-size: 12px; }
";

/// The pattern of others' bars. A pattern is found by its name from anywhere in the page.
const HATCH: &str = "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\">\
    <defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
    patternTransform=\"rotate(45)\"><line class=\"hatch\" x1=\"0\" y1=\"0\" x2=\"0\" y2=\"6\" \
    stroke-width=\"3\"/></pattern></defs></svg>";

/// Writes a report for programs and one for people, and says where.
pub(crate) fn write(folder: &Path, json: &[u8], html: &str) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, bytes) in [("report.json", json), ("report.html", html.as_bytes())] {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// A page of this title and heading.
pub(crate) fn document(title: &str, heading: &str, body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>Plover: {}</title><style>{STYLE}</style>{HATCH}<h1>{}</h1>{body}</html>\n",
        escaped(title),
        escaped(heading)
    )
}

/// Text as HTML wants it.
pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
