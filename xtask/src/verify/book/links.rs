//! Links of the guide, and of the pages beside it, to files and headings of the repository. Links to
//! other sites are not followed: this check needs no network.

use crate::Pages;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

const SUMMARY: &str = "docs/SUMMARY.md";

pub(crate) fn check(pages: &Pages) -> Vec<String> {
    let mut wrong = Vec::new();
    let chapters: BTreeSet<String> = links(&pages[SUMMARY])
        .into_iter()
        .map(|link| join(SUMMARY, &link))
        .collect();
    for page in pages.keys() {
        if page.starts_with("docs/") && page != SUMMARY && !chapters.contains(page) {
            wrong.push(format!("{page} is no chapter: name it in {SUMMARY}"));
        }
    }
    for (page, text) in pages {
        for link in links(text) {
            if let Some(why) = broken(pages, &chapters, page, &link) {
                wrong.push(format!("{page}: the link to '{link}' {why}"));
            }
        }
    }
    wrong
}

fn broken(
    pages: &Pages,
    chapters: &BTreeSet<String>,
    page: &str,
    link: &str,
) -> Option<&'static str> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() {
        page.to_owned()
    } else {
        join(page, path)
    };
    if !Path::new(&target).exists() {
        return Some("leads to no file of the repository");
    }
    let in_guide = page.starts_with("docs/");
    if in_guide && page != SUMMARY && !chapters.contains(&target) {
        return Some("leaves the guide: only its chapters are rendered");
    }
    let headings = pages.get(&target).map(|text| headings(text));
    match headings {
        Some(headings) if !heading.is_empty() && !headings.contains(heading) => {
            Some("names a heading that is not there")
        }
        _ => None,
    }
}

/// The file that `link` on `page` names.
fn join(page: &str, link: &str) -> String {
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    let mut path = PathBuf::new();
    for part in folder.join(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path.to_string_lossy().into_owned()
}

fn parse(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

fn links(text: &str) -> Vec<String> {
    let target = |event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some(dest_url.into_string())
        }
        _ => None,
    };
    parse(text).filter_map(target).collect()
}

/// The names by which the headings of a page are linked to, as mdBook and GitHub make them.
fn headings(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in parse(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                names.extend(heading.take().map(|heading| name_of(&heading)));
            }
            _ => {}
        }
    }
    names
}

fn name_of(heading: &str) -> String {
    let heading = heading.to_lowercase();
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c),
        _ => None,
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        let summary = "[a](a.md) [b](deep/b.md)";
        let page = "[x](deep/b.md#the-heading-two) [y](deep/b.md#none) [z](c.md) [w](https://w)";
        let pages = Pages::from([
            (SUMMARY.to_owned(), summary.to_owned()),
            ("docs/a.md".to_owned(), page.to_owned()),
            ("docs/d.md".to_owned(), String::new()),
        ]);
        let wrong = check(&pages);
        assert!(wrong[0].contains("docs/d.md is no chapter"), "{wrong:?}");
        assert!(wrong.iter().any(|line| line.contains("'c.md' leads to no")));
        assert!(
            !wrong.iter().any(|line| line.contains("https")),
            "{wrong:?}"
        );
    }

    #[test]
    fn headings_are_named_as_they_are_rendered() {
        let names = headings("# The `[policy]`, or two\ntext\n## All-in_one: 3 s");
        let expected = ["all-in_one-3-s", "the-policy-or-two"].map(str::to_owned);
        assert_eq!(names, BTreeSet::from(expected));
    }
}
