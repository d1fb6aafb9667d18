//! The networks of both sides, as arguments of QEMU.

use plover_lab::net::{TAP, replica_ip};

/// `docs/COLO-FT.txt`: the primary's sockets and filters.
pub(super) fn primary() -> Vec<String> {
    let here = replica_ip(0);
    let serve =
        |id: &str, port: u16| format!("socket,id={id},host={here},port={port},server=on,wait=off");
    let connect = |id: &str, port: u16| format!("socket,id={id},host={here},port={port}");
    let mut words = vec![
        "-netdev".to_owned(),
        format!("tap,id=net,ifname={TAP},script=no,downscript=no,vhost=off,vnet_hdr=off"),
    ];
    for chardev in [
        serve("mirror", 9003),
        serve("theirs", 9004),
        serve("ours", 9001),
        connect("ours-end", 9001),
        serve("out", 9005),
        connect("out-end", 9005),
    ] {
        words.extend(["-chardev".to_owned(), chardev]);
    }
    for object in [
        "filter-mirror,id=m0,netdev=net,queue=tx,outdev=mirror",
        "filter-redirector,id=r0,netdev=net,queue=rx,indev=out",
        "filter-redirector,id=r1,netdev=net,queue=rx,outdev=ours",
        "iothread,id=compare-thread",
        "colo-compare,id=c0,primary_in=ours-end,secondary_in=theirs,outdev=out-end,\
         iothread=compare-thread",
    ] {
        words.extend(["-object".to_owned(), object.to_owned()]);
    }
    words
}

/// The secondary's: everything goes through the filters. Its NIC is on a network with no one else,
/// because a NIC without a network drops its input.
pub(super) fn secondary() -> Vec<String> {
    let (there, here) = (replica_ip(0), replica_ip(1));
    let connect = |id: &str, port: u16| format!("socket,id={id},host={there},port={port}");
    let mut words = vec![
        "-netdev".to_owned(),
        format!("socket,id=net,udp={here}:9,localaddr={here}:9099"),
    ];
    for chardev in [connect("mirrored", 9003), connect("outputs", 9004)] {
        words.extend(["-chardev".to_owned(), chardev]);
    }
    for object in [
        "filter-redirector,id=f1,netdev=net,queue=tx,indev=mirrored",
        "filter-redirector,id=f2,netdev=net,queue=rx,outdev=outputs",
        "filter-rewriter,id=w0,netdev=net,queue=all",
    ] {
        words.extend(["-object".to_owned(), object.to_owned()]);
    }
    words.extend([
        "-incoming".to_owned(),
        format!("tcp:{}:9998", replica_ip(1)),
    ]);
    words
}
