use super::cib::Cib;
use super::guests::{self, Guest, Hosts};
use super::render;
use super::status::FleetStatus;
use std::path::Path;

const CMAP: &str = "nodelist.local_node_pos (u32) = 0\n\
nodelist.node.0.name (str) = alpha\nnodelist.node.0.nodeid (u32) = 1\nnodelist.node.0.ring0_addr (str) = 192.0.2.10\n\
nodelist.node.1.name (str) = beta\nnodelist.node.1.ring0_addr (str) = 198.51.100.11\nnodelist.node.1.ring1_addr (str) = 192.0.2.11\n\
nodelist.node.2.name (str) = gamma\nnodelist.node.2.ring0_addr (str) = 192.0.2.12\n";

const EMPTY: &str = "<cib><configuration><nodes><node id=\"1\" uname=\"alpha\"/><node id=\"2\" uname=\"beta\"/>\
<node id=\"3\" uname=\"gamma\"/><node id=\"4\" uname=\"delta\"/></nodes><resources/><constraints/></configuration></cib>";

/// A cluster with these attributes of nodes: node, key and value.
fn with_attributes<'a>(attributes: impl IntoIterator<Item = (&'a str, String, String)>) -> String {
    let mut cib = EMPTY.to_owned();
    for (node, key, value) in attributes {
        let begin = format!("uname=\"{node}\"/>");
        let pair = format!("<nvpair id=\"{node}-{key}\" name=\"{key}\" value=\"{value}\"/>");
        if cib.contains(&begin) {
            let node =
                format!("uname=\"{node}\"><instance_attributes></instance_attributes></node>");
            cib = cib.replace(&begin, &node);
        }
        let begin = format!("uname=\"{node}\"><instance_attributes>");
        assert!(cib.contains(&begin), "{node} is no node");
        cib = cib.replace(&begin, &(begin.clone() + &pair));
    }
    cib
}

/// Writes a guest's configuration into a folder.
fn write(folder: &Path, file: &str, name: &str, replicas: u8) {
    let addresses =
        (0..replicas).map(|id| format!("{{ id = {id}, address = \"192.0.2.1{id}:7700\" }},\n"));
    let policy = if replicas == 2 { "colo" } else { "hybrid" };
    let text = format!(
        "[group]\nname = \"{name}\"\nme = 0\nplaintext = true\nreplica = [\n{}]\n\
         [guest]\nmachine = \"q35\"\nmem_mib = 500\nmac = \"52:54:00:00:00:01\"\n\
         [[disk]]\npath = \"/images/{name}.raw\"\nsize_mib = 64\n[net]\ntap = \"guest0\"\n\
         [policy]\nname = \"{policy}\"\n\
         [paths]\nstate_dir = \"/var/lib/plover/{name}\"\nrun_dir = \"/run/plover/{name}\"\n",
        addresses.collect::<String>()
    );
    std::fs::write(folder.join(file), text).unwrap();
}

/// The guests of a folder, and what the cluster `live` lacks of them.
fn plan(guests: &[Guest], live: &str) -> String {
    let wanted = render::all(guests, &Hosts::new(CMAP, &[])).unwrap();
    let plan = Cib::parse(live.into()).plan(&wanted, guests).unwrap();
    assert_eq!(
        plan.is_empty(),
        plan.to_string()
            .lines()
            .all(|line| ["as it is", "stays", "cannot fence"]
                .iter()
                .any(|it| line.contains(it)))
    );
    plan.to_string()
}

/// A cluster that has all that is wanted.
fn with_all(guests: &[Guest]) -> String {
    let wanted = render::all(guests, &Hosts::new(CMAP, &[])).unwrap();
    let members = wanted.iter().flat_map(|it| &it.members).map(|it| {
        let key = crate::capacity::of_member(&it.guest);
        (&it.node[..], key, it.place.to_string())
    });
    let (resources, constraints): (String, String) = wanted
        .iter()
        .map(|it| (&it.resources[..], &it.constraints[..]))
        .unzip();
    with_attributes(members)
        .replace(
            "<resources/>",
            &format!("<resources>{resources}</resources>"),
        )
        .replace(
            "<constraints/>",
            &format!("<constraints>{constraints}</constraints>"),
        )
}

