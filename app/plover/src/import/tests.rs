//! Five domains as `virt-install` and operators make them, each accounted for in full.

use super::*;
use clap::Parser;
use plover_node::ReplicaConfig;

#[derive(Parser)]
struct Alone {
    #[command(flatten)]
    options: ImportOptions,
}

const HOSTS: &str = "192.0.2.10,192.0.2.11,192.0.2.12";

fn xml_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/domains/{name}.xml"))
}

fn options(words: &[&str]) -> ImportOptions {
    let words = ["import"].iter().chain(words);
    Alone::try_parse_from(words).unwrap().options
}

/// The domain of a file, and what `judge` makes of it.
fn with_domain<T>(name: &str, bridge: Option<&str>, judge: impl FnOnce(&Domain<'_>) -> T) -> T {
    let text = std::fs::read_to_string(xml_of(name)).unwrap();
    let document = parse(&text, name).unwrap();
    let intent = Intent {
        name: name.into(),
        folder: "/var/lib/plover".into(),
        tap: "guest0".into(),
        bridges: bridge.map(Into::into).into_iter().collect(),
        mib: [
            ("vda", 20480),
            ("vdb", 10240),
            ("sda", 65536),
            ("hda", 64),
            ("hdb", 512),
        ]
        .map(|(target, mib)| (target.to_owned(), mib))
        .into(),
    };
    judge(&Domain::read(&document, intent).unwrap())
}

const FILES: [&str; 5] = ["debian", "ubuntu", "fedora", "windows", "router"];

/// Every element and every attribute is in the account, once. They are counted here by another parser's means: by the events
/// of a tokenizer of a few lines, not by the tree that the account walks.
#[test]
fn every_element_and_attribute_is_accounted_for_once() {
    for name in FILES {
        let text = std::fs::read_to_string(xml_of(name)).unwrap();
        let tags = text
            .split('<')
            .filter(|tag| tag.starts_with(char::is_alphabetic));
        let tags: Vec<_> = tags.map(|tag| tag.split('>').next().unwrap()).collect();
        // No value in these files has a quote or a `>` in it; namespaces are declared, and are no attributes.
        let values = tags
            .iter()
            .flat_map(|tag| tag.split_ascii_whitespace().skip(1));
        let declared = tags
            .iter()
            .map(|tag| tag.matches("xmlns:").count())
            .sum::<usize>();
        let attributes = values
            .filter(|word| word.contains("='") || word.contains("=\""))
            .count();
        with_domain(name, None, |domain| {
            let account = Account::of(domain, &[]);
            let paths: std::collections::BTreeSet<_> =
                account.entries.iter().map(|entry| &entry.path).collect();
            assert_eq!(
                paths.len(),
                account.entries.len(),
                "{name}: a node is there twice"
            );
            assert_eq!(
                account.entries.len(),
                tags.len() + attributes - declared,
                "{name}"
            );
            let shown = account.to_string();
            for entry in &account.entries {
                assert!(
                    shown.contains(&entry.value),
                    "{name}: {} is not shown",
                    entry.path
                );
            }
        });
    }
}

/// Unknown ones are refused by name, wherever they stand: nothing is dropped in silence.
#[test]
fn a_node_that_no_rule_knows_is_refused() {
    let text = std::fs::read_to_string(xml_of("debian")).unwrap();
    let text = text
        .replace("<acpi/>", "<acpi quirk='1'/><ras state='on'/>")
        .replace("discard='unmap'", "frobnicate='yes'")
        .replace("<on_poweroff>", "<warp>9</warp><on_poweroff>")
        .replace("<memballoon", "<lease><key>k</key></lease><memballoon");
    let document = parse(&text, "it").unwrap();
    with_domain("debian", None, |known| {
        let intent = Intent {
            name: "it".into(),
            folder: known.intent.folder.clone(),
            tap: "guest0".into(),
            bridges: Vec::new(),
            mib: known.intent.mib.clone(),
        };
        let domain = Domain::read(&document, intent).unwrap();
        let account = Account::of(&domain, &[]);
        for kind in [
            "features/acpi@quirk",
            "features/ras",
            "devices/disk/driver@frobnicate",
            "warp",
            "devices/lease",
        ] {
            assert!(
                account.blocking().contains(&kind),
                "{kind}: {:?}",
                account.blocking()
            );
        }
    });
}

/// The account of each file, and the keys that come of it.
#[test]
fn the_accounts_are_these() {
    for name in FILES {
        let (account, keys) = with_domain(name, None, |domain| {
            let account = Account::of(domain, &[]);
            let nics = domain.nics.len().saturating_sub(1);
            let (guest, disks, nics) = account.keys(domain.kept_disks().len(), nics);
            let mut text = String::from("[guest]\n");
            for (table, keys) in std::iter::once(("", &guest))
                .chain(disks.iter().map(|disk| ("[[disk]]\n", disk)))
                .chain(nics.iter().map(|nic| ("[[nic]]\n", nic)))
            {
                text += table;
                for (key, value) in keys {
                    let _ = writeln!(text, "{key} = {value}");
                }
            }
            (account.to_string(), text)
        });
        insta::assert_snapshot!(name, format!("{account}\n{keys}"));
    }
}

#[test]
fn nothing_is_written_while_a_loss_is_not_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let (file, to) = (dir.path().join("debian.xml"), dir.path().join("new"));
    let debian = std::fs::read_to_string(xml_of("debian")).unwrap();
    let watched = debian.replace("<memballoon", "<sound model='ich9'/><memballoon");
    std::fs::write(&file, watched).unwrap();
    let to = to.to_str().unwrap();
    let words = [
        file.to_str().unwrap(),
        "--hosts",
        HOSTS,
        "--to",
        to,
        "--disk-mib",
        "vda=20480",
    ];
    let code = run(&options(&words)).unwrap();
    assert_eq!(code, ExitCode::from(2));
    assert!(!Path::new(to).exists());
    let accepted = ["--without", "sound"];
    let code = run(&options(&[&words[..], &accepted].concat())).unwrap();
    assert_eq!(code, ExitCode::SUCCESS);
    for me in 0..3 {
        let config =
            ReplicaConfig::load(&Path::new(to).join(format!("shop-db-{me}/shop-db.toml"))).unwrap();
        assert_eq!(
            config.guest.uuid.as_deref(),
            Some("2d3ad8f3-0ee5-4c6f-a3ec-9e1f7a8a9c0e")
        );
        assert_eq!(config.guest.mac.to_string(), "52:54:00:6b:3c:58");
        assert!(config.guest.rng && config.guest.agent);
        assert_eq!(
            config.disk[0].path,
            Path::new("/var/lib/plover/shop-db-vda.raw")
        );
        assert_eq!(config.disk[0].size_mib, Some(20480));
    }
    let original = std::fs::read(Path::new(to).join("shop-db.domain.xml")).unwrap();
    assert_eq!(original, std::fs::read(&file).unwrap());
    let account = std::fs::read_to_string(Path::new(to).join("shop-db.account.txt")).unwrap();
    assert!(account.contains("[sound: accepted]"), "{account}");
    // Nothing is overwritten, and what is in the way is all that is left.
    let error = run(&options(&[&words[..], &accepted].concat())).unwrap_err();
    assert!(
        format!("{error:#}").contains("shop-db.domain.xml"),
        "{error:#}"
    );
}

