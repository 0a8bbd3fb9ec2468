//! The image's USER, by Docker's rules. No I/O.

use serde::{Deserialize, Serialize};

use crate::{SandboxError, UNPRIVILEGED};

/// The user of a sandbox's processes.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The user's folder, for HOME.
    pub(crate) home: String,
}

/// Without USER, as with kpt.
const NOBODY: &str = "nobody";

/// Reads `user`, `uid`, `user:group` or `uid:gid`, with the image's `/etc/passwd` and `/etc/group`.
pub(crate) fn resolve(text: &str, passwd: &str, group: &str) -> Result<User, SandboxError> {
    let (user, given_group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let user = if user.is_empty() { NOBODY } else { user };
    let number = user.parse::<u32>().ok();
    let entry = passwd.lines().map(fields).find(|fields| {
        fields.first() == Some(&user)
            || number.is_some() && fields.get(2).and_then(|uid| uid.parse().ok()) == number
    });
    let field = |index: usize| entry.as_ref().and_then(|fields| fields.get(index).copied());
    let id = |index| field(index).and_then(|id| id.parse::<u32>().ok());
    let uid = match number.or_else(|| id(2)) {
        Some(uid) => uid,
        None if user == NOBODY => UNPRIVILEGED,
        None => return Err(SandboxError::User { kind: "user", name: user.to_owned(), file: "/etc/passwd" }),
    };
    let gid = match given_group.filter(|group| !group.is_empty()) {
        Some(name) => group_id(name, group)?,
        // Docker's default for a number without an entry is the group root. Nobody's group is as
        // good here, and says more.
        None => id(3).unwrap_or(if user == NOBODY { UNPRIVILEGED } else { 0 }),
    };
    let home = field(5).filter(|home| home.starts_with('/')).unwrap_or("/").to_owned();
    Ok(User { uid, gid, home })
}

fn group_id(name: &str, group: &str) -> Result<u32, SandboxError> {
    if let Ok(gid) = name.parse() {
        return Ok(gid);
    }
    let entry = group.lines().map(fields).find(|fields| fields.first() == Some(&name));
    let gid = entry.and_then(|fields| fields.get(2)?.parse().ok());
    gid.ok_or_else(|| SandboxError::User { kind: "group", name: name.to_owned(), file: "/etc/group" })
}

fn fields(line: &str) -> Vec<&str> {
    line.split(':').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1001::/home/node:/bin/sh\nbad:x:y:z\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:node\n";

    #[test]
    fn users_are_names_or_numbers() {
        let user = |uid, gid, home: &str| Some(User { uid, gid, home: home.to_owned() });
        for (text, expected) in [
            ("", user(65534, 65534, "/")),
            ("nobody", user(65534, 65534, "/")),
            ("node", user(1000, 1001, "/home/node")),
            ("1000", user(1000, 1001, "/home/node")),
            ("node:staff", user(1000, 50, "/home/node")),
            ("1000:7", user(1000, 7, "/home/node")),
            ("4711", user(4711, 0, "/")),
            ("4711:", user(4711, 0, "/")),
            ("root", user(0, 0, "/root")),
            ("who", None),
            ("node:who", None),
            ("bad", None),
            ("-1", None),
        ] {
            assert_eq!(resolve(text, PASSWD, GROUP).ok(), expected, "{text:?}");
        }
        assert_eq!(resolve("", "nobody:x:99:98::/nowhere:\n", "").ok(), user(99, 98, "/nowhere"));
    }
}
