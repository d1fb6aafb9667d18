use super::*;
use std::os::unix::fs::PermissionsExt;

const IDS: [ReplicaId; 2] = [ReplicaId(0), ReplicaId(1)];

fn private() -> PrivateKey {
    PrivateKey::generate().unwrap()
}

#[test]
fn a_private_key_is_its_owners_and_groups_and_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.key");
    let key = private();
    key.write_new(&path).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o037, 0);
    assert_eq!(PrivateKey::read(&path).unwrap().public(), key.public());
    assert!(matches!(
        private().write_new(&path),
        Err(KeyError::File { .. })
    ));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let error = PrivateKey::read(&path).unwrap_err().to_string();
    assert!(error.contains("chmod 640"), "{error}");
    fs::write(&path, key.public().to_string()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(
        PrivateKey::read(&path),
        Err(KeyError::Form { .. })
    ));
}

#[test]
fn a_public_key_is_one_word_and_a_private_one_is_not_taken_for_it() {
    let key = private().public();
    assert_eq!(key.to_string().parse(), Ok(key));
    assert_eq!(PublicKey::from_spki(&key.to_spki()), Some(key));
    let short = &key.to_string()[..70];
    let signed = format!("ed25519:{}", "+1".repeat(32));
    for text in ["", "ed25519:", short, &signed, &"ä".repeat(36)] {
        assert!(text.parse::<PublicKey>().is_err(), "{text}");
    }
    let error = format!("{PRIVATE}00").parse::<PublicKey>().unwrap_err();
    assert!(error.contains("must not leave"), "{error}");
}

#[test]
fn the_trust_file_is_read_again_and_a_broken_one_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let [key_file, file] = ["k", "t"].map(|name| dir.path().join(name));
    let [own, old, new] = [private(), private(), private()];
    let [old, new] = [old.public(), new.public()];
    own.write_new(&key_file).unwrap();
    let load = || Keys::load(&key_file, &file, IDS[0], IDS);
    assert!(load().unwrap_err().to_string().contains("plover key trust"));
    assert!(trust(&file, IDS[0].into(), own.public()).unwrap());
    assert!(matches!(
        load(),
        Err(KeyError::Missing {
            peer: ReplicaId(1),
            ..
        })
    ));
    assert!(trust(&file, IDS[1].into(), old).unwrap());
    assert!(
        !trust(&file, IDS[1].into(), old).unwrap(),
        "it is trusted already"
    );
    let keys = load().unwrap();
    assert!(keys.trusts(IDS[1], old) && !keys.trusts(IDS[0], old) && !keys.trusts(IDS[1], new));
    trust(&file, IDS[1].into(), new).unwrap();
    assert!(keys.trusts(IDS[1], old) && keys.trusts(IDS[1], new), "both");
    for broken in ["1 nonsense", "", "# nothing\n"] {
        fs::write(&file, broken).unwrap();
        assert!(keys.trusts(IDS[1], old), "as before");
    }
    let aside = dir.path().join("aside");
    fs::rename(&file, &aside).unwrap();
    assert!(keys.trusts(IDS[1], old), "as before");
    fs::write(&aside, format!("# a note\n\n 1  {new}")).unwrap();
    fs::rename(&aside, &file).unwrap();
    assert!(!keys.trusts(IDS[1], old) && keys.trusts(IDS[1], new));
    assert!(
        trust(&file, IDS[0].into(), old).unwrap(),
        "no newline stood at the end"
    );
    let error = load().unwrap_err();
    assert!(matches!(error, KeyError::Another { .. }), "{error}");
}

/// A part of it would be trusted, and the rest would be lost when a key is added.
#[test]
fn a_trust_file_that_is_too_long_is_not_read_in_part() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("t");
    let line = format!("client {}\n", private().public());
    let text = line.repeat((2 << 20) / line.len());
    fs::write(&file, &text).unwrap();
    let error = trust(&file, IDS[0].into(), private().public()).unwrap_err();
    assert!(error.to_string().contains("more than"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn a_broken_trust_file_names_its_line() {
    for (text, word) in [
        ("#\nx ed25519:", "line 2: 'x' is no replica's id"),
        ("1 ed25519:12", "64 hexadecimal digits"),
        ("1", "an id and"),
        ("1 2 3", "a line has"),
    ] {
        let error = parse(Path::new("/t"), text).unwrap_err().to_string();
        let word = word.replace("an id and", "a line has");
        assert!(
            error.contains(&word) && error.starts_with("/t: line"),
            "{error}"
        );
    }
}

#[test]
fn a_signature_counts_for_its_signer_its_purpose_and_its_message() {
    let [own, other] = [private(), private()];
    let trusted = vec![(IDS[0], own.public()), (IDS[1], other.public())];
    let keys = Keys::new(own, trusted);
    let signature = keys.sign("test", b"message");
    assert!(keys.is_signed(IDS[0], "test", b"message", &signature));
    assert!(!keys.is_signed(IDS[1], "test", b"message", &signature));
    assert!(!keys.is_signed(IDS[0], "tests", b"message", &signature));
    assert!(!keys.is_signed(IDS[0], "test", b"messages", &signature));
    assert!(!keys.is_signed(IDS[0], "test", b"message", &signature[1..]));
}