#[test]
fn what_the_cluster_lacks_is_said_and_what_an_operator_has_added_stays() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "shop.toml", "shop", 3);
    let guests = guests::read(folder.path()).unwrap();
    let new = plan(&guests, EMPTY);
    for part in [
        "shop-clone is new",
        "shop-on-alpha is new",
        "shop-on-beta is new",
        "shop-on-gamma is new",
    ] {
        assert!(new.contains(part), "{part}: {new}");
    }
    let whole = with_all(&guests);
    assert_eq!(plan(&guests, &whole), "shop: as it is\n");
    let stopped = whole.replace(
        "<meta_attributes id=\"shop-clone-meta\">",
        "<meta_attributes id=\"shop-clone-meta\"><nvpair id=\"x\" name=\"target-role\" value=\"Stopped\"/>",
    );
    assert_eq!(plan(&guests, &stopped), "shop: as it is\n");
    let slower = whole.replace("timeout=\"130s\"", "timeout=\"20s\"");
    assert!(plan(&guests, &slower).contains("shop-stop: timeout becomes 130s, is 20s"));
}

#[test]
fn a_host_that_was_replaced_is_no_place_any_more_and_other_guests_stay() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "shop.toml", "shop", 3);
    write(folder.path(), "mail.toml", "shop-on", 3);
    let both = guests::read(folder.path()).unwrap();
    let live = with_all(&both).replace(
        "shop-on-gamma\" rsc=\"shop-clone\" node=\"gamma",
        "shop-on-delta\" rsc=\"shop-clone\" node=\"delta",
    );
    std::fs::remove_file(folder.path().join("mail.toml")).unwrap();
    let shop = guests::read(folder.path()).unwrap();
    let told = plan(&shop, &live);
    assert!(told.contains("shop: shop-on-gamma is new"), "{told}");
    assert!(told.contains("shop-on-delta: is removed"), "{told}");
    assert!(
        told.contains("shop-on: is not in the folder, and stays"),
        "{told}"
    );
    assert!(
        !told.contains("shop-on-on"),
        "the places of the other guest are its own: {told}"
    );
}

#[test]
fn a_group_that_cannot_split_needs_no_quorum_to_start_a_replica_and_another_one_does() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "shop.toml", "shop", 3);
    write(folder.path(), "two.toml", "two", 2);
    let guests = guests::read(folder.path()).unwrap();
    let wanted = render::all(&guests, &Hosts::new(CMAP, &[])).unwrap();
    let [shop, two] = &wanted[..] else {
        panic!("{wanted:?}");
    };
    let needs_nothing = "id=\"shop-meta-requires\" name=\"requires\" value=\"nothing\"";
    assert!(shop.resources.contains(needs_nothing));
    assert!(!two.resources.contains("two-meta-requires"));
    // Without fencing two replicas wait for no word of each other's end.
    assert!(!two.resources.contains("notify"));
    let file = folder.path().join("two.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        text.replace("plaintext", "fencing = true\nplaintext"),
    )
    .unwrap();
    let guests = guests::read(folder.path()).unwrap();
    let fenced = &render::all(&guests, &Hosts::new(CMAP, &[])).unwrap()[1];
    assert!(fenced.resources.contains("two-meta-requires"));
    let told = plan(&guests, EMPTY);
    assert!(
        told.contains("two: has group.fencing, and this cluster cannot fence"),
        "{told}"
    );
    let device = "<resources><primitive id=\"p\" class=\"stonith\" type=\"ipmi\"/></resources>";
    assert!(!plan(&guests, &EMPTY.replace("<resources/>", device)).contains("cannot fence"));
    let notifies = "id=\"two-clone-meta-notify\" name=\"notify\" value=\"true\"";
    assert!(fenced.resources.contains(notifies));
    let max = "id=\"two-clone-meta-clone-max\" name=\"clone-max\" value=\"2\"";
    assert!(two.resources.contains(max));
    assert!(!two.constraints.contains("two-on-gamma"));
}

