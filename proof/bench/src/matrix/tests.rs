use super::*;

fn options(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options {
        quick: false,
        full: false,
        only: Vec::new(),
        rounds: None,
        seconds: None,
        out: None,
        lab: Vec::new(),
    };
    change(&mut options);
    options
}

#[test]
fn quick_is_bounded_and_what_is_asked_for_is_not() {
    let known = ["none", "vsmr", "plan1"].map(String::from);
    let plan = |options: Options| super::plan(&options, &known, &known[..2]).unwrap();
    let quick = plan(options(|_| {}));
    assert_eq!((quick.rounds, quick.policies.len()), (2, 2));
    assert!(quick.budget.is_some());
    assert!(quick.workloads.contains(&"redis") && !quick.workloads.contains(&"nginx"));
    let full = plan(options(|o| o.full = true));
    assert_eq!(
        (full.rounds, full.workloads.len()),
        (5, workload::ALL.len())
    );
    assert!(full.budget.is_none());
    let only = plan(options(|o| o.only = vec!["nginx/plan1".parse().unwrap()]));
    assert_eq!(only.turns().len(), 2, "what quick leaves out can be named");
    let cells = ["nginx/vsmr", "nginx/vsmr+subpages=false"].map(|cell| cell.parse().unwrap());
    let variants = plan(options(|o| o.only = cells.into()));
    assert_eq!(
        variants.turns().len(),
        4,
        "a variant is a policy of its own"
    );
    let wrong = options(|o| o.only = vec!["redis/paxos".parse().unwrap()]);
    assert!(super::plan(&wrong, &known, &known).is_err());
}

#[test]
fn a_workload_without_its_client_is_left_out_before_anything_is_measured() {
    let known = ["none".to_owned()];
    let of = |cells: &[&str]| {
        let only = cells.iter().map(|cell| cell.parse().unwrap()).collect();
        super::plan(&options(|o| o.only = only), &known, &known).unwrap()
    };
    let mut both = of(&["redis", "nginx"]);
    leave_out_without_client(&mut both, |_| false).unwrap();
    let turns = both.turns().into_iter().flat_map(|turn| turn.workloads);
    let names: BTreeSet<_> = turns.map(|it| it.name).collect();
    assert_eq!(names, BTreeSet::from(["redis"]));
    let error = leave_out_without_client(&mut of(&["nginx"]), |_| false).unwrap_err();
    assert!(error.to_string().contains("wrk"), "{error}");
    leave_out_without_client(&mut of(&["nginx"]), |program| program == "wrk").unwrap();
}
