//! `plover tap` in a network namespace of its own.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TAP: &str = "guest0";

/// A namespace with the bridge of the example.
struct Namespace(String);

impl Namespace {
    fn new() -> Self {
        let name = format!("plover-tap-{}", std::process::id());
        let added = Command::new("ip").args(["netns", "add", &name]).status();
        assert!(added.expect("ip starts").success(), "as root");
        Self(name)
    }

    fn run(&self, command: &[&str]) -> Output {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.0]).args(command);
        inside.output().expect("ip starts")
    }

    fn does(&self, command: &[&str]) -> String {
        let ended = self.run(command);
        let errors = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{command:?}: {errors}");
        String::from_utf8(ended.stdout).expect("text")
    }

    fn plover(&self, config: &Path, options: &[&str]) -> Result<(), String> {
        let plover = env!("CARGO_BIN_EXE_plover");
        let config = config.to_str().expect("text");
        let command = [&[plover, "tap", "--config", config], options].concat();
        let ended = self.run(&command);
        let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
        ended.status.success().then_some(()).ok_or(errors)
    }

    /// What `ip` says of the TAP, if it is there.
    fn tap(&self) -> Option<Value> {
        let all = self.does(&["ip", "-json", "link"]);
        let all: Vec<Value> = serde_json::from_str(&all).expect("JSON");
        all.into_iter().find(|link| link["ifname"] == TAP)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// The example's configuration for a group of this name.
fn configuration(folder: &Path, name: &str) -> PathBuf {
    let file = folder.join(format!("{name}.toml"));
    let example = include_str!("../package/shop-db.toml");
    std::fs::write(&file, example.replace("shop-db", name)).expect("a file is written");
    file
}

#[test]
fn it_makes_a_port_of_the_bridge_and_touches_no_device_of_others() {
    let net = Namespace::new();
    let folder = tempfile::tempdir().expect("a folder");
    let [shop, mail] = ["shop", "mail"].map(|name| configuration(folder.path(), name));
    let (user, remove) = (["--user", "nobody"], ["--remove"]);
    let refused = net.plover(&shop, &user).unwrap_err();
    assert!(refused.contains("no bridge 'br0'"), "{refused}");
    assert!(net.tap().is_none());

    net.does(&["ip", "link", "add", "br0", "type", "bridge"]);
    net.does(&["ip", "link", "set", "br0", "mtu", "1400", "up"]);
    // Twice, as after a crash.
    for _ in 0..2 {
        net.plover(&shop, &user).unwrap();
        let tap = net.tap().expect("it is there");
        assert_eq!((&tap["master"], &tap["mtu"]), (&"br0".into(), &1400.into()));
        assert_eq!(tap["ifalias"], "plover shop");
        assert!(tap["address"].as_str().unwrap().starts_with("fe:"), "{tap}");
    }
    let refused = net.plover(&mail, &user).unwrap_err();
    assert!(refused.contains("another guest's, shop"), "{refused}");
    net.plover(&mail, &remove).unwrap();
    assert!(net.tap().is_some());
    net.plover(&shop, &remove).unwrap();
    assert!(net.tap().is_none());

    let made = ["ip", "tuntap", "add", TAP, "mode", "tap", "user", "nobody"];
    net.does(&made);
    net.plover(&shop, &user).unwrap();
    let refused = net.plover(&shop, &[]).unwrap_err();
    assert!(refused.contains("is not root's"), "{refused}");
    net.plover(&shop, &remove).unwrap();
    let tap = net.tap().expect("it is the operator's");
    assert!(tap["master"].is_null(), "{tap}");
}