#[test]
fn replicas_run_on_the_nodes_of_members_alone_and_spare_hosts_are_written_down() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "shop.toml", "shop", 3);
    let file = folder.path().join("shop.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let spare = "plaintext = true\nspare = [{ id = 3, address = \"192.0.2.13:7700\" }]\nreplace_after_s = 60";
    std::fs::write(&file, text.replace("plaintext = true", spare)).unwrap();
    let guests = guests::read(folder.path()).unwrap();
    let cmap = format!(
        "{CMAP}nodelist.node.3.name (str) = delta\nnodelist.node.3.ring0_addr (str) = 192.0.2.13\n"
    );
    let wanted = render::all(&guests, &Hosts::new(&cmap, &[])).unwrap();
    let max = "name=\"clone-max\" value=\"4\"";
    let shop = &wanted[0];
    assert!(shop.resources.contains(max), "{}", shop.resources);
    for part in [
        "id=\"shop-on-delta\"",
        "score=\"-INFINITY\"",
        "attribute=\"plover-shop-member\" operation=\"not_defined\"",
    ] {
        assert!(shop.constraints.contains(part), "{}", shop.constraints);
    }
    let told = |live: &str| {
        let plan = Cib::parse(live.into()).plan(&wanted, &guests).unwrap();
        plan.to_string()
    };
    let new = told(EMPTY);
    for part in [
        "alpha: is known as the host of replica 0",
        "gamma: is known as the host of replica 2",
        "delta: is known as a spare host, 3@192.0.2.13:7700",
    ] {
        assert!(new.contains(part), "{new}");
    }
    assert!(!new.contains("delta: is known as the host"), "{new}");
    let joins_later = told(&EMPTY.replace("<node id=\"3\" uname=\"gamma\"/>", ""));
    assert!(
        joins_later.contains("gamma: the cluster has never seen this node"),
        "{joins_later}"
    );
    assert!(!joins_later.contains("gamma: is known"), "{joins_later}");
    let one = told(&with_attributes([(
        "alpha",
        "plover-shop-member".into(),
        "0, 948 MiB".into(),
    )]));
    assert!(!one.contains("alpha: is known"), "{one}");
    assert!(
        one.contains("gamma: is known as the host of replica 2"),
        "{one}"
    );
    let spare_on = |node: &'static str, at: &str| {
        told(&with_attributes([(
            node,
            "plover-shop-spare".into(),
            at.into(),
        )]))
    };
    let same = spare_on("delta", "3@192.0.2.13:7700");
    assert!(!same.contains("spare host"), "{same}");
    let other = spare_on("delta", "5@192.0.2.13:7700");
    assert!(
        other.contains("delta: is known as a spare host, 3@"),
        "{other}"
    );
    let former = spare_on("alpha", "5@192.0.2.10:7700");
    assert!(
        former.contains("alpha: its attribute plover-shop-spare is removed"),
        "{former}"
    );
    let own = text
        .replace("plaintext = true", spare)
        .replace("me = 0", "me = 3");
    std::fs::write(&file, own).unwrap();
    let error = guests::read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("the file of a spare host"), "{error}");
}

