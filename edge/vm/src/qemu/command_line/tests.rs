//! What QEMU is told.

use super::*;

fn config(machine: Machine, boot: Boot) -> QemuConfig {
    QemuConfig {
        machine,
        name: "a,b".into(),
        rng: true,
        agent: true,
        ..QemuConfig::new(boot, "52:54:00:00:00:01".parse().unwrap())
    }
}

fn kernel() -> Boot {
    Boot::Kernel {
        kernel: "/k".into(),
        initrd: None,
        cmdline: String::new(),
    }
}

fn line(config: &QemuConfig) -> String {
    let fds = Inherited {
        ram: 10,
        nics: vec![11, 30],
        qmp: 12,
        console: 13,
        guest_agent: config.agent.then_some(14),
        disks: vec![20, 21, 22, 23, 24],
    };
    let words = arguments(config, Accel::Tcg, &fds).into_iter();
    let words: Vec<_> = words.map(|word| word.into_string().unwrap()).collect();
    words.join(" ")
}

#[test]
fn every_machine_gets_its_nic_and_its_conditions() {
    let microvm = line(&config(Machine::Microvm, kernel()));
    assert!(microvm.contains("virtio-net-device,netdev=net0,mac=52:54:00:00:00:01"));
    assert!(microvm.contains("-kernel /k -append console=ttyS0"));
    assert!(
        microvm.contains("guest=a,,b"),
        "a comma in a name opens no option"
    );
    let q35 = line(&config(Machine::Q35, Boot::Firmware));
    assert!(q35.contains("virtio-net-pci"));
    for (each, kind) in [(microvm, "device"), (q35, "pci")] {
        assert!(each.contains(&format!("virtio-rng-{kind},rng=rng")));
        assert!(each.contains(&format!(
            "socket,id=agent,fd=14 -device virtio-serial-{kind},"
        )));
        assert!(each.contains("guest_announce=off"));
        assert!(each.contains("memory-backend=ram,suppress-vmdesc=on"));
        assert!(each.contains("migration.send-configuration=off"));
        assert!(each.ends_with("-S"));
    }
}

#[test]
fn a_machine_says_of_itself_what_the_configuration_says() {
    let mut config = config(Machine::Q35, Boot::Firmware);
    let plain = line(&config);
    assert!(plain.contains("-M q35,") && plain.contains("-cpu max -smp 1 -m"));
    for option in ["-uuid", "-smbios", "-rtc"] {
        assert!(!plain.contains(option), "{option}: {plain}");
    }
    config.vcpus = 4;
    config.disks = vec![crate::DiskDevice {
        serial: Some("WD,1".into()),
        ..crate::DiskDevice::default()
    }];
    config.identity = crate::Identity {
        machine_type: Some("pc-q35-7.2".into()),
        cpu: Some("Haswell".into()),
        cpu_features: vec!["-hle".into()],
        topology: Some(crate::Topology {
            sockets: 1,
            dies: 1,
            cores: 2,
            threads: 2,
        }),
        uuid: Some("2d3ad8f3-0ee5-4c6f-a3ec-9e1f7a8a9c0e".into()),
        clock: ClockBase::Localtime,
        system: crate::SystemWords {
            product: Some("A, B".into()),
            serial: Some("ds=nocloud".into()),
            ..crate::SystemWords::default()
        },
    };
    let line = line(&config);
    for text in [
        "-M pc-q35-7.2,memory-backend=ram",
        "-cpu Haswell,-hle -smp 4,sockets=1,dies=1,cores=2,threads=2",
        "-uuid 2d3ad8f3-0ee5-4c6f-a3ec-9e1f7a8a9c0e",
        "-smbios type=1,product=A,, B,serial=ds=nocloud",
        "-rtc base=localtime",
        "serial=WD,,1,",
    ] {
        assert!(line.contains(text), "{text}: {line}");
    }
}

#[test]
fn disks_are_on_the_bus_asked_for() {
    let disk = |bus| crate::DiskDevice {
        bus,
        read_only: bus == DiskBus::Scsi,
        ..crate::DiskDevice::default()
    };
    let buses = [
        DiskBus::Virtio,
        DiskBus::Scsi,
        DiskBus::Ide,
        DiskBus::Ide,
        DiskBus::Ide,
    ];
    let mut config = config(Machine::Q35, Boot::Firmware);
    config.disks = buses.map(disk).to_vec();
    for (machine, expected) in [
        (
            Machine::Q35,
            [
                "virtio-blk-pci,",
                "virtio-scsi-pci,",
                "bus=ide.0,unit=0",
                "bus=ide.2,unit=0",
            ],
        ),
        (
            Machine::Pc,
            [
                "virtio-blk-pci,",
                "virtio-scsi-pci,",
                "bus=ide.0,unit=1",
                "bus=ide.1,unit=0",
            ],
        ),
    ] {
        config.machine = machine;
        let line = line(&config);
        for text in expected {
            assert!(line.contains(text), "{text}: {line}");
        }
        assert!(line.contains("node-name=disk1-0,server.type=fd,server.str=21,read-only=on"));
        assert!(line.contains("drive=disk0,serial=plover-0,werror=stop,rerror=stop,bootindex=0"));
        assert!(!line.contains("-kernel") && !line.contains("pflash"));
    }
    config.firmware = Firmware::Uefi;
    assert!(line(&config).contains("suppress-vmdesc=on,pflash0=uefi-code,pflash1=uefi-variables "));
    config.firmware = Firmware::UefiSecure;
    assert!(line(&config).contains("pflash1=uefi-variables,smm=on "));
    config.firmware = Firmware::Bios;
    config.machine = Machine::Microvm;
    config.boot = kernel();
    config.disks.truncate(1);
    let line = line(&config);
    assert!(line.contains("virtio-blk-device,drive=disk0") && !line.contains("bootindex"));
}

/// QEMU says nothing of a guest that sleeps.
#[test]
fn no_guest_suspends_to_memory() {
    let sleeps = |machine| line(&config(machine, kernel()));
    assert!(sleeps(Machine::Q35).contains("-global ICH9-LPC.disable_s3=1 "));
    assert!(sleeps(Machine::Pc).contains("-global PIIX4_PM.disable_s3=1 "));
    assert!(!sleeps(Machine::Microvm).contains("disable_s3"));
}
