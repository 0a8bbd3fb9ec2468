//! Sockets that lead out of a sandbox. Some families belong to no network namespace.

use std::process::Command;

use porch_fn_tests::image_user::ImageUser;

use super::{NAME, in_all_ways, perl, stderr, stdout};

/// Family, kind and protocol of sockets that a function may not have.
const REFUSED: [(&str, u32, u32, u32); 12] = [
    ("AF_VSOCK stream", 40, 1, 0),
    ("AF_VSOCK datagram", 40, 2, 0),
    ("AF_ALG", 38, 5, 0),
    ("AF_KEY", 15, 3, 2),
    ("AF_PACKET", 17, 2, 0),
    ("AF_BLUETOOTH", 31, 3, 1),
    ("netlink audit", 16, 3, 9),
    ("netlink xfrm", 16, 3, 6),
    ("netlink netfilter", 16, 3, 12),
    ("netlink uevent", 16, 3, 15),
    ("netlink diag", 16, 3, 4),
    ("netlink generic", 16, 3, 16),
];
const ALLOWED: [(&str, u32, u32, u32); 6] = [
    ("AF_UNIX", 1, 1, 0),
    ("AF_INET stream", 2, 1, 0),
    ("AF_INET datagram", 2, 2, 0),
    ("AF_INET6", 10, 1, 0),
    ("netlink route", 16, 3, 0),
    ("netlink route, raw and closed on exec", 16, 2 | 0o2_000_000, 0),
];

/// A Perl program that tries to create these sockets.
fn tries(sockets: &[(&str, u32, u32, u32)]) -> String {
    let line = |(name, family, kind, protocol): &(&str, u32, u32, u32)| {
        format!(
            "print STDERR (socket(my $s{family}_{kind}_{protocol}, {family}, {kind}, {protocol}) ? \
             qq({name}: created\\n) : qq({name}: $!\\n));\n"
        )
    };
    sockets.iter().map(line).collect()
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn only_ordinary_sockets_are_created() {
    let here = Command::new("perl").args(["-e", &tries(&REFUSED)]).output().unwrap();
    for line in stderr(&here).lines().filter(|line| !line.ends_with("created")) {
        eprintln!("not shown: this machine refuses {line}");
    }
    for user in ImageUser::all() {
        user.import(NAME, &perl(&(tries(&REFUSED) + &tries(&ALLOWED)))).await;
        for (way, output) in in_all_ways(&user).await {
            for (name, ..) in REFUSED {
                assert!(output.contains(&format!("{name}: ")), "{way}: {output}");
                assert!(!output.contains(&format!("{name}: created")), "{way}: {output}");
            }
            for (name, ..) in ALLOWED {
                assert!(output.contains(&format!("{name}: created")), "{way}: {output}");
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs the built binaries; tests/run runs it"]
async fn with_the_machines_network_no_unix_socket_can_have_another_peer() {
    // A datagram socket of a pair can be bound and connected again, also to a name of the machine.
    let program = "for my $kind (1, 2, 3, 5) { print STDOUT $kind, socketpair(my $a, my $b, 1, $kind, 0) ? \
                   qq( created\n) : qq( $!\n) }";
    for user in ImageUser::all() {
        user.import(NAME, &perl(program)).await;
        for (network, refused) in [("none", &[][..]), ("host", &["2", "3"])] {
            let ended = user.run(&["run", "--network", network, NAME], b"").await;
            let output = stdout(&ended);
            assert_eq!(output.lines().count(), 4, "{network}: {ended:?}");
            for line in output.lines() {
                let is_refused = refused.iter().any(|kind| line.starts_with(kind));
                assert_eq!(!line.ends_with("created"), is_refused, "{network}: {output}");
            }
        }
    }
}