#[test]
fn a_guest_whose_members_are_others_than_its_file_says_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "shop.toml", "shop", 3);
    let guests = guests::read(folder.path()).unwrap();
    let key = || "plover-shop-member".to_owned();
    let told = |node: &str, value: &str, resources: &str| {
        let cib = with_attributes([(node, key(), value.to_owned())]);
        let wanted = render::all(&guests, &Hosts::new(CMAP, &[])).unwrap();
        let cib = Cib::parse(cib.replace("<resources/>", resources));
        let plan = cib.plan(&wanted, &guests).unwrap();
        (plan.to_string(), plan.is_empty(), plan.is_up_to_date())
    };
    let has_it = "<resources><clone id=\"shop-clone\"><primitive id=\"shop\" provider=\"plover\" type=\"guest\"/>\
                  </clone></resources>";
    // 0 was replaced by 3 since. Or the file names it elsewhere.
    for (node, value) in [
        ("delta", "3, 948 MiB"),
        ("delta", "0, 948 MiB"),
        ("alpha", "?"),
    ] {
        let (words, is_empty, is_up_to_date) = told(node, value, has_it);
        assert!(words.starts_with("shop: NOT CHANGED: replica "), "{words}");
        assert!(words.contains(&format!("is a member on {node}")), "{words}");
        assert!(
            is_empty && !is_up_to_date && words.lines().count() == 1,
            "{words}"
        );
    }
    let (words, _, is_up_to_date) = told("delta", "3, 948 MiB, given 7", has_it);
    assert!(is_up_to_date, "it is no member yet: {words}");
    let (words, ..) = told("alpha", "0, 500 MiB", has_it);
    assert!(
        words.contains("alpha: is known as the host of replica 0, which takes 948"),
        "{words}"
    );
    // A guest of this name was removed.
    let (words, _, is_up_to_date) = told("delta", "3, 948 MiB", "<resources/>");
    assert!(
        words.contains("delta: its attribute plover-shop-member is removed"),
        "{words}"
    );
    assert!(
        words.contains("alpha: is known as the host of replica 0"),
        "{words}"
    );
    assert!(is_up_to_date);
    let (words, ..) = told("alpha", "3, 948 MiB", "<resources/>");
    assert!(!words.contains("is removed"), "{words}");
}

#[test]
fn members_that_do_not_fit_on_a_host_are_told() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "shop.toml", "shop", 3);
    write(folder.path(), "mail.toml", "mail", 3);
    let guests = guests::read(folder.path()).unwrap();
    // Each takes 500 + 256 + 192 MiB.
    let has = [("alpha", 2 * 948), ("beta", 2 * 948 - 1)];
    let has = has.map(|(node, mib)| (node, "plover_memory_mib".to_owned(), mib.to_string()));
    let told = plan(&guests, &with_attributes(has));
    assert!(
        told.contains("beta: its members need 1896 MiB, and it has 1895"),
        "{told}"
    );
    for well in ["alpha: its members", "gamma: its members"] {
        assert!(!told.contains(well), "{told}");
    }
}

#[test]
fn mistakes_in_the_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |words: &str| {
        let error = guests::read(folder.path()).map(|_| ()).unwrap_err();
        assert!(format!("{error:#}").contains(words), "{error:#}");
    };
    refused("no guest is in");
    write(folder.path(), "shop.toml", "shop", 3);
    write(folder.path(), "shop-1.toml", "shop", 3);
    refused("are both of the group \"shop\"");
    write(folder.path(), "shop-1.toml", "shop-spare", 3);
    refused("\"shop-spare\" is the name of something that the cluster has of the group \"shop\"");
    std::fs::write(folder.path().join("shop-1.toml"), "[group]\n").unwrap();
    refused("shop-1.toml");
}

#[test]
fn a_host_that_is_no_node_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "shop.toml", "shop", 3);
    let guests = guests::read(folder.path()).unwrap();
    let without = CMAP.replace("192.0.2.12", "192.0.2.13");
    let error = render::all(&guests, &Hosts::new(&without, &[])).unwrap_err();
    assert!(
        error.to_string().contains("--node 192.0.2.12=NODE"),
        "{error}"
    );
    let said = ["192.0.2.12=gamma".parse().unwrap()];
    assert!(render::all(&guests, &Hosts::new(&without, &said)).is_ok());
    let twice = ["192.0.2.12=alpha".parse().unwrap()];
    let error = render::all(&guests, &Hosts::new(&without, &twice)).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("two of its replicas are on the node alpha")
    );
    for wrong in ["gamma", "192.0.2.12=", "x=gamma", "192.0.2.12=a\"b"] {
        assert!(wrong.parse::<guests::NodeOf>().is_err(), "{wrong}");
    }
}