#[test]
fn a_configuration_comes_of_each_file_once_its_losses_are_accepted() {
    for name in FILES {
        let without: Vec<_> = with_domain(name, Some("br0"), |domain| {
            let account = Account::of(domain, &[]);
            account.blocking().into_iter().map(str::to_owned).collect()
        });
        let dir = tempfile::tempdir().unwrap();
        let file = xml_of(name);
        let mut words = vec![
            file.to_str().unwrap(),
            "--name",
            name,
            "--hosts",
            HOSTS,
            "--bridge",
            "br0",
        ];
        words.extend(["--to", dir.path().to_str().unwrap(), "--plaintext"]);
        for size in ["vda=20480", "vdb=10240", "sda=65536", "hda=64", "hdb=512"] {
            words.extend(["--disk-mib", size]);
        }
        words.extend(without.iter().flat_map(|kind| ["--without", kind]));
        assert_eq!(run(&options(&words)).unwrap(), ExitCode::SUCCESS, "{name}");
    }
}

#[test]
fn mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |name: &str, text: &str, more: &[&str]| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        let words = [&[file.to_str().unwrap(), "--hosts", HOSTS], more].concat();
        format!("{:#}", run(&options(&words)).unwrap_err())
    };
    assert!(refused("a", "no xml", &[]).contains("virsh dumpxml"));
    assert!(refused("b", "<network><name>n</name></network>", &[]).contains("<network>"));
    let space = "<domain type='kvm'><name>a b</name></domain>";
    assert!(refused("c", space, &[]).contains("--name"));
    let debian = std::fs::read_to_string(xml_of("debian")).unwrap();
    let to = dir.path().join("to");
    let error = refused("d", &debian, &["--to", to.to_str().unwrap()]);
    assert!(error.contains("--disk-mib vda=MIB"), "{error}");
    assert!(!to.exists());
}

#[test]
fn an_image_tells_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("cloud.img");
    let bytes = || super::domain::image_bytes(&image);
    let error = format!("{:#}", bytes().unwrap_err());
    assert!(error.contains("cannot read the image"), "{error}");
    std::fs::write(&image, "").unwrap();
    assert!(bytes().unwrap_err().to_string().contains("is empty"));
    std::fs::write(&image, "raw").unwrap();
    assert_eq!(bytes().unwrap(), 3);
    let mut header = b"QFI\xfb".to_vec();
    header.resize(24, 0);
    header.extend((3u64 << 30).to_be_bytes());
    std::fs::write(&image, header).unwrap();
    assert_eq!(bytes().unwrap(), 3 << 30);
}