#[test]
fn all_guests_of_the_cluster_are_on_one_page() {
    // As crm_mon 2.1.5 prints it, shortened.
    let instance = |of: &str, node: &str, more: &str| {
        format!(
            "<resource id=\"{of}\" resource_agent=\"ocf:plover:guest\" role=\"Started\" active=\"true\" {more}>\
             <node name=\"{node}\" id=\"1\" cached=\"true\"/></resource>"
        )
    };
    let attribute =
        |name: &str, value: &str| format!("<attribute name=\"{name}\" value=\"{value}\"/>");
    let cluster = format!(
        "<pacemaker-result><resources><clone id=\"shop-clone\">{}{}\
         <resource id=\"shop\" resource_agent=\"ocf:plover:guest\" role=\"Stopped\" active=\"false\"/></clone>\
         <clone id=\"ping-clone\"><resource id=\"ping\" resource_agent=\"ocf:pacemaker:ping\"/></clone>\
         <clone id=\"mail-clone\">{}<resource id=\"mail\" resource_agent=\"ocf:plover:guest\" orphaned=\"true\"/></clone></resources>\
         <node_attributes><node name=\"alpha\">{}{}</node><node name=\"beta\">{}{}</node></node_attributes></pacemaker-result>",
        instance("shop", "alpha", ""),
        instance("shop", "beta", "blocked=\"true\""),
        instance("mail", "beta", ""),
        attribute("plover-shop", "leader"),
        attribute("plover-shop-protected", "yes")
            + &attribute(
                "plover-shop-lacks",
                "replica 2 is lost: delta gets the place"
            ),
        attribute("plover-shop", "secondary"),
        attribute("plover-mail", ""),
    );
    let member = |node: &'static str, guest: &str| {
        (node, format!("plover-{guest}-member"), "0, 1 MiB".into())
    };
    let cib = with_attributes([
        member("alpha", "shop"),
        member("beta", "shop"),
        member("gamma", "shop"),
        member("beta", "mail"),
    ]);
    let status = FleetStatus::of(&cluster, &cib, &[]).unwrap();
    let told = status.to_string();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert!(
        lines[1].starts_with("shop   protected  alpha leader, beta secondary  beta: not stopped"),
        "{told}"
    );
    assert!(
        lines[2].starts_with("mail   NO LEADER  beta not asked yet"),
        "{told}"
    );
    let cut_off = cluster.replace(
        &attribute("plover-shop", "secondary"),
        &(attribute("plover-shop", "leader") + &attribute("plover-shop-protected", "no")),
    );
    for swapped in [
        cut_off.clone(),
        cut_off
            .replace("alpha", "omega")
            .replace("\"beta\"", "\"alpha\""),
    ] {
        let status = FleetStatus::of(&swapped, &cib, &[]).unwrap();
        let shop = status.to_string();
        let shop = shop.lines().find(|line| line.starts_with("shop")).unwrap();
        assert!(
            shop.starts_with("shop   NOT PROTECTED") && shop.contains(": led, and so did"),
            "{shop}"
        );
        let ills = status.ills();
        assert!(ills.iter().any(|ill| ill.contains("so did")), "{ills:?}");
    }
    let ills = Vec::from_iter(status.ills());
    let is_missing = |guest: &str| {
        let begin = format!("{guest}: no replica on ");
        let mut missing = ills.iter().filter_map(|it| it.strip_prefix(&begin));
        missing
            .next()
            .map(|it| it.split(':').next().unwrap_or_default().to_owned())
    };
    assert_eq!(is_missing("shop").as_deref(), Some("gamma"), "{ills:?}");
    assert_eq!(is_missing("mail"), None, "{ills:?}");
    let lacks = "replica 2 is lost: delta gets the place";
    assert!(ills.contains(&format!("shop: {lacks}")), "{ills:?}");
    assert!(lines[1].contains(lacks), "{told}");
    assert!(
        FleetStatus::of("<pacemaker-result/>", EMPTY, &[])
            .unwrap()
            .to_string()
            .contains("plover fleet apply")
    );
}
